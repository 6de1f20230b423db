"""What choosing by outcomes costs and earns: a simulated fleet's regret by each policy, beside a uniform choice.

python benchmarks/learning.py [--runs 2000] [--seeds 10] [--what agents|attempts|prompts|together|bounds|all]

`agents`: each run chooses one of four agents, which do well with chances of their own, and is marked good or bad.
`attempts`: tasks are of two kinds; each agent does well at them with other chances, and one that fails hands the task
to another, three at most; a good end is worth 0.9 to the power of the failures before it. `prompts`: two variants of a
prompt, looked at after each mark: how often a test calls one better, where neither is and where one is. `together`:
each run chooses one of two prompts, of three strategies and of two links, apart or together (`learning.together`); a
combination does well with a chance of its own, from 0.2 to 0.9 at random, or with one that each option adds to.
`bounds`: the best of three agents takes too long, the second best often does, though its mean is within the bound.
Regret is what the choices were worth less than the best ones: the best agent, or the best order of agents for each
kind, found by value iteration; `best fixed` is the best order that is equal for all kinds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations, product
from math import fsum, log
from random import Random
from statistics import fmean
from typing import cast, get_args

from pyagent.core.learning import bandits
from pyagent.core.learning.bandits import Arm, choose
from pyagent.core.learning.deciding import Policy, decide
from pyagent.core.learning.objectives import Objective
from pyagent.core.learning.outcomes import Outcome
from pyagent.core.learning.sequential import ALPHA, always_valid_p
from pyagent.core.learning.values import DISCOUNT, METHODS, Method, Transition, Values, values_by
from pyagent.logic.stats.comparison import welch

CHANCES = (0.45, 0.55, 0.65, 0.75)
BY_KIND = {"math": {"a": 0.8, "b": 0.5, "c": 0.2}, "text": {"a": 0.3, "b": 0.4, "c": 0.7}}
MAX_ATTEMPTS = 3
BANDITS: tuple[bandits.Policy, ...] = get_args(bandits.Policy)
Choose = Callable[[str, Sequence[str], Random], str]
KINDS = (("own", "terse"), ("quick", "reflection", "debate"), ("one", "two"))
Chances = dict[tuple[str, ...], float]
AGENTS = {"good": (0.8, 15.0), "quick": (0.6, 5.0), "slow": (0.9, 30.0)}
"""Chances to do well, and mean seconds, which are spread log-normally."""
MOST_SECONDS, SPREAD = 20.0, 0.6
GOALS = (Objective(metric="quality"), Objective(metric="seconds", weight=0.0, bound=MOST_SECONDS))


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


def depending(seed: int) -> Chances:
    """Return a chance for each combination, which has nothing to do with those of others."""
    random = Random(f"depending {seed}")
    return {options: random.uniform(0.2, 0.9) for options in product(*KINDS)}


def adding(seed: int) -> Chances:
    """Return a chance for each combination, to which each option adds."""
    random = Random(f"adding {seed}")
    added = [{option: random.uniform(0.07, 0.3) for option in options} for options in KINDS]
    return {options: fsum(of[each] for of, each in zip(added, options, strict=True)) for options in product(*KINDS)}


class Learned:
    """One kind of choice: an option by the policy, by what each earned in a state."""

    def __init__(self, policy: Policy | None, seed: str) -> None:
        self._policy = policy
        self._random = Random(seed)
        self._arms: dict[tuple[str, str], Arm] = {}
        self._values = values_by(cast("Method", policy)) if policy in METHODS else None

    def take(self, state: str, options: Sequence[str]) -> str:
        """Return the option to take; without a policy any."""
        if self._policy is None:
            return self._random.choice(options)
        if self._values is not None:
            return self._values.choose(state, options, self._random)
        arms = [self._arms.get((state, option), Arm(option)) for option in options]
        return choose(cast("bandits.Policy", self._policy), arms, self._random).name

    def learn(self, state: str, option: str, reward: float) -> None:
        """Take in what an option earned."""
        if self._values is not None:
            self._values.learn([Transition(state, option, reward)])
        self._arms[state, option] = self._arms.get((state, option), Arm(option)).rewarded(reward)


def combined_losses(
    policy: Policy | None, chances: Chances, num_runs: int, seed: int, *, is_together: bool
) -> list[float]:
    """Return what each of so many runs of three choices lost; together, a choice has those before it as its state."""
    random, best, lost = Random(seed), max(chances.values()), list[float]()
    kinds = [Learned(policy, f"{seed} {number}") for number in range(len(KINDS))]
    for _ in range(num_runs):
        taken: list[str] = []
        states: list[str] = []
        for kind, options in zip(kinds, KINDS, strict=True):
            states.append(" ".join(taken) if is_together else "")
            taken.append(kind.take(states[-1], options))
        lost.append(best - chances[tuple(taken)])
        reward = float(random.random() < chances[tuple(taken)])
        for kind, state, option in zip(kinds, states, taken, strict=True):
            kind.learn(state, option, reward)
    return lost


def bounded_choices(policy: Policy | None, num_runs: int, seed: int) -> list[str]:
    """Return the agents of so many runs, whose mean seconds have a bound; outcomes are decided by as a fleet does."""
    random, rows, taken = Random(seed), list[Outcome](), list[str]()
    for number in range(num_runs):
        own = Random(f"{seed} {number}")
        name = own.choice([*AGENTS]) if policy is None else decide(policy, rows, [*AGENTS], GOALS, own).arm.name
        chance, mean = AGENTS[name]
        seconds = random.lognormvariate(log(mean) - SPREAD**2 / 2, SPREAD)
        quality = float(random.random() < chance)
        rows = [*rows[-499:], Outcome(run=str(number), step="", arm=name, quality=quality, seconds=seconds)]
        taken.append(name)
    return taken


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


def print_together(num_runs: int, num_seeds: int) -> None:
    """Print the regrets of combinations that are learned apart and together, in worlds of both sorts."""
    policies: list[Policy | None] = [None, *BANDITS, *METHODS]
    worlds: list[tuple[str, Callable[[int], Chances]]] = [("depending", depending), ("adding", adding)]
    print(f"three choices at once: {num_runs} runs, mean regret against the best combination of {num_seeds} worlds,")
    print("and in how many of them a run of the last tenth loses more than 0.1")
    print(f"{'policy':<14}" + "".join(f"{f'{name}: {how}':>20}" for name, _ in worlds for how in ("apart", "together")))
    for policy in policies:
        cells: list[str] = []
        for _, world in worlds:
            for is_together in (False, True):
                found = [
                    combined_losses(policy, world(seed), num_runs, seed, is_together=is_together)
                    for seed in range(num_seeds)
                ]
                num_stuck = sum(fmean(losses[-num_runs // 10 :]) > 0.1 for losses in found)
                cells.append(f"{fmean(fsum(losses) for losses in found):.1f} ({num_stuck})")
        print(f"{policy or 'uniform':<14}" + "".join(f"{cell:>20}" for cell in cells))
    print()


def print_bounds(num_runs: int, num_seeds: int) -> None:
    """Print how often each policy takes the best agent that keeps the bound, and the one that breaks it."""
    print(f"a bound of {MOST_SECONDS:g} s: {num_runs} runs, mean of {num_seeds} seeds, shares of the last half")
    print(f"{'policy':<14} {'best in bound':>14} {'over the bound':>15} {'seeds that find it':>19}")
    policies: list[Policy | None] = [None, *BANDITS, *METHODS]
    for policy in policies:
        late = [bounded_choices(policy, num_runs, seed)[num_runs // 2 :] for seed in range(num_seeds)]
        good, slow = (fmean(each.count(name) / len(each) for each in late) for name in ("good", "slow"))
        num_found = sum(each.count("good") > len(each) / 2 for each in late)
        print(f"{policy or 'uniform':<14} {good:>14.0%} {slow:>15.0%} {num_found:>19}")
    print()


def main() -> None:
    """Print a table for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--what", choices=["agents", "attempts", "prompts", "together", "bounds", "all"], default="all")
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
    if given.what in {"together", "all"}:
        print_together(given.runs, 4 * given.seeds)
    if given.what in {"bounds", "all"}:
        print_bounds(given.runs // 5, given.seeds)
    if given.what in {"prompts", "all"}:
        print_prompts(given.seeds)


if __name__ == "__main__":
    main()
