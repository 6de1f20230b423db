"""What was chosen and what came of it: the rows that everything here learns from. Pure: a store keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from pyagent.core.learning.bandits import Arm
from pyagent.core.learning.objectives import QUALITY, Objective, utility

Source = Literal["vote", "check", "failure", "mark"]
RANKS: dict[Source, int] = {"vote": 0, "check": 1, "failure": 2, "mark": 3}
"""Which reward of a choice stands: one of an equal or higher rank replaces it."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """An arm that a step of a tenant's run took, and what kind of choice it was.

    `state` is what it depended on: the kind of task, and what was tried before. `attempt` counts from 1 within a step.
    """

    tenant: str
    kind: str
    run: str
    step: str
    arm: str
    state: str = ""
    attempt: int = 1


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A choice and what is known of it; None is not known (yet). `judged` numbers rewards in the order they came.

    `then` is what its run chose after it, where choices are learned together and bounds are held (`deciding`).
    """

    run: str
    step: str
    attempt: int = 1
    state: str = ""
    arm: str
    quality: float | None = None
    judged: int = 0
    seconds: float | None = None
    usd: float | None = None
    tokens: float | None = None
    then: str = ""


def rewards_of(outcome: Outcome, objectives: Sequence[Objective]) -> float | None:
    """Return an outcome's reward from 0 to 1 by the objectives; None while one that counts is not known."""
    return utility(metrics_of(outcome), objectives)


def metrics_of(outcome: Outcome) -> dict[str, float]:
    """Return what is known of an outcome, by the metric's name."""
    values = {
        "quality": outcome.quality,
        "seconds": outcome.seconds,
        "usd": outcome.usd,
        "tokens": outcome.tokens,
    }
    return {name: value for name, value in values.items() if value is not None}


def arms_of(rows: Sequence[Outcome], names: Sequence[str], objectives: Sequence[Objective] = QUALITY) -> list[Arm]:
    """Return the arms of these names in their order, those never chosen too."""
    arms = {name: Arm(name) for name in names}
    for row in rows:
        if (arm := arms.get(row.arm)) is None:
            continue
        reward = rewards_of(row, objectives)
        arms[row.arm] = arm.pulled() if reward is None else arm.rewarded(reward)
    return [*arms.values()]


def names_in(rows: Sequence[Outcome]) -> list[str]:
    """Return the arms that were chosen, in alphabetical order."""
    return sorted({row.arm for row in rows})
