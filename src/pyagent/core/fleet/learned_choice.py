"""The choice among agents whose scores of a task are near each other, by what their runs earned before."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.fleet.learner import AGENT, LearningRules
from pyagent.core.fleet.router import Route
from pyagent.core.fleet.scores import Score
from pyagent.core.learning.outcomes import Choice

if TYPE_CHECKING:
    from pyagent.core.fleet.run import Run

_FINAL = frozenset({"person", "only"})


def learned_route(
    run: Run, step: str, scores: Mapping[str, Score | None], route: Route, tried: Collection[str]
) -> Route:
    """Return the route, or one to another of the agents scored that is near and was not tried; private runs keep it.

    The same history and seed give the same choice. Where outcomes cannot be read, the route stays.
    """
    learner = run.learner
    if learner is None or run.is_private:
        return route
    names = near({name: score for name, score in scores.items() if name not in tried}, route, learner.rules)
    choice = Choice(
        tenant=run.tenant,
        kind=AGENT,
        run=run.id,
        step=step,
        arm="",
        state=situation_of(scores, tried, route),
        attempt=len(tried) + 1,
    )
    decision = learner.decision(choice, names)
    if decision is None:
        if tried:
            learner.took(msgspec.structs.replace(choice, arm=route.agent))
        return route
    score = scores[decision.arm.name]
    return Route(decision.arm.name, "learned", decision.reason, None if score is None else float(score))


def situation_of(scores: Mapping[str, Score | None], tried: Collection[str], route: Route) -> str:
    """Return what the choice of an agent depends on: whose kind of task it is, and who tried it.

    The kind is the agent with the highest score, or that the router found where no agent has a score.
    """
    is_scored = any(scores.values())
    kind = max(scores, key=lambda name: scores[name] or 0.0, default="") if is_scored else route.agent
    return f"{kind} after {', '.join(sorted(tried))}" if tried else kind


def near(scores: Mapping[str, Score | None], route: Route, rules: LearningRules) -> list[str]:
    """Return the agents that may take what the route's may, in the order of the scores.

    These are the ones whose score is at most `margin` below the route's, and where it is to one of `agents`, those: all
    but the ones that plainly say no. An agent that a person chose is the only one.
    """
    if route.how in _FINAL:
        return [route.agent]
    least = math.inf if route.how != "score" or route.score is None else route.score - rules.margin
    alike = rules.agents if route.agent in rules.agents else ()
    return [
        name
        for name, score in scores.items()
        if (name in alike and score != 0) or name == route.agent or (score is not None and score > 0 and score >= least)
    ]
