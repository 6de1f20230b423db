"""The choice among agents whose scores of a task are near each other, by what their runs earned before."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.fleet.learner import AGENT
from pyagent.core.fleet.router import Route
from pyagent.core.fleet.scores import Score
from pyagent.core.learning.outcomes import Choice

if TYPE_CHECKING:
    from pyagent.core.fleet.run import Run


def learned_route(
    run: Run, step: str, scores: Mapping[str, Score | None], route: Route, tried: Collection[str]
) -> Route:
    """Return the route, or one to another of the agents scored that is near and was not tried; private runs keep it.

    The same history and seed give the same choice. Where outcomes cannot be read, the route stays.
    """
    learner = run.learner
    if learner is None or run.is_private:
        return route
    names = near({name: score for name, score in scores.items() if name not in tried}, route, learner.rules.margin)
    choice = Choice(
        tenant=run.tenant,
        kind=AGENT,
        run=run.id,
        step=step,
        arm="",
        state=situation_of(scores, tried),
        attempt=len(tried) + 1,
    )
    decision = learner.decision(choice, names)
    if decision is None:
        if tried:
            learner.took(msgspec.structs.replace(choice, arm=route.agent))
        return route
    return Route(decision.arm.name, "learned", decision.reason, float(scores[decision.arm.name] or 0.0))


def situation_of(scores: Mapping[str, Score | None], tried: Collection[str]) -> str:
    """Return what the choice of an agent depends on: whose kind of task it is by the scores, and who tried it."""
    kind = max(scores, key=lambda name: scores[name] or 0.0, default="")
    return f"{kind} after {', '.join(sorted(tried))}" if tried else kind


def near(scores: Mapping[str, Score | None], route: Route, margin: float) -> list[str]:
    """Return the agents whose score is at most `margin` below the route's, in the order of the scores."""
    if route.how != "score" or route.score is None:
        return [route.agent]
    least = route.score - margin
    return [name for name, score in scores.items() if score is not None and score > 0 and score >= least]
