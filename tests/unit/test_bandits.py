"""Bandits: their formulas, and that they converge."""

from __future__ import annotations

import math
from random import Random

import pytest

from pyagent.core.learning.bandits import (
    Arm,
    Policy,
    beta_posterior,
    choose,
    normal_gamma_posterior,
    upper_bound,
)


def _arm(name: str, rewards: list[float]) -> Arm:
    arm = Arm(name)
    for reward in rewards:
        arm = arm.rewarded(reward)
    return arm


def test_bound_is_the_papers() -> None:
    """UCB1's bound is the mean plus sqrt(2 ln n / n_j), and infinite for an arm without a reward."""
    arm = _arm("a", [1.0, 0.0, 1.0, 1.0])
    assert upper_bound(arm, 10) == pytest.approx(0.75 + math.sqrt(2 * math.log(10) / 4), rel=1e-15)
    assert upper_bound(Arm("b"), 10) == math.inf


def test_beta_posterior_counts_successes_and_failures() -> None:
    """Three successes and one failure under a uniform prior are Beta(4, 2)."""
    assert beta_posterior(_arm("a", [1.0, 0.0, 1.0, 1.0])) == (4.0, 2.0)


def test_normal_gamma_posterior_equals_one_update_for_each_reward() -> None:
    """The posterior from sums is the one that updating reward by reward gives."""
    rewards = [0.2, 0.9, 0.4, 0.4, 1.0]
    mean, pulls, shape, rate = 0.5, 1.0, 1.0, 0.25
    for reward in rewards:
        rate += pulls * (reward - mean) ** 2 / (2 * (pulls + 1))
        mean, pulls, shape = (pulls * mean + reward) / (pulls + 1), pulls + 1, shape + 0.5
    assert normal_gamma_posterior(_arm("a", rewards)) == pytest.approx((mean, pulls, shape, rate), rel=1e-12)


@pytest.mark.parametrize("policy", ["ucb1", "thompson", "gaussian"])
def test_regret_is_far_below_that_of_a_uniform_choice(policy: Policy) -> None:
    """Over 1,000 pulls of three arms each learner regrets less than half of what a uniform choice does."""
    chances = {"a": 0.3, "b": 0.5, "c": 0.8}
    arms, random, regret = [Arm(name) for name in chances], Random(7), 0.0
    for _ in range(1000):
        arm = choose(policy, arms, random)
        regret += 0.8 - chances[arm.name]
        place = arms.index(arm)
        arms[place] = arm.rewarded(float(random.random() < chances[arm.name]))
    uniform = 1000 * (0.8 - sum(chances.values()) / 3)
    assert regret < uniform / 2


def test_untried_arms_are_taken_least_often_first() -> None:
    """Where no reward is known, UCB1 goes through the arms in turn."""
    arms = [Arm("a", num_pulls=1), Arm("b"), Arm("c")]
    assert choose("ucb1", arms, Random(0)).name == "b"
