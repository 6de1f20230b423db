"""Which arm to take now, from the outcomes of a tenant's choices of one kind: by a bandit, or by values of states.

Everything is computed anew from the outcomes, in their order: equal outcomes and an equal seed decide alike, also after
a restart. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import fmean
from typing import cast

import msgspec

from pyagent.core.learning import bandits
from pyagent.core.learning.bandits import Arm
from pyagent.core.learning.objectives import Objective, broken_bounds, pareto_front
from pyagent.core.learning.outcomes import Outcome, arms_of, metrics_of, names_in, rewards_of
from pyagent.core.learning.values import METHODS, Episode, Method, Transition, Values, values_by

Policy = bandits.Policy | Method


class Decision(msgspec.Struct, frozen=True):
    """The arm taken, among which, and why others were not."""

    policy: Policy
    arm: Arm
    arms: tuple[Arm, ...]
    out: Mapping[str, str]
    value: float | None = None

    @property
    def reason(self) -> str:
        """Why it was taken, for people."""
        among = ", ".join(each.name for each in self.arms)
        known = (
            "nothing is known of it yet"
            if self.arm.mean is None
            else f"mean reward {self.arm.mean:.2f} of {self.arm.num_rewards}"
        )
        value = "" if self.value is None else f", value {self.value:.2f} here"
        out = "".join(f"; not {name}: {why}" for name, why in self.out.items())
        return f"learned ({self.policy}) among {among}: {known}{value}{out}"


def decide(  # noqa: PLR0913, PLR0917 - what a decision depends on
    policy: Policy,
    rows: Sequence[Outcome],
    names: Sequence[str],
    objectives: Sequence[Objective],
    random: Random,
    state: str = "",
    *,
    is_by_state: bool = False,
) -> Decision:
    """Return the arm to take of these names, one at least, in a state.

    Bandits know no state and bounds hold over all of them, unless it goes `is_by_state`: then outcomes of other states
    count for neither.
    """
    return decider(policy, rows, names, objectives, state, is_by_state=is_by_state)(random)


def decider(  # noqa: PLR0913 - what a decision depends on
    policy: Policy,
    rows: Sequence[Outcome],
    names: Sequence[str],
    objectives: Sequence[Objective],
    state: str,
    *,
    is_by_state: bool = False,
) -> Callable[[Random], Decision]:
    """Return what decides by these outcomes, for each generator it is given."""
    here = rows_in(rows, state) if is_by_state else rows
    out = breaking(here, names, objectives)
    left = [name for name in names if name not in out]
    arms = {arm.name: arm for arm in arms_of(here, left, objectives)}
    among = tuple(arms.values())
    if policy not in METHODS:
        bandit = cast("bandits.Policy", policy)
        return lambda random: Decision(policy, bandits.choose(bandit, among, random), among, out)
    values = learned(policy, rows, objectives)

    def by_values(random: Random) -> Decision:
        action = values.choose(state, left, random)
        return Decision(policy, arms[action], among, out, values.value(state, action))

    return by_values


def rows_in(rows: Sequence[Outcome], state: str) -> list[Outcome]:
    """Return the outcomes of choices in a state."""
    return [row for row in rows if row.state == state]


def breaking(rows: Sequence[Outcome], names: Sequence[str], objectives: Sequence[Objective]) -> dict[str, str]:
    """Return the arms that break a bound, with it; none where all of them do.

    One that led to several other choices breaks it where it does with each of them.
    """
    out: dict[str, str] = {}
    for name in names:
        ways = {row.then for row in rows if row.arm == name}
        broken = [
            broken_bounds(values_of([row for row in rows if row.then == way], name), len(rows), objectives)
            for way in ways
        ]
        if broken and all(broken):
            means = means_of(rows, name)
            out[name] = ", ".join(f"mean {metric} {means[metric]:.3g}" for metric in broken[0])
    return out if len(out) < len(names) else {}


def that_count(
    rows: Sequence[Outcome], after: Sequence[Sequence[Outcome]], objectives: Sequence[Objective]
) -> list[Outcome]:
    """Return the outcomes of a kind of choice with what the runs chose then, by the kinds that may depend on it.

    A run that took what a bound rules out now is left out: it is not gone on like that any more. `after` has each
    kind's outcomes, a kind that depends on another after that.
    """
    out: set[str] = set()
    then: defaultdict[str, str] = defaultdict(str)
    for kind in reversed(after):
        names = names_in(kind)  # of all states: what was never taken in one keeps its bounds
        left = [msgspec.structs.replace(row, then=then[row.run]) for row in kind if row.run not in out]
        for state in {row.state for row in left}:
            here = rows_in(left, state)
            broken = breaking(here, names, objectives)
            out |= {row.run for row in here if row.arm in broken}
        for row in kind:
            then[row.run] += f"{row.arm},"
    return [msgspec.structs.replace(row, then=then[row.run]) for row in rows if row.run not in out]


def values_of(rows: Sequence[Outcome], name: str) -> dict[str, list[float]]:
    """Return what is known of an arm, by metric."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.arm == name:
            for metric, value in metrics_of(row).items():
                values[metric].append(value)
    return dict(values)


def means_of(rows: Sequence[Outcome], name: str) -> dict[str, float]:
    """Return an arm's mean of each metric that is known of it."""
    return {metric: fmean(found) for metric, found in values_of(rows, name).items()}


def front(rows: Sequence[Outcome], names: Sequence[str], objectives: Sequence[Objective]) -> list[str]:
    """Return the arms on the Pareto front of their means."""
    return pareto_front({name: means_of(rows, name) for name in names}, objectives)


def learned(method: Method, rows: Sequence[Outcome], objectives: Sequence[Objective]) -> Values:
    """Return the values after all episodes of the outcomes, in their order."""
    values = values_by(method)
    for episode in episodes_of(rows, objectives):
        values.learn(episode)
    return values


def episodes_of(rows: Sequence[Outcome], objectives: Sequence[Objective]) -> list[Episode]:
    """Return the attempts of each step of each run, as far as their rewards are known."""
    steps: dict[tuple[str, str], list[Outcome]] = {}
    for row in rows:
        steps.setdefault((row.run, row.step), []).append(row)
    episodes: list[Episode] = []
    for attempts in steps.values():
        episode: list[Transition] = []
        for row in sorted(attempts, key=lambda each: each.attempt):
            reward = rewards_of(row, objectives)
            if reward is None:
                break
            episode.append(Transition(row.state, row.arm, reward))
        if episode:
            episodes.append(episode)
    return episodes
