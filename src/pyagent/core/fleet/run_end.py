"""How a run ends: its result of its steps' outcomes, or the event that says what failed. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from pyagent.core.errors import BudgetError, DeadlineError, NeedsAnswerError
from pyagent.core.fleet.events import RunEnd, RunFailed, StepFailure
from pyagent.core.fleet.graph import Outcome
from pyagent.core.fleet.run import Run


def result_of(run: Run, after: Mapping[str, Sequence[str]], outcomes: Mapping[str, Outcome[object]]) -> object:
    """Return the output of the last step, or of each of them by name.

    Raises the first failure, with notes of the others.
    What has to end the run does, whatever its agents made of it.
    """
    if run.fatal is not None:
        raise run.fatal
    failed = {name: outcome.error for name, outcome in outcomes.items() if outcome.error is not None}
    for first in list(failed)[:1]:
        for name, error in failed.items():
            if name != first:
                failed[first].add_note(f"the step {name} failed too: {error}")
        for name, outcome in outcomes.items():
            if outcome.cause:
                failed[first].add_note(f"the step {name} did not run: {outcome.cause} failed before it")
        raise failed[first]
    for outcome in outcomes.values():
        if outcome.state == "cancelled":
            raise asyncio.CancelledError
    waited_for = {needed for names in after.values() for needed in names}
    last = {name: outcomes[name].output for name in after if name not in waited_for}
    return next(iter(last.values())) if len(last) == 1 else last


def failed(
    run: Run, error: BaseException, outcomes: Mapping[str, Outcome[object]], partial: Mapping[str, object]
) -> RunFailed:
    """Return the last event of a run that ends with an error: what failed, and what was done."""
    failures = tuple(
        StepFailure(step=name, kind=type(outcome.error).__name__, error=str(outcome.error))
        for name, outcome in outcomes.items()
        if outcome.error is not None
    )
    return RunFailed(
        run=run.id,
        kind=type(error).__name__,
        error=str(error) or "cancelled",
        reason=_reason(error),
        partial={**run.step_to_partial, **partial},
        failures=failures,
        skipped={name: outcome.cause for name, outcome in outcomes.items() if outcome.cause},
        totals=run.totals(),
    )


def _reason(error: BaseException) -> RunEnd:
    """Return what kind of end an error is."""
    ends: tuple[tuple[type[BaseException], RunEnd], ...] = (
        (BudgetError, "budget_exhausted"),
        (NeedsAnswerError, "needs_answer"),
        (DeadlineError, "timeout"),
        (asyncio.CancelledError, "cancelled"),
    )
    for kind, end in ends:
        if isinstance(error, kind):
            return end
    return "error"
