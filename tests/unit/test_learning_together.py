"""Two kinds of choices learned at once by each policy, with a bound, on a simulated fleet; and whole combinations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import get_args

import pytest

from pyagent.core.fleet.learner import chosen_before, kinds_after
from pyagent.core.learning.combinations import combinations
from pyagent.core.learning.deciding import Policy, breaking, decide, that_count
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
NUM_RUNS = 160


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


@pytest.mark.parametrize(
    ("policy", "best"),
    [*((each, ("a", "y")) for each in POLICIES), ("thompson", ("b", "y")), ("q_learning", ("b", "y"))],
)
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


def test_option_is_held_to_a_bound_by_what_it_led_to() -> None:
    """It is out where all it led to breaks the bound; runs that took what is ruled out do not count for it."""

    def rows(pairs: Sequence[tuple[str, str, float]]) -> list[Outcome]:
        prompts, strategies = list[Outcome](), list[Outcome]()
        for number, (prompt, strategy, seconds) in enumerate(pairs):
            for of, arm, state in ((prompts, prompt, ""), (strategies, strategy, prompt)):
                of.append(Outcome(run=f"r{number}", step="s", state=state, arm=arm, quality=1.0, seconds=seconds))
        return that_count(prompts, [strategies], GOALS)

    slow, quick, other = [("a", "x", 30.0)] * 4, [("a", "y", 2.0)], [("b", "y", 2.0)] * 4
    assert {row.run for row in rows(slow + quick + other)} == {f"r{number}" for number in range(4, 9)}
    assert breaking(rows(slow + quick + other), ["a", "b"], GOALS) == {}
    all_slow = rows(slow + [("a", "y", 31.0)] * 4 + other)
    assert len(all_slow) == 12
    assert breaking(all_slow, ["a", "b"], GOALS) == {"a": "mean seconds 30.5"}
    ways = [
        Outcome(run=f"r{number}", step="s", arm="a", then=then, seconds=seconds)
        for number, (then, seconds) in enumerate([("x,", 30.0)] * 6 + [("y,", 2.0)])
    ]
    assert breaking([*ways, *rows(other)], ["a", "b"], GOALS) == {}
    assert set(breaking([*ways[:6], *rows(other)], ["a", "b"], GOALS)) == {"a"}


def _choice(kind: str, arm: str, step: str = "s", run: str = "r") -> Choice:
    return Choice(tenant="", kind=kind, run=run, step=step, arm=arm)


def test_state_has_what_the_same_agent_was_given_before() -> None:
    """A strategy depends on the prompt and on a link that was asked already; a link on both; not on other agents'."""
    recorded = [
        _choice("prompt/a", "terse", ""),
        _choice("prompt/b", "own", ""),
        _choice("strategy/a", "quick"),
        _choice("agent", "a"),
    ]
    link, strategy = _choice("backend", "", ""), _choice("strategy/a", "")
    assert chosen_before(recorded, link, "a") == ["prompt terse", "strategy quick"]
    assert chosen_before(recorded, link, "b") == ["prompt own"]
    assert chosen_before(recorded, strategy, "a") == ["prompt terse"]
    several = [*recorded, _choice("strategy/a", "thorough", "t"), _choice("backend", "one", "")]
    assert chosen_before(several, link, "a") == ["prompt terse"]
    assert chosen_before(several, strategy, "a") == ["backend one", "prompt terse"]


def test_kinds_that_depend_on_a_kind_come_in_their_order() -> None:
    """An agent comes before its prompt, that before its strategy, and the link last."""
    assert kinds_after("agent", ["a", "b"]) == ["prompt/a", "prompt/b", "strategy/a", "strategy/b", "backend"]
    assert kinds_after("prompt/a", ["terse"]) == ["strategy/a", "backend"]
    assert kinds_after("strategy/a", ["quick"]) == ["backend"]
    assert kinds_after("backend", ["one"]) == []


def test_combinations_are_those_of_whole_runs() -> None:
    """A run of two kinds is one; of attempts the last counts; one kind alone, or two options of it, are none."""

    def row(run: str, arm: str, *, attempt: int = 1, step: str = "s", seconds: float | None = None) -> Outcome:
        return Outcome(run=run, step=step, arm=arm, attempt=attempt, quality=0.5, seconds=seconds)

    found = combinations(
        {
            "backend": [row("r1", "one", seconds=3.0), row("r2", "one"), row("r3", "two"), row("r4", "two")],
            "agent": [row("r1", "b", attempt=2, seconds=2.0), row("r1", "a"), row("r2", "a"), row("r2", "b", step="t")],
            "strategy/a": [row("r4", "quick")],
        }
    )
    assert [(each.run, each.arm, each.quality, each.seconds) for each in found] == [
        ("r1", "agent b, backend one", 0.5, 3.0),
        ("r4", "backend two, strategy/a quick", 0.5, None),
    ]
