"""Which of several arms to choose next, from what each has earned: UCB1, and Thompson sampling by two posteriors.

UCB1 is Auer, Cesa-Bianchi and Fischer (2002), figure 1; the posteriors are the Beta-Bernoulli one (Thompson, 1933),
and the normal-gamma one of rewards whose mean and variance are both unknown. Rewards are from 0 to 1. Pure: all
chance is in the generator that is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Literal

import msgspec

Policy = Literal["ucb1", "thompson", "gaussian"]
_PRIOR_MEAN, _PRIOR_PULLS, _PRIOR_SHAPE, _PRIOR_RATE = 0.5, 1.0, 1.0, 0.25
"""Of the normal-gamma prior: one pull's worth of a mean of 0.5 and a variance of about 0.25."""


class Arm(msgspec.Struct, frozen=True):
    """A choice, how often it was taken, and the rewards that are known of it."""

    name: str
    num_pulls: int = 0
    num_rewards: int = 0
    sum: float = 0.0
    sum_squares: float = 0.0

    @property
    def mean(self) -> float | None:
        """The mean reward; None before the first."""
        return self.sum / self.num_rewards if self.num_rewards else None

    def pulled(self) -> Arm:
        """Return the arm after one more pull whose reward is not known."""
        return msgspec.structs.replace(self, num_pulls=self.num_pulls + 1)

    def rewarded(self, reward: float) -> Arm:
        """Return the arm after one more pull with this reward."""
        return Arm(
            self.name,
            self.num_pulls + 1,
            self.num_rewards + 1,
            self.sum + reward,
            self.sum_squares + reward * reward,
        )


def upper_bound(arm: Arm, num_rewards: int) -> float:
    """Return UCB1's bound of an arm's mean, where all arms have so many rewards; infinite for an arm without one."""
    if not arm.num_rewards:
        return math.inf
    return arm.sum / arm.num_rewards + math.sqrt(2 * math.log(num_rewards) / arm.num_rewards)


def beta_posterior(arm: Arm) -> tuple[float, float]:
    """Return alpha and beta of the Beta posterior under a uniform prior; a reward of 0.7 is 0.7 of a success."""
    return 1 + arm.sum, 1 + arm.num_rewards - arm.sum


def normal_gamma_posterior(arm: Arm) -> tuple[float, float, float, float]:
    """Return mean, pulls, shape and rate of the posterior of a normal reward's mean and precision."""
    n = arm.num_rewards
    mean = arm.sum / n if n else 0.0
    squares = max(0.0, arm.sum_squares - n * mean * mean)
    pulls = _PRIOR_PULLS + n
    off = _PRIOR_PULLS * n * (mean - _PRIOR_MEAN) ** 2 / (2 * pulls)
    return (_PRIOR_PULLS * _PRIOR_MEAN + arm.sum) / pulls, pulls, _PRIOR_SHAPE + n / 2, _PRIOR_RATE + squares / 2 + off


def values(policy: Policy, arms: Sequence[Arm], random: Random) -> list[float]:
    """Return each arm's value by the policy: a bound, or a sample of what its mean may be. The highest is chosen."""
    total = sum(arm.num_rewards for arm in arms)
    if policy == "ucb1":
        return [upper_bound(arm, total) for arm in arms]
    sample = _beta_sample if policy == "thompson" else _normal_gamma_sample
    return [sample(arm, random) for arm in arms]


def choose(policy: Policy, arms: Sequence[Arm], random: Random) -> Arm:
    """Return the arm to take now. Of equal values the one taken least often wins, then the first."""
    found = values(policy, arms, random)
    best = max(range(len(arms)), key=lambda place: (found[place], -arms[place].num_pulls, -place))
    return arms[best]


def _beta_sample(arm: Arm, random: Random) -> float:
    return random.betavariate(*beta_posterior(arm))


def _normal_gamma_sample(arm: Arm, random: Random) -> float:
    mean, pulls, shape, rate = normal_gamma_posterior(arm)
    precision = random.gammavariate(shape, 1 / rate)
    return random.gauss(mean, 1 / math.sqrt(pulls * precision))
