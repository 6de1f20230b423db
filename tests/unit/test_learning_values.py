"""Values of states: each method against value iteration or its formula, and that it converges on a simulated fleet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from random import Random

import pytest

from pyagent.core.learning.deciding import decide, episodes_of, learned
from pyagent.core.learning.objectives import QUALITY
from pyagent.core.learning.outcomes import Outcome
from pyagent.core.learning.values import (
    DISCOUNT,
    FIRST_VALUE,
    METHODS,
    TRACE,
    ActionValues,
    Method,
    Transition,
    Values,
    advantages,
    values_by,
)

CHANCES = {"a": 0.2, "b": 0.8, "c": 0.5}


def _state(tried: Sequence[str]) -> str:
    return f"task after {', '.join(sorted(tried))}"


@cache
def _worth(tried: frozenset[str]) -> float:
    """Return what a state is worth by value iteration, which is exact here: tasks end after three attempts."""
    return max((_action_worth(tried, each) for each in CHANCES if each not in tried), default=0.0)


def _action_worth(tried: frozenset[str], agent: str) -> float:
    return CHANCES[agent] + (1 - CHANCES[agent]) * DISCOUNT * _worth(tried | {agent})


def _play(values: Values, random: Random, *, is_uniform: bool) -> tuple[list[Transition], float]:
    """Return an episode and its expected regret."""
    tried: list[str] = []
    steps: list[Transition] = []
    lost = 0.0
    while len(tried) < len(CHANCES):
        left = [each for each in CHANCES if each not in tried]
        agent = random.choice(left) if is_uniform else values.choose(_state(tried), left, random)
        lost += DISCOUNT ** len(tried) * (_worth(frozenset(tried)) - _action_worth(frozenset(tried), agent))
        is_good = random.random() < CHANCES[agent]
        steps.append(Transition(_state(tried), agent, float(is_good)))
        if is_good:
            break
        tried.append(agent)
    return steps, lost


@pytest.mark.parametrize("method", ["q_learning", "double_q"])
def test_values_of_states_are_those_of_value_iteration(method: Method) -> None:
    """Off the policy, from uniform attempts, each action's value comes within 0.05 of the exact one."""
    values, random = values_by(method), Random(11)
    for _ in range(8_000):
        values.learn(_play(values, random, is_uniform=True)[0])
    for agent in CHANCES:
        assert values.value(_state([]), agent) == pytest.approx(_action_worth(frozenset(), agent), abs=0.05)
    assert values.value(_state(["b", "c"]), "a") == pytest.approx(CHANCES["a"], abs=0.05)


@pytest.mark.parametrize("method", ["sarsa", "td_lambda"])
def test_values_on_the_policy_near_those_of_the_best_one(method: Method) -> None:
    """As the best actions are taken more and more, the first one's value comes near the exact one."""
    values, random = values_by(method), Random(5)
    for _ in range(8_000):
        values.learn(_play(values, random, is_uniform=False)[0])
    assert values.value(_state([]), "b") == pytest.approx(_worth(frozenset()), abs=0.05)
    assert max(CHANCES, key=lambda agent: values.value(_state([]), agent)) == "b"


@pytest.mark.parametrize("method", METHODS)
def test_regret_of_attempts_is_below_that_of_a_uniform_choice(method: Method) -> None:
    """Over 1,500 tasks each method regrets less than six tenths of what a uniform order of agents does."""
    values, random, lost, uniform = values_by(method), Random(3), 0.0, 0.0
    for _ in range(1_500):
        uniform += _play(values, random, is_uniform=True)[1]
        steps, regret = _play(values, random, is_uniform=False)
        lost += regret
        values.learn(steps)
    assert lost < 0.6 * uniform


def test_actor_comes_to_prefer_the_best_action() -> None:
    """After 3,000 tasks the actor begins with the best agent in most of them, and its shares are probabilities."""
    values, random = values_by("actor_critic"), Random(2)
    for _ in range(3_000):
        values.learn(_play(values, random, is_uniform=False)[0])
    shares = {agent: values.value(_state([]), agent) for agent in CHANCES}
    assert shares["b"] > 0.8
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-12)


def test_q_learning_and_sarsa_differ_in_what_comes_next() -> None:
    """With a step size of 1/2: Q-learning takes the next state's best action, SARSA the one that was taken."""
    known = [Transition("two", "good", 1.0)], [Transition("two", "poor", 0.0)]
    expected = {"q_learning": 1.0, "sarsa": 0.5}
    for method, next_value in expected.items():
        values = ActionValues(method, step_size=lambda _: 0.5)  # type: ignore[arg-type]
        for episode in known:
            values.learn(episode)
        values.learn([Transition("one", "x", 0.0), Transition("two", "poor", 0.0)])
        assert values.value("one", "x") == 0.5 * FIRST_VALUE + 0.5 * DISCOUNT * next_value


def test_double_q_values_the_action_by_the_other_table() -> None:
    """Its value is the mean of two tables, each moved by about half of the updates; one update moves one of them."""
    values = ActionValues("double_q", step_size=lambda _: 1.0)
    values.learn([Transition("s", "a", 0.0)])
    assert values.value("s", "a") == FIRST_VALUE / 2
    for _ in range(20):
        values.learn([Transition("s", "a", 0.0)])
    assert values.value("s", "a") == 0.0


def test_double_q_does_not_take_luck_for_worth() -> None:
    """Where eight next actions are equally good, Q-learning values their state too highly by the luckiest of them, and
    double Q, which values the best by one table with the other, does not (van Hasselt, 2010).
    """
    found: dict[Method, float] = {}
    for method in ("q_learning", "double_q"):
        values, random, seen = ActionValues(method, step_size=lambda _: 0.2), Random(4), list[float]()
        for number in range(4_000):
            reward = float(random.random() < 0.5)
            values.learn([Transition("one", "x", 0.0), Transition("two", str(random.randrange(8)), reward)])
            seen += [values.value("one", "x")] if number >= 1_000 else []
        found[method] = sum(seen) / len(seen)
    assert found["q_learning"] > 0.6
    assert found["double_q"] == pytest.approx(DISCOUNT * 0.5, abs=0.06)


def test_actor_moves_all_preferences_of_a_state() -> None:
    """A step is the advantage times the policy's gradient: what was not done rises when what was done was poor."""
    values = values_by("actor_critic")
    values.learn([Transition("s", "a", 1.0)])
    values.learn([Transition("s", "b", 0.0)])  # its advantage is -0.1, shares are a half
    assert values.value("s", "a") == pytest.approx(1 / (1 + math.exp(-2 * 0.4 * 0.1 * 0.5)), rel=1e-12)


def _forward_view(episode: Sequence[Transition], step: float) -> dict[tuple[str, str], float]:
    """Return the values of the online lambda-return algorithm: after each step all updates are made anew from the
    beginning, to the lambda-returns that this horizon allows (van Seijen et al. 2016, section 3).
    """
    first = {(each.state, each.action): FIRST_VALUE for each in episode}
    keys = [(each.state, each.action) for each in episode]
    before: list[dict[tuple[str, str], float]] = [first]
    """What values were when each step was taken: bootstraps use those of the step's own time."""
    for horizon in range(1, len(episode) + 1):
        values = dict(first)
        for start in range(horizon):
            returns, reward_sum = [], 0.0
            for length in range(1, horizon - start + 1):
                at = start + length
                reward_sum += DISCOUNT ** (length - 1) * episode[at - 1].reward
                ahead = before[at - 1][keys[at]] if at < len(episode) else 0.0
                returns.append(reward_sum + DISCOUNT**length * ahead)
            weights = [(1 - TRACE) * TRACE**place for place in range(len(returns) - 1)] + [TRACE ** (len(returns) - 1)]
            target = sum(weight * each for weight, each in zip(weights, returns, strict=True))
            values[keys[start]] += step * (target - values[keys[start]])
        before.append(values)
    return before[-1]


def test_true_online_traces_equal_the_forward_view() -> None:
    """The backward view with dutch traces gives what the online lambda-returns give, also where a state comes again."""
    episode = [
        Transition("s", "a", 0.2),
        Transition("t", "a", 0.0),
        Transition("s", "a", 0.7),
        Transition("u", "b", 0.1),
        Transition("s", "b", 1.0),
    ]
    values = ActionValues("td_lambda", step_size=lambda _: 0.3)
    values.learn(episode)
    expected = _forward_view(episode, 0.3)
    for (state, action), value in expected.items():
        assert values.value(state, action) == pytest.approx(value, rel=1e-12)


def test_advantages_are_the_sums_of_the_paper() -> None:
    """GAE is the sum of discounted errors; with a trace of 1 returns less values, with 0 the errors themselves."""
    rewards, values = [0.0, 0.5, 1.0, 0.2], [0.3, 0.1, 0.8, 0.4, 0.0]
    errors = [r + 0.9 * after - now for r, now, after in zip(rewards, values, values[1:], strict=False)]
    for trace in (0.0, 0.7, 1.0):
        expected = [sum((0.9 * trace) ** (k - t) * errors[k] for k in range(t, 4)) for t in range(4)]
        assert advantages(rewards, values, 0.9, trace) == pytest.approx(expected, rel=1e-14)
    returns = [sum(0.9 ** (k - t) * rewards[k] for k in range(t, 4)) for t in range(4)]
    assert advantages(rewards, values, 0.9, 1.0) == pytest.approx(
        [g - v for g, v in zip(returns, values, strict=False)]
    )


def _row(run: str, arm: str, quality: float | None, attempt: int = 1, state: str = "math") -> Outcome:
    return Outcome(run=run, step="s", attempt=attempt, state=state, arm=arm, quality=quality)


def test_episodes_are_the_attempts_of_a_step_that_are_judged() -> None:
    """Attempts come in their order; one without a reward ends what is known of its step."""
    rows = [
        _row("r1", "b", 1.0, 2, "math after a"),
        _row("r1", "a", 0.0),
        _row("r2", "a", None),
        _row("r3", "a", 0.0),
        _row("r3", "b", None, 2, "math after a"),
    ]
    assert episodes_of(rows, QUALITY) == [
        [Transition("math", "a", 0.0), Transition("math after a", "b", 1.0)],
        [Transition("math", "a", 0.0)],
    ]


@pytest.mark.parametrize("method", METHODS)
def test_equal_outcomes_and_seeds_decide_alike(method: Method) -> None:
    """Values are computed anew from the rows, so that a second reading gives the same choices."""
    rows = [_row(f"r{number}", "ab"[number % 2], float(number % 3 == 0)) for number in range(40)]
    twice = [
        [decide(method, rows, ["a", "b"], QUALITY, Random(seed), "math").arm.name for seed in range(20)]
        for _ in range(2)
    ]
    assert twice[0] == twice[1]


def test_kinds_of_tasks_are_learned_apart() -> None:
    """An agent that is good at one kind of task and bad at another is taken for the one alone, which no bandit does."""
    rows = [
        _row(f"r{number}{kind}{arm}", arm, float((kind == "math") == (arm == "a")), state=kind)
        for number in range(30)
        for kind in ("math", "text")
        for arm in ("a", "b")
    ]
    values = learned("q_learning", rows, QUALITY)
    assert values.value("math", "a") > 0.9 > 0.1 > values.value("math", "b")
    assert values.value("text", "b") > 0.9 > 0.1 > values.value("text", "a")
