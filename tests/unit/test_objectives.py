"""Objectives: utilities, bounds and the Pareto front."""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.learning.deciding import breaking, decide, front
from pyagent.core.learning.objectives import QUALITY, Objective, pareto_front, utility
from pyagent.core.learning.outcomes import Outcome

BOTH = (Objective(metric="quality"), Objective(metric="seconds", weight=1.0, scale=10.0))


def _rows(arm: str, quality: float, seconds: float, num: int = 4) -> list[Outcome]:
    return [Outcome(run=f"{arm}{number}", step="s", arm=arm, quality=quality, seconds=seconds) for number in range(num)]


def test_reward_is_the_weighted_mean_of_utilities() -> None:
    """Quality counts as it is, a cost as scale / (scale + cost); what is not known leaves the reward unknown."""
    assert utility({"quality": 0.8, "seconds": 10.0}, BOTH) == (0.8 + 0.5) / 2
    assert utility({"quality": 0.8}, BOTH) is None
    assert utility({"quality": 0.8, "seconds": 99.0}, QUALITY) == 0.8
    only_time = (Objective(metric="quality", weight=0.0), Objective(metric="seconds", scale=5.0))
    assert utility({"seconds": 5.0}, only_time) == 0.5


def test_arm_that_breaks_a_bound_is_not_chosen() -> None:
    """The best arm by quality is out when its mean takes too long; with three outcomes of it, not with two."""
    limits = (Objective(metric="quality"), Objective(metric="seconds", weight=0.0, bound=5.0))
    rows = _rows("slow", 1.0, 20.0) + _rows("quick", 0.4, 1.0)
    decision = decide("ucb1", rows, ["slow", "quick"], limits, Random(0))
    assert decision.arm.name == "quick"
    assert "not slow: mean seconds 20" in decision.reason
    few = _rows("slow", 1.0, 20.0, 2) + _rows("quick", 0.4, 1.0)
    assert breaking(few, ["slow", "quick"], limits) == {}


def test_all_arms_stay_where_all_break_a_bound() -> None:
    """A bound that no arm keeps leaves the choice as it is."""
    limits = (Objective(metric="quality", bound=0.9),)
    rows = _rows("a", 0.5, 1.0, 40) + _rows("b", 0.6, 1.0, 40)
    assert breaking(rows, ["a", "b"], limits) == {}
    assert set(breaking(rows + _rows("c", 0.95, 1.0), ["a", "b", "c"], limits)) == {"a", "b"}


def test_unlucky_arm_is_tried_again() -> None:
    """Three bad outcomes shut no arm out: the more outcomes there are, the more its own have to say it."""
    limits = (Objective(metric="quality", bound=0.6),)
    unlucky = [*_rows("a", 0.0, 1.0, 2), *_rows("a", 1.0, 1.0, 1)]
    assert breaking([*unlucky, *_rows("b", 0.7, 1.0, 1)], ["a", "b"], limits) == {}
    assert set(breaking([*_rows("a", 0.0, 1.0, 6), *_rows("b", 0.7, 1.0, 20)], ["a", "b"], limits)) == {"a"}
    assert breaking([*_rows("a", 0.0, 1.0, 6), *_rows("b", 0.7, 1.0, 20_000)], ["a", "b"], limits) == {}


def test_costs_are_held_against_their_bound_by_how_they_spread() -> None:
    """Seconds that are always the same break a bound at once, those that are now few and now many later."""
    limits = (Objective(metric="seconds", bound=5.0),)
    spread = [Outcome(run=f"r{each}", step="s", arm="a", seconds=each) for each in (1.0, 2.0, 20.0)]
    others = _rows("b", 1.0, 1.0, 20)
    assert breaking([*spread, *others], ["a", "b"], limits) == {}
    assert breaking([*_rows("a", 1.0, 6.0, 3), *others], ["a", "b"], limits) == {"a": "mean seconds 6"}


def test_bounds_and_arms_are_those_of_the_state() -> None:
    """By state, outcomes of another count neither for what an arm earns nor for whether it keeps a bound."""
    limits = (Objective(metric="quality"), Objective(metric="seconds", weight=0.0, bound=5.0))
    rows = [
        *(msgspec.structs.replace(row, state="x") for row in _rows("a", 1.0, 20.0) + _rows("b", 0.2, 1.0)),
        *(msgspec.structs.replace(row, state="y") for row in _rows("a", 1.0, 1.0) + _rows("b", 0.2, 1.0)),
    ]
    taken = {
        state: decide("ucb1", rows, ["a", "b"], limits, Random(0), state, is_by_state=True) for state in ("x", "y", "z")
    }
    assert (taken["x"].arm.name, taken["x"].arm.num_rewards, {*taken["x"].out}) == ("b", 4, {"a"})
    assert (taken["y"].arm.name, taken["y"].arm.num_rewards, taken["y"].out) == ("a", 4, {})
    assert taken["z"].arm.num_rewards == 0
    assert decide("ucb1", rows, ["a", "b"], limits, Random(0), "y").arm.num_rewards == 8


def test_front_has_what_no_other_beats_in_everything() -> None:
    """An arm that is as good and slower is off the front; a quick poor one and a slow good one are on it."""
    rows = _rows("good", 0.9, 9.0) + _rows("quick", 0.5, 1.0) + _rows("worse", 0.5, 2.0)
    assert front(rows, ["good", "quick", "worse", "unknown"], BOTH) == ["good", "quick"]


@given(st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=9))
def test_front_is_what_the_definition_says(points: dict[str, tuple[int, int]]) -> None:
    """A point is on the front when no other is as good in both and better in one: checked pair by pair."""
    found = pareto_front({name: {"quality": q, "seconds": s} for name, (q, s) in points.items()}, BOTH)
    for name, (quality, seconds) in points.items():
        is_beaten = any(q >= quality and s <= seconds and (q > quality or s < seconds) for q, s in points.values())
        assert (name in found) == (not is_beaten)
    assert found
