"""`pyagent runs mark`, and what `pyagent runs stats --learned` shows of marks."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import coloured, for_terminal, write_json
from pyagent.cli.run_journal import Run, cut, open_journal
from pyagent.cli.startup import read_settings

if TYPE_CHECKING:
    from pyagent.core.learning.bandits import Arm, Policy

_MOST_SAMPLES = 200


def mark(
    run: Run,
    mark: Annotated[str, typer.Argument(metavar="MARK", help="good, bad or a number from 0 to 1.")],
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Say how good a run's result was; `learning.policy` chooses agents by it."""
    from pyagent.core.fleet.marks import mark_run

    journal = open_journal(config)
    marked = mark_run(journal, journal.outcomes, run, mark)
    if as_json:
        write_json(marked)
        return
    agents = ", ".join(dict.fromkeys(marked.step_to_agent.values()))
    sys.stdout.write(f"marked {run} with {marked.reward:g}: {for_terminal(agents)}\n")


def show_learned(config: Path | None, tenant: str | None, *, as_json: bool) -> None:
    """Write each tenant's arms: how often chosen, marks, mean, bound, and how often each would be chosen now."""
    settings = read_settings(config).learning
    rows = [
        {
            "tenant": of.tenant,
            "kind": of.kind,
            "agent": arm.name,
            "chosen": arm.num_pulls,
            "marks": arm.num_rewards,
            "mean": arm.mean,
            "bound": _bound(arm, of.arms),
            "next": share,
        }
        for of in open_journal(config).outcomes.all(tenant)
        for arm, share in zip(of.arms, _shares(settings.policy, of.arms), strict=True)
    ]
    if as_json:
        write_json({"policy": settings.policy, "arms": rows})
        return
    if not rows:
        sys.stdout.write("no marks yet: pyagent runs mark RUN good\n")
        return
    sys.stdout.write(f"policy {settings.policy}; next: how often each would be chosen if all were near\n")
    head = f"{'tenant':<16} {'agent':<24} {'chosen':>6} {'marks':>6} {'mean':>6} {'bound':>6} {'next':>6}"
    sys.stdout.write(coloured(f"{head}\n", "dim"))
    for row in rows:
        shown = [f"{row[name]:>6.2f}" if row[name] is not None else f"{'-':>6}" for name in ("mean", "bound", "next")]
        names = f"{for_terminal(cut(str(row['tenant']), 16)):<16} {for_terminal(cut(str(row['agent']), 24)):<24}"
        sys.stdout.write(f"{names} {row['chosen']:>6} {row['marks']:>6} {' '.join(shown)}\n")


def _bound(arm: Arm, arms: tuple[Arm, ...]) -> float | None:
    from pyagent.core.learning.bandits import upper_bound

    return upper_bound(arm, sum(each.num_rewards for each in arms)) if arm.num_rewards else None


def _shares(policy: Policy | Literal["off"], arms: tuple[Arm, ...]) -> list[float | None]:
    from pyagent.core.learning.bandits import choose

    if policy == "off":
        return [None] * len(arms)
    names = [choose(policy, arms, Random(seed)).name for seed in range(_MOST_SAMPLES)]  # noqa: S311 - no secret
    return [names.count(arm.name) / len(names) for arm in arms]
