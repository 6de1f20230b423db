"""How a run, or a group of its steps, ends: with the output of its last steps, or with its first failure. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from pyagent.core.errors import BudgetError, DeadlineError, NeedsAnswerError, StalledError
from pyagent.core.fleet.events import RunEnd, RunFailed, StepFailure
from pyagent.core.fleet.graph import Outcome
from pyagent.core.fleet.run import Run
from pyagent.core.fleet.steps import Step

Outcomes = Mapping[str, Outcome[object]]


def result_of_run(run: Run, steps: Sequence[Step], outcomes: Outcomes) -> object:
    """Return the run's result. What has to end the run does, whatever its agents made of it."""
    if run.fatal is not None:
        raise run.fatal
    return result_of(steps, outcomes)


def result_of(steps: Sequence[Step], outcomes: Outcomes) -> object:
    """The output of the last step that ran, or of each of them by name.

    Raises the first failure that no step went on after, with notes of the others.
    """
    errors = unhandled_failures(steps, outcomes)
    for first in list(errors)[:1]:
        for name, error in errors.items():
            if name != first:
                errors[first].add_note(f"the step {name} failed too: {error}")
        for name, cause in _not_run(outcomes).items():
            errors[first].add_note(f"the step {name} did not run: {cause} failed before it")
        raise errors[first]
    if any(outcome.state == "cancelled" for outcome in outcomes.values()):
        raise asyncio.CancelledError
    done = [step for step in steps if outcomes[step.name].state == "done"]
    waited_for = {needed for step in done for needed in step.after}
    last = {step.name: outcomes[step.name].output for step in done if step.name not in waited_for}
    return next(iter(last.values())) if len(last) == 1 else last


def unhandled_failures(steps: Sequence[Step], outcomes: Outcomes) -> dict[str, Exception]:
    """Return the failures that no step after them went on after."""
    ran = [step for step in steps if step.join != "all" and outcomes[step.name].state != "skipped"]
    handled = {name for step in ran for name in step.after}
    errors = ((name, outcome.error) for name, outcome in outcomes.items() if name not in handled)
    return {name: error for name, error in errors if error is not None}


def failed(run: Run, error: BaseException, outcomes: Outcomes, partial: Mapping[str, object]) -> RunFailed:
    """Return the event of a run that ends with an error."""
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
        skipped=_not_run(outcomes),
        totals=run.totals(),
    )


def _not_run(outcomes: Outcomes) -> dict[str, str]:
    """Return the steps that did not run because of a failure, with the step that failed."""
    causes = ((name, outcome.cause) for name, outcome in outcomes.items())
    return {name: cause for name, cause in causes if cause and outcomes[cause].state == "failed"}


def _reason(error: BaseException) -> RunEnd:
    """Return what kind of end an error is."""
    ends: tuple[tuple[type[BaseException], RunEnd], ...] = (
        (BudgetError, "budget_exhausted"),
        (NeedsAnswerError, "needs_answer"),
        (DeadlineError, "timeout"),
        (StalledError, "stalled"),
        (asyncio.CancelledError, "cancelled"),
    )
    for kind, end in ends:
        if isinstance(error, kind):
            return end
    return "error"
