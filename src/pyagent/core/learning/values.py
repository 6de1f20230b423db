"""Values of choices that lead to others: Q-learning, SARSA, double Q, true online SARSA(lambda), actor-critic by GAE.

A run's attempts at a step are an episode: a state is the kind of task and what was tried, an action the agent (or
another arm) that is next, and a failed attempt leads to the state in which it was tried. Tables, as there are few
states. Sources: Watkins and Dayan (1992); Rummery and Niranjan (1994); van Hasselt (2010); van Seijen et al. (2016,
JMLR 17:145) for true online TD(lambda); Schulman et al. (2016, arXiv:1506.02438) for GAE. All chance is in generators
with a seed, so equal episodes in an equal order give equal values.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, Protocol

import msgspec

Method = Literal["q_learning", "sarsa", "double_q", "td_lambda", "actor_critic"]
METHODS: tuple[Method, ...] = ("q_learning", "sarsa", "double_q", "td_lambda", "actor_critic")
DISCOUNT = 0.9
"""What success in the next attempt is worth of success in this one."""
TRACE = 0.8
"""Lambda of traces and of GAE."""
FIRST_VALUE = 1.0
"""Of what was never done: the greatest reward, so that each action is tried once."""
_STEP_POWER = 0.8
"""The nth update of a value is by n to the power of minus this, which converges (Even-Dar and Mansour, 2003)."""
_WIDTH = 0.5
"""Of an upper bound: the most that a reward from 0 to 1 can deviate."""
_ACTOR_STEP, _CRITIC_STEP = 0.4, 0.1
_COIN_SEED = 20_100
StepSize = Callable[[int], float]


class Transition(msgspec.Struct, frozen=True):
    """An action in a state and its reward. The next one of the episode has the state that it led to."""

    state: str
    action: str
    reward: float


Episode = Sequence[Transition]
"""Transitions in their order; the last one ended it."""


class Values(Protocol):
    """What was learned of actions in states."""

    def learn(self, episode: Episode) -> None:
        """Take in an episode that is over."""
        ...

    def value(self, state: str, action: str) -> float:
        """Return what an action in a state is worth; an actor's probability of it."""
        ...

    def choose(self, state: str, actions: Sequence[str], random: Random) -> str:
        """Return the action to take now."""
        ...


def decaying(num_updates: int) -> float:
    """Return the step size of a value's nth update, from 1."""
    return num_updates**-_STEP_POWER


class ActionValues:
    """Values of actions by one of the four methods that bootstrap from values.

    The action with the highest upper bound is taken: its value and `_WIDTH` times sqrt(ln n / n_a), of a state that was
    met n times and an action that was taken n_a times there, as in UCB1-tuned and in UCT (Kocsis and Szepesvari, 2006).
    """

    def __init__(
        self,
        method: Literal["q_learning", "sarsa", "double_q", "td_lambda"],
        *,
        discount: float = DISCOUNT,
        step_size: StepSize = decaying,
    ) -> None:
        self._method = method
        self._discount = discount
        self._step_size = step_size
        self._tables: tuple[defaultdict[str, dict[str, float]], ...] = tuple(
            defaultdict[str, dict[str, float]](dict) for _ in range(2 if method == "double_q" else 1)
        )
        self._num_updates = Counter[tuple[int, str, str]]()
        self._num_met = Counter[str]()
        self._num_taken = Counter[tuple[str, str]]()
        self._coin = Random(_COIN_SEED)  # noqa: S311 - no secret

    def learn(self, episode: Episode) -> None:
        """Take in an episode that is over."""
        self._num_met.update(each.state for each in episode)
        self._num_taken.update((each.state, each.action) for each in episode)
        if self._method == "td_lambda":
            self._learn_by_traces(episode)
            return
        for place, each in enumerate(episode):
            self._update(each, episode[place + 1] if place + 1 < len(episode) else None)

    def value(self, state: str, action: str) -> float:
        """Return what an action in a state is worth: of two tables the mean."""
        found = [table[state].get(action, FIRST_VALUE) for table in self._tables]
        return sum(found) / len(found)

    def choose(self, state: str, actions: Sequence[str], random: Random) -> str:
        """Return the action with the highest upper bound; of those never taken any."""
        untried = [action for action in actions if not self._num_taken[state, action]]
        if untried:
            return random.choice(untried)
        return max(actions, key=lambda action: self._upper_bound(state, action))

    def _upper_bound(self, state: str, action: str) -> float:
        num_taken = self._num_taken[state, action]
        return self.value(state, action) + _WIDTH * math.sqrt(math.log(self._num_met[state]) / num_taken)

    def _update(self, now: Transition, then: Transition | None) -> None:
        own = self._coin.randrange(2) if self._method == "double_q" else 0
        table = self._tables[own]
        target = now.reward + (0.0 if then is None else self._discount * self._next_value(own, then))
        before = table[now.state].get(now.action, FIRST_VALUE)
        table[now.state][now.action] = before + self._step(own, now) * (target - before)

    def _next_value(self, own: int, then: Transition) -> float:
        """Return what the next state is worth by the method; unknown actions there do not count."""
        known = {**self._tables[own][then.state]}
        known.setdefault(then.action, FIRST_VALUE)
        if self._method == "sarsa":
            return known[then.action]
        best = max(known, key=lambda action: known[action])
        return known[best] if self._method == "q_learning" else self._tables[1 - own][then.state].get(best, FIRST_VALUE)

    def _step(self, own: int, now: Transition) -> float:
        self._num_updates[own, now.state, now.action] += 1
        return self._step_size(self._num_updates[own, now.state, now.action])

    def _learn_by_traces(self, episode: Episode) -> None:
        """Run true online SARSA(lambda) with dutch traces over an episode (van Seijen et al. 2016, algorithm 2)."""
        table, value_before = self._tables[0], 0.0
        traces, steps = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
        for place, now in enumerate(episode):
            then = episode[place + 1] if place + 1 < len(episode) else None
            key, step = (now.state, now.action), self._step(0, now)
            steps[key] = step
            value = table[now.state].setdefault(now.action, FIRST_VALUE)
            after = 0.0 if then is None else table[then.state].get(then.action, FIRST_VALUE)
            error = now.reward + self._discount * after - value
            decay = self._discount * TRACE
            own_trace = traces.get(key, 0.0)
            traces = {each: decay * trace for each, trace in traces.items()}
            traces[key] = traces.get(key, 0.0) + 1 - step * decay * own_trace
            for (state, action), trace in traces.items():
                table[state][action] += steps[state, action] * (error + value - value_before) * trace
            table[now.state][now.action] -= step * (value - value_before)
            value_before = after


def advantages(rewards: Sequence[float], values: Sequence[float], discount: float, trace: float) -> list[float]:
    """Return the generalised advantage estimates of an episode's steps (Schulman et al. 2016, equation 16).

    `values` has one more entry than `rewards`: that of the state after the last step, 0 where the episode ended.
    """
    found, ahead = list[float](), 0.0
    for place in reversed(range(len(rewards))):
        error = rewards[place] + discount * values[place + 1] - values[place]
        ahead = error + discount * trace * ahead
        found.append(ahead)
    return found[::-1]


class ActorCritic:
    """Chooses by a softmax of preferences, which rise with the advantage of what was done; the critic values states."""

    def __init__(self) -> None:
        self._preferences: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._values: defaultdict[str, float] = defaultdict(float)

    def learn(self, episode: Episode) -> None:
        """Move preferences and values by the advantages of an episode."""
        values = [self._values[each.state] for each in episode] + [0.0]
        found = advantages([each.reward for each in episode], values, DISCOUNT, TRACE)
        for each, advantage in zip(episode, found, strict=True):
            self._values[each.state] += _CRITIC_STEP * advantage
            known = self._preferences[each.state]
            known.setdefault(each.action, 0.0)
            for action, share in zip(known, _softmax([*known.values()]), strict=True):
                known[action] += _ACTOR_STEP * advantage * ((action == each.action) - share)

    def value(self, state: str, action: str) -> float:
        """Return the probability of an action among those that were taken in the state; 0 for another."""
        known = self._preferences[state]
        return dict(zip(known, _softmax([*known.values()]), strict=True)).get(action, 0.0)

    def choose(self, state: str, actions: Sequence[str], random: Random) -> str:
        """Return an action by its probability."""
        known = self._preferences[state]
        shares = _softmax([known.get(action, 0.0) for action in actions])
        return random.choices(actions, shares)[0]


def _softmax(preferences: Sequence[float]) -> list[float]:
    top = max(preferences, default=0.0)
    weights = [math.exp(each - top) for each in preferences]
    return [weight / sum(weights) for weight in weights]


def values_by(method: Method) -> Values:
    """Return values that have learned nothing yet."""
    return ActorCritic() if method == "actor_critic" else ActionValues(method)
