"""What whole combinations of choices earned: the agent, prompt, strategy and link that one run had together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from pyagent.core.learning.outcomes import Outcome


def combinations(kind_to_rows: Mapping[str, Sequence[Outcome]]) -> list[Outcome]:
    """Return an outcome for each run that chose in two kinds or more; its arm names the kinds and their options.

    A run that took several options of one kind, in several steps, is no single combination and is left out; of
    attempts the last counts. The quality is the mean over the kinds, which is the run's mark where it has one; a cost
    is the most that one of the choices took, as the run's link takes what its agents take.
    """
    runs: dict[str, dict[str, dict[str, Outcome]]] = {}
    for kind in sorted(kind_to_rows):
        for row in sorted(kind_to_rows[kind], key=lambda each: each.attempt):
            runs.setdefault(row.run, {}).setdefault(kind, {})[row.step] = row
    chosen = {
        run: {kind: [*steps.values()] for kind, steps in kinds.items()}
        for run, kinds in runs.items()
        if len(kinds) > 1 and all(len({row.arm for row in steps.values()}) == 1 for steps in kinds.values())
    }
    return [_combined(run, kinds) for run, kinds in chosen.items()]


def _combined(run: str, kinds: Mapping[str, Sequence[Outcome]]) -> Outcome:
    rows = [row for found in kinds.values() for row in found]
    qualities = [row.quality for row in rows if row.quality is not None]
    return Outcome(
        run=run,
        step="",
        arm=", ".join(f"{kind} {found[0].arm}" for kind, found in kinds.items()),
        quality=fmean(qualities) if qualities else None,
        seconds=_most([row.seconds for row in rows]),
        usd=_most([row.usd for row in rows]),
        tokens=_most([row.tokens for row in rows]),
    )


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
