"""The choice among agents whose scores are near each other, by what their runs earned before.

Knows neither files nor marks: rewards are a store's business (`infrastructure.storage.outcomes`). A run's reward is
known when somebody marks it, or when its agent fails, which is 0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from pyagent.core.errors import RequestError
from pyagent.core.fleet.router import Route
from pyagent.core.fleet.run import Run
from pyagent.core.fleet.scores import Score
from pyagent.core.learning.bandits import Arm, Choice, Policy, choose

AGENT = "agent"
logger = logging.getLogger(__name__)


class Outcomes(Protocol):
    """What choices earned, by tenant. On disk it is `infrastructure.storage.outcomes`'s business."""

    def arms(self, tenant: str, kind: str, names: Sequence[str]) -> list[Arm]:
        """Return the arms of these names, those never chosen too."""
        ...

    def turn(self, tenant: str, kind: str) -> int:
        """Return the number of the tenant's next choice of this kind, which grows over restarts."""
        ...

    def chosen(self, choice: Choice) -> None:
        """Record that a step of a run chose an arm; its reward is not known yet."""
        ...

    def reward(self, choice: Choice, reward: float) -> None:
        """Record what a step's choice earned, from 0 to 1; instead of what was recorded before."""
        ...


@dataclass(frozen=True, slots=True)
class AgentLearner:
    """Chooses among agents within `margin` of the best score, by a bandit's policy."""

    outcomes: Outcomes
    policy: Policy
    margin: float
    seed: int

    def route(self, run: Run, step: str, scores: Mapping[str, Score | None], route: Route) -> Route:
        """Return the route, or one to another of the agents scored that is near; private runs are not learned from.

        The same history and seed give the same choice. Where outcomes cannot be read, the route stays.
        """
        names = near(scores, route, self.margin)
        if run.is_private or len(names) == 1:
            return route
        try:
            return self._learned(run, step, scores, names)
        except RequestError as error:
            logger.warning("%s gets the task by its score alone: %s", route.agent, error)
            return route

    def _learned(self, run: Run, step: str, scores: Mapping[str, Score | None], names: Sequence[str]) -> Route:
        turn = self.outcomes.turn(run.tenant, AGENT)
        arms = self.outcomes.arms(run.tenant, AGENT, names)
        arm = choose(self.policy, arms, Random(f"{self.seed}/{run.tenant}/{turn}"))  # noqa: S311 - no secret
        self.outcomes.chosen(_choice(run, step, arm.name))
        return Route(arm.name, "learned", reason(self.policy, arm, arms), float(scores[arm.name] or 0.0))

    def failed(self, run: Run, step: str, route: Route) -> None:
        """Record that an agent that was chosen here failed."""
        if route.how == "learned" and not run.is_private:
            try:
                self.outcomes.reward(_choice(run, step, route.agent), 0.0)
            except RequestError as error:
                logger.warning("that %s failed is not learned from: %s", route.agent, error)


def _choice(run: Run, step: str, agent: str) -> Choice:
    return Choice(tenant=run.tenant, kind=AGENT, run=run.id, step=step, arm=agent)


def near(scores: Mapping[str, Score | None], route: Route, margin: float) -> list[str]:
    """Return the agents whose score is at most `margin` below the route's, in the order of the scores."""
    if route.how != "score" or route.score is None:
        return [route.agent]
    least = route.score - margin
    return [name for name, score in scores.items() if score is not None and score > 0 and score >= least]


def reason(policy: Policy, arm: Arm, arms: Sequence[Arm]) -> str:
    """Return why an arm was chosen, for people."""
    among = ", ".join(each.name for each in arms)
    if arm.mean is None:
        return f"learned ({policy}) among {among}: nothing is known of it yet"
    return f"learned ({policy}) among {among}: mean reward {arm.mean:.2f} of {arm.num_rewards}"
