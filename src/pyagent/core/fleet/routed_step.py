"""A step's task goes to an agent: the one named, or that the router finds; one that declines or is away hands it on.

An agent that the caller named has no other behind it; one that a plan named does, as a model only guessed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from pyagent.core.errors import AgentAwayError, AgentError, Decline, GuardrailError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.budget import Budget
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import RouteChosen
from pyagent.core.fleet.learned_choice import learned_route
from pyagent.core.fleet.router import Route, choose_route, fixed_route, route_by_scores
from pyagent.core.fleet.run import Run
from pyagent.core.fleet.scores import Score, Scores
from pyagent.core.fleet.turns import StepTurn
from pyagent.core.fleet.urgency import Urgency
from pyagent.core.rates import Rate
from pyagent.core.resilience.deadline import Deadline


@dataclass(frozen=True, slots=True)
class Means:
    """What a step may use, how urgent it is, and how often it may begin. `seconds` are for each agent."""

    budget: Budget
    deadline: Deadline
    urgency: Urgency
    seconds: float | None = None
    rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class RoutedStep:
    """A step's task on its way: its path, the agent that is named, and what it may use.

    `name` is the step's own; `why` is why it has this agent, where a plan says so.
    """

    path: str
    agent: str | None
    task: Task
    means: Means
    name: str = ""
    why: str = ""


async def run_routed(run: Run, scores: Scores, step: RoutedStep) -> object:
    """Return the result of the agent that takes the step's task."""
    turn = None if step.means.rate is None else StepTurn(step.name or step.path, step.means.rate)
    fixed = fixed_route(run.agents, step.agent)
    if fixed is not None and not step.why:
        try:
            return await _run_agent(run, step, fixed, turn)
        except Decline as error:
            raise RequestError(f"{fixed.agent} declines: {error}", param="task", code="declined") from error
    declined = run.past.declined(step.path)
    route = _kept_route(run, step.path) or _planned_route(fixed, step, declined)
    scored = {} if route is not None else await scores.of(step.task)
    failed: dict[str, str] = {}
    while True:
        if route is None:
            route = await _next_route(run, step, scored, declined, failed)
            left = {name: score for name, score in scored.items() if name not in declined}
            route = learned_route(run, step.path, left, route, failed)
        try:
            return await _run_agent(run, step, route, turn)
        except (Decline, AgentAwayError) as error:
            declined[route.agent] = str(error)
        except (AgentError, GuardrailError) as error:
            if isinstance(error, GuardrailError) and error.param != "output":
                raise
            failed[route.agent] = str(error)
            if not _goes_on(run, step, declined, failed):
                raise
        route, scored = None, scored or await scores.of(step.task)


def _kept_route(run: Run, path: str) -> Route | None:
    """Return the route that was chosen before the run was resumed, if its agent is still there."""
    kept = run.past.route(path)
    if kept is None or kept.agent not in run.agents:
        return None
    return Route(agent=kept.agent, how=kept.how, reason=kept.reason, score=kept.score)


def _planned_route(fixed: Route | None, step: RoutedStep, declined: Mapping[str, str]) -> Route | None:
    """Return the agent that the plan names, unless it declined before the run was resumed."""
    return None if fixed is None or fixed.agent in declined else msgspec.structs.replace(fixed, reason=step.why)


def _goes_on(run: Run, step: RoutedStep, declined: Mapping[str, str], failed: Mapping[str, str]) -> bool:
    """Tell the learner that the last agent failed; return whether another gets the task (`learning.attempts`)."""
    learner = run.learner
    if learner is None:
        return False
    learner.failed(run, step.path, [*failed][-1])
    is_left = run.fatal is None and any(name not in failed and name not in declined for name in run.agents)
    return is_left and learner.rules.policy is not None and len(failed) < learner.rules.attempts


async def _next_route(
    run: Run,
    step: RoutedStep,
    scores: Mapping[str, Score | None],
    declined: Mapping[str, str],
    failed: Mapping[str, str],
) -> Route:
    """Return the agent to hand the task to; `declined` and `failed` are out. A model is asked when no score is sure."""
    route = route_by_scores(scores, {**declined, **failed})
    if not isinstance(route, Route):
        route = await _chosen_route(run, step, route)
    told = [f"{', '.join(declined)} did not take it"] if declined else []
    told += [f"{', '.join(failed)} failed"] if failed else []
    return msgspec.structs.replace(route, reason="; ".join([*told, route.reason]))


async def _chosen_route(run: Run, step: RoutedStep, names: Sequence[str]) -> Route:
    """Return the agent that a model chooses among those named."""
    means = step.means
    context = Context(run, "router", step.path, means.budget, means.deadline, urgency=means.urgency)
    try:
        return await choose_route(context, step.task, {name: run.agents[name] for name in names})
    finally:
        run.usage.add(context.usage)


async def _run_agent(run: Run, step: RoutedStep, route: Route, turn: StepTurn | None) -> object:
    chosen = RouteChosen(
        run=run.id, step=step.path, agent=route.agent, how=route.how, reason=route.reason, score=route.score
    )
    run.emit(chosen)
    means = step.means
    budget = run.agent_budget(f"step {step.path}", None, means.budget)
    deadline = run.agent_deadline(means.deadline, means.seconds)
    context = Context(run, route.agent, step.path, budget, deadline, urgency=means.urgency)
    return await run.run_agent(context, step.task, means.deadline, turn)
