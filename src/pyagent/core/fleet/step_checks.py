"""What is wrong with the steps of a graph, said before anything runs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.condition_values import steps_in
from pyagent.core.fleet.conditions import read_condition, read_reference
from pyagent.core.fleet.graph import topological_order
from pyagent.core.fleet.step_options import Repeat, Retries, StepBudget
from pyagent.core.rates import read_bucket_rate

if TYPE_CHECKING:
    from pyagent.core.fleet.steps import Step

MAX_ITEMS = 1_000
MAX_ROUNDS = 1_000
MAX_RETRIES = 20
MAX_GROUPS = 8
"""How deep groups may stand in groups."""
_MAX_SECONDS = 10_000_000.0
_NOT_IN_NAMES = "/#[]{}~`"


def check_steps(steps: Sequence[Step], around: Collection[str] = (), depth: int = 0) -> None:
    """Raise `RequestError` for names, an order, conditions and numbers that cannot be.

    `around` names the steps outside their group whose results its conditions may look at.
    """
    if depth == 0:
        _check_names([step.name for step in _all_of(steps)])
    topological_order({step.name: step.after for step in steps})
    for step in steps:
        try:
            _check(step, {*around, *step.after}, depth)
        except RequestError as error:
            if depth or str(error).startswith("the step "):
                raise
            raise RequestError(f"the step {step.name}: {error}", param="steps", code=error.code) from error


def _all_of(steps: Iterable[Step], depth: int = 0) -> Iterable[Step]:
    if depth > MAX_GROUPS:
        raise RequestError(f"groups of steps stand more than {MAX_GROUPS} deep in each other", param="steps")
    for step in steps:
        yield step
        yield from _all_of(step.steps, depth + 1)


def _check_names(names: list[str]) -> None:
    for name in names:
        if not name or any(sign in _NOT_IN_NAMES for sign in name):
            signs = " ".join(_NOT_IN_NAMES[1:])
            raise RequestError(
                f"a step needs a name without a slash, or one of {signs}, got {name!r:.80}", param="steps"
            )
    if len(set(names)) < len(names):
        raise RequestError(f"a run needs steps with different names, got {names!r:.500}", param="steps")


def _check(step: Step, known: set[str], depth: int) -> None:
    if step.when:
        _check_looks(steps_in(read_condition(step.when)), known, "when", step)
    if isinstance(step.for_each, str):
        _check_looks({read_reference(step.for_each).step}, known, "for_each", step)
    elif step.for_each is not None and not 0 < len(step.for_each) <= MAX_ITEMS:
        raise RequestError(f"for_each takes 1 to {MAX_ITEMS} items, got {len(step.for_each)}", param="steps")
    _check_numbers(step)
    _check_rate(step)
    if step.repeat is not None and step.repeat.until:
        own = {step.name, *(inner.name for inner in step.steps)}
        _check_looks(steps_in(read_condition(step.repeat.until)), known | own, "repeat.until", step)
    if step.steps:
        if step.agent is not None or step.task != Task():
            raise RequestError("a step with steps of its own has no agent and no task; they have", param="steps")
        check_steps(step.steps, known | {step.name} if step.repeat else known, depth + 1)
    if step.join != "all" and not step.after:
        raise RequestError(f"join = {step.join!r} is about the steps before it, and after names none", param="steps")


def _check_looks(names: set[str], known: set[str], what: str, step: Step) -> None:
    for name in sorted(names - known):
        seen = ", ".join(sorted(known)) or "none"
        text = f"{what} looks at {name!r}, which is not before it; it may look at {seen}: name others in after"
        raise RequestError(f"the step {step.name}: {text}", param="steps")


def _check_numbers(step: Step) -> None:
    for what, value, kind in (
        ("repeat", step.repeat, Repeat),
        ("retries", step.retries, Retries),
        ("budget", step.budget, StepBudget),
    ):
        if value is not None and not isinstance(cast("object", value), kind):
            raise RequestError(f"{what} is a {kind.__name__}, got {type(value).__name__}", param="steps")
    if step.repeat is not None:
        _check_between("repeat.max", step.repeat.max, 1, MAX_ROUNDS)
    if step.retries is not None:
        _check_between("retries.max", step.retries.max, 1, MAX_RETRIES)
        _check_between("retries.seconds", step.retries.seconds, 0, _MAX_SECONDS)
    _check_between("deadline_seconds", step.deadline_seconds, 0, _MAX_SECONDS)
    if step.budget is not None:
        _check_between("budget.tokens", step.budget.tokens, 1, 10**15)
        _check_between("budget.usd", step.budget.usd, 0, 10**9)
        _check_between("budget.seconds", step.budget.seconds, 0, _MAX_SECONDS)
    _check_between("priority", step.priority, -(2**31), 2**31)


def _check_rate(step: Step) -> None:
    if not step.rate:
        return
    if step.steps:
        raise RequestError("a step with steps of its own has no rate; give it to the first of them", param="steps")
    try:
        read_bucket_rate(step.rate)
    except ValueError as error:
        raise RequestError(f"rate: {error}", param="steps") from error


def _check_between(what: str, number: float | None, least: float, most: float) -> None:
    if number is not None and not least <= number <= most:
        raise RequestError(f"{what} is a number from {least:,} to {most:,}, got {number}", param="steps")
