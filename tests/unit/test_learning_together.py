"""Two kinds of choices learned at once by each policy, with a bound, on a simulated fleet; and whole combinations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import get_args

import pytest

from pyagent.core.fleet.learner import chosen_before
from pyagent.core.learning.combinations import combinations
from pyagent.core.learning.deciding import Policy, decide, that_count
from pyagent.core.learning.objectives import Objective
from pyagent.core.learning.outcomes import Choice, Outcome
from pyagent.core.settings.learning import PolicyName

SLOW = ("a", "x")
"""The pair with the most good marks, which takes too long."""
WORLDS = {
    ("b", "y"): {SLOW: 0.95, ("a", "y"): 0.2, ("b", "x"): 0.1, ("b", "y"): 0.8},
    ("a", "y"): {SLOW: 0.95, ("a", "y"): 0.8, ("b", "x"): 0.2, ("b", "y"): 0.3},
}
BOUND = 10.0
GOALS = (Objective(metric="quality"), Objective(metric="seconds", weight=0.0, bound=BOUND))
POLICIES = [name for name in get_args(PolicyName) if name != "off"]
NUM_RUNS = 250


def _taken(policy: Policy, chances: Mapping[tuple[str, str], float], seed: int) -> list[tuple[str, str]]:
    """Return the pairs of a fleet's runs, each marked good by its pair's chance, and as slow as its pair is."""
    random, taken = Random(seed), list[tuple[str, str]]()
    prompts, strategies = list[Outcome](), list[Outcome]()
    for number in range(NUM_RUNS):
        rows = that_count(prompts, [strategies], GOALS)
        prompt = decide(policy, rows, ["a", "b"], GOALS, random, is_by_state=True).arm.name
        state = f"with prompt {prompt}"
        strategy = decide(policy, strategies, ["x", "y"], GOALS, random, state, is_by_state=True).arm.name
        pair = (prompt, strategy)
        quality = float(random.random() < chances[pair])
        seconds = (30.0 if pair == SLOW else 4.0) * random.uniform(0.5, 1.5)
        for of, arm, where in ((prompts, prompt, ""), (strategies, strategy, state)):
            of.append(Outcome(run=f"r{number}", step="s", state=where, arm=arm, quality=quality, seconds=seconds))
        taken.append(pair)
    return taken


@pytest.mark.parametrize("best", WORLDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_finds_the_best_pair_that_keeps_the_bound(policy: Policy, best: tuple[str, str]) -> None:
    """The pair with most good marks is too slow; the best of the others is found, also where it has the same prompt.

    Its regret, over the last half of the runs, is less than half of a uniform choice's.
    """
    chances = WORLDS[best]
    late = _taken(policy, chances, 5)[NUM_RUNS // 2 :]
    assert Counter(late).most_common(1)[0][0] == best
    regret = sum(chances[best] - chances[pair] for pair in late if pair != SLOW)
    uniform = sum(chances[best] - chance for pair, chance in chances.items() if pair != SLOW) / 3 * len(late)
    assert regret < uniform / 2
    assert late.count(SLOW) < len(late) / 8
