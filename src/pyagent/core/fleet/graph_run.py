"""The steps of a run as they run: conditions, items, rounds and tries around the agents, groups within groups.

A step's path is its name and what it is in: `fix[3]` is the third item's, `fix#2` the second round, `fix~2` the second
try, `fix[3]#2~2` all of it; the steps of a group take over its marks. So each agent has a path of its own, equal when
the run is resumed, and everything here is decided anew from what the agents' records say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import cast

import msgspec

from pyagent.core.errors import BudgetError, CapacityError, DeadlineError, RequestError
from pyagent.core.fleet.budget import Budget
from pyagent.core.fleet.condition_values import Seen, as_data
from pyagent.core.fleet.conditions import is_met, read_reference
from pyagent.core.fleet.events import FailureTolerated, LoopEnded, StepRetried, StepSkipped
from pyagent.core.fleet.graph import Outcome, Skip, run_graph
from pyagent.core.fleet.places import Filling
from pyagent.core.fleet.planner import NAME as PLANNER
from pyagent.core.fleet.planner import Plan, Planner, checked_plan
from pyagent.core.fleet.routed_step import Means, RoutedStep, run_routed
from pyagent.core.fleet.run import Run
from pyagent.core.fleet.run_end import result_of
from pyagent.core.fleet.scores import Scores
from pyagent.core.fleet.step_checks import MAX_ITEMS
from pyagent.core.fleet.step_options import Retries
from pyagent.core.fleet.steps import RunSpec, Step
from pyagent.core.rates import read_bucket_rate
from pyagent.core.resilience.retry import RetryPolicy

_LONGEST_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where steps run: `marks` tell this item, round and try from others, `given` are the results they begin with."""

    means: Means
    marks: str = ""
    given: Mapping[str, object] = field(default_factory=dict[str, object])
    seen: Seen = field(default_factory=Seen)
    filling: Filling = field(default_factory=Filling)

    def at(self, mark: str) -> Place:
        """Return the place of an item, a round or a try here."""
        return replace(self, marks=self.marks + mark)


@dataclass(slots=True)
class GraphRun:
    """The graph of a run, under way. `outputs` has what agents gave, by their steps' paths.

    In one that `is_planned` an agent that declines its step hands it on.
    """

    run: Run
    scores: Scores
    outputs: dict[str, object] = field(default_factory=dict[str, object])
    is_planned: bool = False
    _failed_paths: dict[Exception, tuple[str, ...]] = field(default_factory=dict[Exception, tuple[str, ...]])

    async def planned(self, spec: RunSpec, place: Place) -> Sequence[Step]:
        """Return the steps that the planner makes of the run's one task, or that task where it makes none."""
        run, task = self.run, spec.steps[0].task
        if PLANNER in run.agents:
            text = f"planning needs the name {PLANNER}, which an agent of the fleet has; rename it, or do not plan"
            raise RequestError(text, param="plan")
        names = list(run.agents)
        planner = Planner(tuple(run.agents.values()), asks=spec.plan == "ask")
        run.agents = {**run.agents, PLANNER: planner}
        step = RoutedStep(PLANNER, PLANNER, task, place.means, why="it makes the plan")
        plan = cast("Plan", await run_routed(run, self.scores, step))
        run.agents = {name: run.agents[name] for name in names}
        self.is_planned = bool(plan.graph)
        return checked_plan(plan.graph, task.text, names) if plan.graph else spec.steps

    async def steps(self, steps: Sequence[Step], place: Place, outcomes: dict[str, Outcome[object]]) -> None:
        """Run the steps of a graph, or of a group; `outcomes` is filled as they end."""
        name_to_step = {step.name: step for step in steps}

        async def work(name: str, results: Mapping[str, object]) -> object:
            self._check_goes_on([name_to_step[each] for each in name_to_step[name].after], outcomes)
            return await self._step(name_to_step[name], results, place, outcomes)

        def skip(name: str, cause: str) -> None:
            if self.run.fatal is None:  # else it is put off: the resumed run runs it
                path, cause = name + place.marks, cause + place.marks
                self.run.emit(StepSkipped(run=self.run.id, step=path, cause=cause))

        await run_graph(
            {step.name: step.after for step in steps},
            work,
            max_concurrency=self.run.limits.max_concurrency,
            on_skip=skip,
            name_to_join={step.name: step.join for step in steps},
            name_to_rank={step.name: _rank(step, place) for step in steps},
            outcomes=outcomes,
        )

    def _check_goes_on(self, befores: Sequence[Step], outcomes: Mapping[str, Outcome[object]]) -> None:
        """Raise what ends the run: no step begins after it, and no `join` goes on after that."""
        if self.run.fatal is not None:
            raise self.run.fatal
        if self.run.deadline.is_past:
            raise DeadlineError("the run's deadline passed before the step could begin")
        for step in befores:
            error = outcomes[step.name].error
            if isinstance(error, BudgetError) and error.setting not in _own_budgets(step):
                raise error

    async def _step(
        self, step: Step, results: Mapping[str, object], place: Place, outcomes: Mapping[str, Outcome[object]]
    ) -> object:
        """Return a step's result: of its items, of its last round, of the try that went well."""
        befores = {name: outcomes[name] for name in step.after}
        seen = place.seen.plus(results, {name: outcome.state for name, outcome in befores.items()})
        path = step.name + place.marks
        if step.when and not is_met(step.when, seen):
            self.run.emit(StepSkipped(run=self.run.id, step=path, cause="", condition=step.when))
            raise Skip(step.when)
        if failed := self._paths_of(befores.values()):
            self.run.emit(FailureTolerated(run=self.run.id, step=path, failed=failed))
        place = replace(place, given=results if step.after else place.given, seen=seen, means=_means(step, place, path))
        if step.for_each is None:
            return await self._rounds(step, place)
        return await self._items(step, place)

    async def _items(self, step: Step, place: Place) -> list[object]:
        """Return the items' results, in their order. One that fails fails the step when the others have ended."""
        items = _items_of(step, place.seen)

        async def work(number: str, _: Mapping[str, object]) -> object:
            item = items[int(number) - 1]
            return await self._rounds(step, replace(place.at(f"[{number}]"), filling=Filling.of_item(item)))

        names = [str(number) for number in range(1, len(items) + 1)]
        nothing: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
        outcomes = await run_graph(nothing, work, max_concurrency=self.run.limits.max_concurrency)
        self._raise_first(outcomes)
        return [outcome.output for outcome in outcomes.values()]

    def _raise_first(self, outcomes: Mapping[str, Outcome[object]]) -> None:
        errors = [outcome.error for outcome in outcomes.values() if outcome.error is not None]
        if errors:
            self._failed_paths[errors[0]] = self._paths_of(outcomes.values())
            for error in errors[1:10]:
                errors[0].add_note(f"another item failed too: {error}")
            raise errors[0]
        if any(outcome.state == "cancelled" for outcome in outcomes.values()):
            raise asyncio.CancelledError

    async def _rounds(self, step: Step, place: Place) -> object:
        """Return the last round's result. Each round is given that of the one before, under the step's name."""
        if step.repeat is None:
            return (await self._tries(step, place))[0]
        output, is_over, number = cast("object", None), False, 0
        while not is_over and number < step.repeat.max:
            number += 1
            before = {step.name: output} if number > 1 else {}
            round_place = replace(place.at(f"#{number}"), given={**place.given, **before}, seen=place.seen.plus(before))
            output, inner = await self._tries(step, round_place)
            seen = round_place.seen.plus({**inner.results, step.name: output}, {**inner.states, step.name: "done"})
            is_over = bool(step.repeat.until) and is_met(step.repeat.until, seen)
            self._tell_check(step, round_place, is_over)
        path = step.name + place.marks
        self.run.emit(LoopEnded(run=self.run.id, step=path, rounds=number, is_met=is_over))
        return output

    def _tell_check(self, step: Step, place: Place, is_passed: bool) -> None:
        """Tell the learner whether a round's result is what the loop goes on for."""
        if self.run.learner is None or step.repeat is None or not step.repeat.until:
            return
        for each in step.steps or (step,):
            self.run.learner.checked(self.run, each.name + place.marks, each.agent or "", is_passed=is_passed)

    async def _tries(self, step: Step, place: Place) -> tuple[object, Seen]:
        """Return the result of the first try that does not fail, and what its steps gave.

        The first has no mark, unless steps within have tries of their own: `~2` would be theirs or this one's.
        """
        is_marked = step.retries is not None and any(map(_is_retried, step.steps))
        for number in count(1):
            try_place = place.at(f"~{number}") if number > 1 or is_marked else place
            try:
                return await self._once(step, try_place)
            except Exception as error:
                seconds = _retry_seconds(step.retries, error, number, place)
                if seconds is None or self.run.fatal is not None:
                    raise
                await self._wait(step.name + try_place.marks, number, error, seconds)
        raise AssertionError("unreachable")

    async def _wait(self, path: str, number: int, error: Exception, seconds: float) -> None:
        """Wait before the next try; not again when that was done before the run was resumed."""
        failed = self._failed_paths.get(error, ())
        kind, text = type(error).__name__, str(error)
        was_waited = self.run.past.is_handled(failed)
        self.run.emit(
            StepRetried(
                run=self.run.id, step=path, attempt=number, kind=kind, error=text, failed=failed, seconds=seconds
            )
        )
        if not was_waited:
            await asyncio.sleep(seconds)

    async def _once(self, step: Step, place: Place) -> tuple[object, Seen]:
        if step.steps:
            return await self._group(step, place)
        path = step.name + place.marks
        try:
            task = self.run.overrides.get(path) or place.filling.of_task(step.task)
            task = msgspec.structs.replace(task, results=dict(place.given)) if place.given else task
            with self.run.span(f"step {path}", {"pyagent.step": path}), self.run.stats.step():
                why = "the plan names it" if self.is_planned and step.agent is not None else ""
                routed = RoutedStep(path, step.agent, task, place.means, step.name, why)
                self.outputs[path] = await run_routed(self.run, self.scores, routed)
        except Exception as error:
            self._failed_paths[error] = (path,)
            raise
        return self.outputs[path], Seen()

    async def _group(self, step: Step, place: Place) -> tuple[object, Seen]:
        outcomes: dict[str, Outcome[object]] = {}
        await self.steps(step.steps, place, outcomes)
        try:
            output = result_of(step.steps, outcomes)
        except Exception as error:
            self._failed_paths[error] = self._paths_of(outcomes.values())
            raise
        done = {name: outcome.output for name, outcome in outcomes.items() if outcome.state == "done"}
        return output, Seen(done, {name: outcome.state for name, outcome in outcomes.items()})

    def _paths_of(self, outcomes: Iterable[Outcome[object]]) -> tuple[str, ...]:
        """Return the paths of the agents because of which steps failed."""
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        return tuple(path for error in errors for path in self._failed_paths.get(error, ()))


def _rank(step: Step, place: Place) -> tuple[float, float]:
    """Return the place in the queue of steps that could begin: by priority, then by deadline."""
    priority = place.means.urgency.within(step.priority, None).priority
    return (priority, float("inf") if step.deadline_seconds is None else step.deadline_seconds)


def _is_retried(step: Step) -> bool:
    """Return whether it or a step in it may be tried again: then the first try of a group around it is marked, too."""
    return step.retries is not None or any(map(_is_retried, step.steps))


def _own_budgets(step: Step) -> set[str]:
    """Return what the budgets of a step and those in it are called in a `BudgetError`."""
    own = set[str]() if step.budget is None else {_budget_name(step)}
    return own.union(*map(_own_budgets, step.steps))


def _budget_name(step: Step) -> str:
    return f"{step.name}.budget"


def _means(step: Step, place: Place, path: str) -> Means:
    means, budget = place.means, place.means.budget
    deadline = means.deadline if step.deadline_seconds is None else means.deadline.sooner(step.deadline_seconds)
    seconds = means.seconds
    if step.budget is not None:
        budget = Budget(f"the step {path}", step.budget.tokens, budget, step.budget.usd, _budget_name(step))
        given = [each for each in (seconds, step.budget.seconds) if each is not None]
        seconds = min(given, default=None)
    rate = read_bucket_rate(step.rate) if step.rate else None
    return Means(budget, deadline, means.urgency.within(step.priority, step.request_class), seconds, rate)


def _items_of(step: Step, seen: Seen) -> Sequence[object]:
    if isinstance(step.for_each, tuple):
        return step.for_each
    reference = read_reference(step.for_each or "")
    items = as_data(reference.value(seen))
    if not isinstance(items, list):
        text = f"for_each of {step.name} needs a list in {reference}, got {items!r:.80}"
        raise RequestError(text, param="for_each")
    if len(cast("list[object]", items)) > MAX_ITEMS:
        text = f"for_each of {step.name} takes at most {MAX_ITEMS:,} items, {reference} has {len(items):,}"  # pyright: ignore[reportUnknownArgumentType]
        raise RequestError(text, param="for_each")
    return cast("list[object]", items)


def _retry_seconds(retries: Retries | None, error: Exception, number: int, place: Place) -> float | None:
    """Return how long to wait before the next try; None when there is none."""
    if retries is None or number > retries.max or not retries.takes(error):
        return None
    policy = RetryPolicy(base_seconds=retries.seconds, max_seconds=_LONGEST_WAIT_SECONDS, jitter="equal")
    asked = (error.retry_after_seconds or 0.0) if isinstance(error, CapacityError) else 0.0
    seconds = asked + policy.backoff_seconds(number - 1)
    return None if seconds >= place.means.deadline.remaining_seconds else seconds
