"""What choosing by marks costs and earns: a simulated fleet's regret by each policy, beside a uniform choice.

python benchmarks/learning.py [--runs 2000] [--seeds 20]

Each run chooses one of four agents, which do well with chances of their own, and is marked good or bad. Regret is how
many good runs fewer there were to expect than with the best agent always.
"""

from __future__ import annotations

import argparse
from random import Random
from statistics import fmean

from pyagent.core.learning.bandits import Arm, Policy, choose

CHANCES = (0.45, 0.55, 0.65, 0.75)
POLICIES: tuple[Policy, ...] = ("ucb1", "thompson", "gaussian")


def regret(policy: Policy | None, num_runs: int, seed: int) -> float:
    """Return the expected regret of so many runs; without a policy agents are chosen uniformly."""
    arms, random, lost = [Arm(str(place)) for place in range(len(CHANCES))], Random(seed), 0.0
    for _ in range(num_runs):
        arm = random.choice(arms) if policy is None else choose(policy, arms, random)
        place = int(arm.name)
        lost += max(CHANCES) - CHANCES[place]
        arms[place] = arm.rewarded(float(random.random() < CHANCES[place]))
    return lost


def main() -> None:
    """Print a row for each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    print(f"{given.runs} runs, mean of {given.seeds} seeds\n{'policy':<10} {'regret':>8} {'of uniform':>11}")
    uniform = fmean(regret(None, given.runs, seed) for seed in range(given.seeds))
    print(f"{'uniform':<10} {uniform:>8.1f} {1:>11.0%}")
    for policy in POLICIES:
        lost = fmean(regret(policy, given.runs, seed) for seed in range(given.seeds))
        print(f"{policy:<10} {lost:>8.1f} {lost / uniform:>11.0%}")


if __name__ == "__main__":
    main()
