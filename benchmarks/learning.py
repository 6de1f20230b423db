"""What choosing by outcomes costs and earns: a simulated fleet's regret by each policy, beside a uniform choice.

python benchmarks/learning.py [--runs 2000] [--seeds 10] [--what agents|attempts|prompts|all]

`agents`: each run chooses one of four agents, which do well with chances of their own, and is marked good or bad.
`attempts`: tasks are of two kinds; each agent does well at them with other chances, and one that fails hands the task
to another, three at most; a good end is worth 0.9 to the power of the failures before it. `prompts`: two variants of a
prompt, looked at after each mark: how often a test calls one better, where neither is and where one is.
Regret is what the choices were worth less than the best ones: the best agent, or the best order of agents for each
kind, found by value iteration; `best fixed` is the best order that is equal for all kinds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations
from random import Random
from statistics import fmean
from typing import cast, get_args

from pyagent.core.learning import bandits
from pyagent.core.learning.bandits import Arm, choose
from pyagent.core.learning.deciding import Policy
from pyagent.core.learning.sequential import ALPHA, always_valid_p
from pyagent.core.learning.values import DISCOUNT, METHODS, Method, Transition, Values, values_by
from pyagent.logic.stats.comparison import welch

CHANCES = (0.45, 0.55, 0.65, 0.75)
BY_KIND = {"math": {"a": 0.8, "b": 0.5, "c": 0.2}, "text": {"a": 0.3, "b": 0.4, "c": 0.7}}
MAX_ATTEMPTS = 3
BANDITS: tuple[bandits.Policy, ...] = get_args(bandits.Policy)
Choose = Callable[[str, Sequence[str], Random], str]


def agents_regret(policy: Policy | None, num_runs: int, seed: int) -> float:
    """Return the expected regret of so many runs of one choice; without a policy agents are chosen uniformly."""
    random, lost = Random(seed), 0.0
    arms = [Arm(str(place)) for place in range(len(CHANCES))]
    values = values_by(cast("Method", policy)) if policy in METHODS else None
    names = [arm.name for arm in arms]
    for _ in range(num_runs):
        if values is not None:
            place = names.index(values.choose("", names, random))
        elif policy is None:
            place = random.randrange(len(arms))
        else:
            place = names.index(choose(cast("bandits.Policy", policy), arms, random).name)
        reward = float(random.random() < CHANCES[place])
        lost += max(CHANCES) - CHANCES[place]
        arms[place] = arms[place].rewarded(reward)
        if values is not None:
            values.learn([Transition("", names[place], reward)])
    return lost


@cache
def worth(kind: str, tried: frozenset[str]) -> float:
    """Return what there is to earn by the best agents from here: value iteration, which ends after the attempts."""
    left = [agent for agent in BY_KIND[kind] if agent not in tried]
    if not left or len(tried) >= MAX_ATTEMPTS:
        return 0.0
    return max(action_worth(kind, tried, agent) for agent in left)


def action_worth(kind: str, tried: frozenset[str], agent: str) -> float:
    """Return what there is to earn when this agent is next, and the best ones follow."""
    chance = BY_KIND[kind][agent]
    return chance + (1 - chance) * DISCOUNT * worth(kind, tried | {agent})


def fixed_worth(order: Sequence[str]) -> float:
    """Return the mean worth of an order of agents that is equal for all kinds."""

    def of(kind: str, left: Sequence[str]) -> float:
        if not left:
            return 0.0
        chance = BY_KIND[kind][left[0]]
        return chance + (1 - chance) * DISCOUNT * of(kind, left[1:])

    return fmean(of(kind, order[:MAX_ATTEMPTS]) for kind in BY_KIND)


def episode(kind: str, take: Choose, random: Random) -> tuple[list[Transition], float]:
    """Return the attempts of one task, and what its choices were worth less than the best ones."""
    tried: list[str] = []
    steps: list[Transition] = []
    lost = 0.0
    while len(tried) < MAX_ATTEMPTS:
        state = f"{kind} after {', '.join(sorted(tried))}"
        agent = take(state, [name for name in BY_KIND[kind] if name not in tried], random)
        best, own = worth(kind, frozenset(tried)), action_worth(kind, frozenset(tried), agent)
        lost += DISCOUNT ** len(tried) * (best - own)
        is_good = random.random() < BY_KIND[kind][agent]
        steps.append(Transition(state, agent, float(is_good)))
        if is_good:
            return steps, lost
        tried.append(agent)
    return steps, lost


def attempts_regret(method: Method | None, num_runs: int, seed: int) -> float:
    """Return the regret of so many tasks against the best order for each kind; without a method of a uniform choice."""
    random, lost = Random(seed), 0.0
    values: Values | None = None if method is None else values_by(method)

    def uniform(_: str, names: Sequence[str], random: Random) -> str:
        return random.choice(names)

    take = uniform if values is None else values.choose
    for _ in range(num_runs):
        kind = random.choice([*BY_KIND])
        steps, regret = episode(kind, take, random)
        lost += regret
        if values is not None:
            values.learn(steps)
    return lost


def called_better(chances: tuple[float, float], num_pairs: int, seed: int) -> tuple[bool, bool, int]:
    """Return whether Welch's t-test and the always-valid one ever call one better, and after how many pairs the latter.

    Both are looked at after each pair, Welch's from the tenth on.
    """
    random = Random(seed)
    one: list[float] = []
    other: list[float] = []
    by_welch = False
    for number in range(1, num_pairs + 1):
        one.append(float(random.random() < chances[0]))
        other.append(float(random.random() < chances[1]))
        if not by_welch and number >= 10:
            compared = welch(one, other)
            by_welch = compared is not None and compared.p <= ALPHA
    differences = [a - b for a, b in zip(one, other, strict=True)]
    low, high = 1, num_pairs + 1
    while low < high:  # the p-value only falls, so that the first length at which it is low is found by halving
        middle = (low + high) // 2
        low, high = (low, middle) if always_valid_p(differences[:middle]) <= ALPHA else (middle + 1, high)
    return by_welch, low <= num_pairs, low


def print_rows(title: str, regrets: dict[str, float]) -> None:
    """Print a table of regrets beside the uniform one."""
    print(f"{title}\n{'policy':<14} {'regret':>8} {'of uniform':>11}")
    for name, lost in regrets.items():
        print(f"{name:<14} {lost:>8.1f} {lost / regrets['uniform']:>11.0%}")
    print()


def print_prompts(num_seeds: int) -> None:
    """Print how often each test calls a variant better."""
    num_tests, num_pairs = 20 * num_seeds, 400
    print(f"{num_tests} tests of two prompts, {num_pairs} pairs of marks, looked at after each")
    print(f"{'chances':<14} {'Welch, peeking':>15} {'always valid':>13} {'pairs until then':>17}")
    for chances in ((0.5, 0.5), (0.5, 0.6), (0.5, 0.7)):
        found = [called_better(chances, num_pairs, seed) for seed in range(num_tests)]
        lengths = sorted(length for _, is_valid, length in found if is_valid)
        median = lengths[len(lengths) // 2] if lengths else 0
        rates = [fmean(each[place] for each in found) for place in (0, 1)]
        print(f"{chances[0]:.1f} and {chances[1]:.1f}    {rates[0]:>15.1%} {rates[1]:>13.1%} {median:>17}")


def main() -> None:
    """Print a table for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--what", choices=["agents", "attempts", "prompts", "all"], default="all")
    given = parser.parse_args()
    seeds = range(given.seeds)
    if given.what in {"agents", "all"}:
        policies: list[Policy | None] = [None, *BANDITS, *METHODS]
        print_rows(
            f"one choice: {given.runs} runs, mean of {given.seeds} seeds",
            {each or "uniform": fmean(agents_regret(each, given.runs, seed) for seed in seeds) for each in policies},
        )
    if given.what in {"attempts", "all"}:
        best = fmean(worth(kind, frozenset()) for kind in BY_KIND)
        fixed = max(fixed_worth(order) for order in permutations(next(iter(BY_KIND.values()))))
        regrets = {"best fixed": given.runs * (best - fixed)}
        methods: list[Method | None] = [None, *METHODS]
        for each in methods:
            regrets[each or "uniform"] = fmean(attempts_regret(each, given.runs, seed) for seed in seeds)
        print_rows(f"attempts: {given.runs} tasks of two kinds, mean of {given.seeds} seeds", regrets)
    if given.what in {"prompts", "all"}:
        print_prompts(given.seeds)


if __name__ == "__main__":
    main()
