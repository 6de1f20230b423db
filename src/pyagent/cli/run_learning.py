"""`pyagent runs stats --learned`: what was learned of each arm, what would be chosen now, and how tests stand."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, cast

import msgspec

from pyagent.cli.output import coloured, for_terminal, write_json
from pyagent.cli.run_journal import cut, open_journal
from pyagent.cli.startup import read_settings

if TYPE_CHECKING:
    from pyagent.core.learning.outcomes import Outcome
    from pyagent.core.settings.learning import Learning
    from pyagent.infrastructure.storage.outcomes import OutcomesOf

_NUM_SAMPLES = 100
_MAX_KIND = 60
_MAX_COMBINATIONS = 20
_DIGEST = re.compile(r"#[0-9a-f]{6}\b")
"""Of a prompt's text, after the name of its variant."""
Row = dict[str, object]


def show_learned(config: Path | None, tenant: str | None, *, as_json: bool) -> None:
    """Write the arms of each tenant and kind of choice, and the tests of prompts."""
    learning = read_settings(config).learning
    found = open_journal(config).outcomes.all(tenant)
    arms = [row for of in found for row in _arm_rows(_counted(of, found, learning), learning)]
    tests = [row for of in found if of.kind.startswith("prompt/") for row in _test_rows(of, learning)]
    together = _combination_rows(found, learning)
    if as_json:
        goals = {name: each.goal for name, each in learning.objectives.items()}
        told = {"policy": learning.policy, "objectives": goals, "arms": arms, "tests": tests}
        write_json(told | {"together": learning.together, "combinations": together})
        return
    if not arms:
        sys.stdout.write("no marks yet: pyagent runs mark RUN good\n")
        return
    goals = ", ".join(f"{each.goal} {name} (weight {each.weight:g})" for name, each in learning.objectives.items())
    sys.stdout.write(f"policy {learning.policy}{', together' if learning.together else ''}; {goals}\n")
    _write_arms(arms)
    _write_combinations(together)
    for row in tests:
        sys.stdout.write(f"{for_terminal(str(row['text']))}\n")


def _counted(of: OutcomesOf, found: Sequence[OutcomesOf], learning: Learning) -> OutcomesOf:
    """Return the outcomes of a kind that count for its next choice."""
    from pyagent.core.fleet.learner import kinds_after
    from pyagent.core.learning.deciding import that_count
    from pyagent.core.learning.outcomes import names_in

    if not learning.together:
        return of
    kind_to_rows = {each.kind: each.rows for each in found if each.tenant == of.tenant}
    after = [kind_to_rows.get(kind, ()) for kind in kinds_after(of.kind, names_in(of.rows))]
    rows = that_count(of.rows, after, [*learning.objectives.values()])
    return msgspec.structs.replace(of, rows=tuple(rows))


def _arm_rows(of: OutcomesOf, learning: Learning) -> list[Row]:
    """Return a row for each arm of a kind; where choices depend on it, one for each situation it was chosen in."""
    from pyagent.core.learning.deciding import rows_in
    from pyagent.core.learning.values import METHODS

    if learning.policy not in METHODS and not learning.together:
        return _rows_of(of, "", of.rows, learning)
    states = sorted({row.state for row in of.rows})
    return [row for state in states for row in _rows_of(of, state, rows_in(of.rows, state), learning)]


def _rows_of(of: OutcomesOf, state: str, here: Sequence[Outcome], learning: Learning) -> list[Row]:
    """Return a row for each arm of a kind, by its outcomes in a situation; bounds are those that hold there."""
    from pyagent.core.learning.bandits import upper_bound
    from pyagent.core.learning.deciding import breaking, front, means_of
    from pyagent.core.learning.outcomes import arms_of

    objectives, names = [*learning.objectives.values()], _names(of, learning)
    arms = arms_of(here, names, objectives)
    total = sum(arm.num_rewards for arm in arms)
    on_front = front(here, names, objectives)
    broken = breaking(here if learning.together else of.rows, names, objectives)
    return [
        {
            "tenant": of.tenant,
            "kind": of.kind,
            "situation": _DIGEST.sub("", state),
            "arm": arm.name.partition("#")[0],
            "chosen": arm.num_pulls,
            "marks": arm.num_rewards,
            "mean": arm.mean,
            "bound": upper_bound(arm, total) if arm.num_rewards else None,
            "next": share,
            "means": means_of(here, arm.name),
            "is_on_front": arm.name in on_front,
            "breaks": broken.get(arm.name, ""),
        }
        for arm, share in zip(arms, _shares(of.rows, names, state, learning), strict=True)
    ]


def _combination_rows(found: Sequence[OutcomesOf], learning: Learning) -> list[Row]:
    """Return a row for each combination of options that runs of a tenant had, the one that earned most first."""
    from pyagent.core.learning.combinations import combinations
    from pyagent.core.learning.deciding import breaking, front, means_of
    from pyagent.core.learning.outcomes import arms_of, names_in

    objectives, rows = [*learning.objectives.values()], list[Row]()
    for tenant in dict.fromkeys(of.tenant for of in found):
        outcomes = combinations({of.kind: of.rows for of in found if of.tenant == tenant})
        names = names_in(outcomes)
        on_front, broken = front(outcomes, names, objectives), breaking(outcomes, names, objectives)
        for arm in sorted(arms_of(outcomes, names, objectives), key=lambda each: -(each.mean or 0.0)):
            row: Row = {
                "tenant": tenant,
                "options": _DIGEST.sub("", arm.name),
                "runs": arm.num_pulls,
                "marks": arm.num_rewards,
                "mean": arm.mean,
                "means": means_of(outcomes, arm.name),
                "is_on_front": arm.name in on_front,
                "breaks": broken.get(arm.name, ""),
            }
            rows.append(row)
    return rows


def _names(of: OutcomesOf, learning: Learning) -> list[str]:
    """Return the arms to show: of a prompt the variants that the settings have now, as far as it is tested still."""
    from pyagent.core.learning.outcomes import names_in

    variants = learning.prompts.get(of.kind.partition("/")[2]) if of.kind.startswith("prompt/") else None
    return names_in(of.rows) if variants is None else [each.arm for each in variants]


def _shares(rows: Sequence[Outcome], names: Sequence[str], state: str, learning: Learning) -> list[float | None]:
    """Return how often each would be chosen now, of many times with seeds of their own; None without a policy."""
    from pyagent.core.learning.deciding import decider

    if learning.policy == "off":
        return [None] * len(names)
    objectives = [*learning.objectives.values()]
    decide = decider(learning.policy, rows, names, objectives, state, is_by_state=learning.together)
    taken = [decide(Random(seed)).arm.name for seed in range(_NUM_SAMPLES)]  # noqa: S311 - no secret
    return [taken.count(name) / len(taken) for name in names]


def _write_arms(rows: Sequence[Row]) -> None:
    width = min(_MAX_KIND, max(len(_kind(row)) for row in rows))
    head = (
        f"{'tenant':<10} {'kind':<{width}} {'arm':<22} {'chosen':>6} {'known':>5} {'mean':>5} {'bound':>5} {'next':>5}"
    )
    sys.stdout.write(coloured(f"{head} {'seconds':>8} {'USD':>8} {'tokens':>7}  front\n", "dim"))
    for row in rows:
        means = cast("dict[str, float]", row["means"])
        names = [(str(row["tenant"]), 10), (_kind(row), width), (str(row["arm"]), 22)]
        shown = " ".join(f"{for_terminal(cut(name, most)):<{most}}" for name, most in names)
        numbers = " ".join(_cell(row[name], 5, 2) for name in ("mean", "bound", "next"))
        costs = (
            f"{_cell(means.get('seconds'), 8, 2)} {_cell(means.get('usd'), 8, 4)} {_cell(means.get('tokens'), 7, 0)}"
        )
        sys.stdout.write(f"{shown} {row['chosen']:>6} {row['marks']:>5} {numbers} {costs}  {_end(row)}\n")


def _write_combinations(rows: Sequence[Row]) -> None:
    """Write those that earned most, with the tenant where it is not the only one."""
    if not rows:
        return
    sys.stdout.write(coloured(f"{'runs':>5} {'known':>5} {'mean':>5}  {'front':<5} combination\n", "dim"))
    for row in rows[:_MAX_COMBINATIONS]:
        told = f"{row['tenant']}: {row['options']}" if row["tenant"] else str(row["options"])
        numbers = f"{row['runs']:>5} {row['marks']:>5} {_cell(row['mean'], 5, 2)}"
        sys.stdout.write(f"{numbers}  {_end(row):<5} {for_terminal(told)}\n")
    if len(rows) > _MAX_COMBINATIONS:
        sys.stdout.write(f"and {len(rows) - _MAX_COMBINATIONS} more (--json)\n")


def _end(row: Row) -> str:
    """Return whether an arm is on the Pareto front, or which bound it breaks."""
    return f"out: {row['breaks']}" if row["breaks"] else "yes" if row["is_on_front"] else "-"


def _kind(row: Row) -> str:
    return f"{row['kind']} ({row['situation']})" if row["situation"] else str(row["kind"])


def _cell(value: object, width: int, digits: int) -> str:
    return f"{value:>{width}.{digits}f}" if isinstance(value, int | float) else f"{'-':>{width}}"


def _test_rows(of: OutcomesOf, learning: Learning) -> list[Row]:
    """Return how the test of an agent's prompts stands, a row for each pair of variants."""
    from pyagent.core.learning.sequential import verdict
    from pyagent.logic.stats.comparison import welch

    names = _names(of, learning)
    found = verdict(of.rows, names)
    agent = of.kind.partition("/")[2]
    rows: list[Row] = []
    for (one, other), p in found.p_values.items():
        qualities = [
            [row.quality for row in of.rows if row.arm == name and row.quality is not None] for name in (one, other)
        ]
        compared = welch(*qualities)
        short = [name.partition("#")[0] for name in (one, other)]
        text = f"{agent}: {short[0]} and {short[1]}: always-valid p {p:.3g} of {found.num_pairs[one, other]} pairs"
        if compared is not None:
            low, high = compared.interval
            text += (
                f"; Welch's t {compared.t:.2f}, {compared.df:.1f} degrees of freedom, p {compared.p:.3g},"
                f" difference {compared.difference:.3f} ({low:.3f} to {high:.3f})"
            )
        better = found.better.partition("#")[0]
        state = f"{better} is better" if found.better else "none is better" if found.is_over else "goes on"
        rows.append(
            {
                "tenant": of.tenant,
                "agent": agent,
                "variants": short,
                "p": p,
                "pairs": found.num_pairs[one, other],
                "welch": compared,
                "better": better,
                "is_over": found.is_over,
                "text": f"{text}; {state}",
            }
        )
    return rows
