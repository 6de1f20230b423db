"""Tests of prompt variants: the always-valid p-value and Welch's t, their error rates, and what is said of a test."""

from __future__ import annotations

import math
from itertools import product
from random import Random

import pytest

from pyagent.core.learning.outcomes import Outcome
from pyagent.core.learning.prompts import PromptVariant, assigned, with_system
from pyagent.core.learning.sequential import ALPHA, always_valid_p, verdict
from pyagent.core.messages import Message
from pyagent.logic.stats.comparison import welch


def _differences(chances: tuple[float, float], num: int, random: Random) -> list[float]:
    return [float(random.random() < chances[0]) - float(random.random() < chances[1]) for _ in range(num)]


def test_chance_to_ever_err_is_bounded_exactly() -> None:
    """Of all 2**12 equally likely rows of signs at most 5 % ever have a p-value of 5 %, and of 20 % at most 20 %."""
    p_values = [always_valid_p(signs) for signs in product((-1.0, 1.0), repeat=12)]
    for alpha in (0.05, 0.2):
        assert sum(p <= alpha for p in p_values) / len(p_values) <= alpha
    assert min(p_values) < 0.01


def test_looking_after_each_pair_errs_in_at_most_five_of_a_hundred() -> None:
    """Of 300 tests of equal prompts, looked at after each of 300 pairs, at most 5 % call one better."""
    random = Random(8)
    errors = [always_valid_p(_differences((0.5, 0.5), 300, random)) <= ALPHA for _ in range(300)]
    assert sum(errors) / len(errors) <= ALPHA


def test_a_real_difference_is_found() -> None:
    """Of 40 tests of prompts with chances of 0.4 and 0.7 nearly all find it within 200 pairs."""
    random = Random(9)
    found = [always_valid_p(_differences((0.7, 0.4), 200, random)) <= ALPHA for _ in range(40)]
    assert sum(found) >= 38


def test_p_value_never_rises_and_stays_finite() -> None:
    """The p-value of more pairs is at most that of fewer, also of many and of extreme ones."""
    random, differences, before = Random(1), list[float](), 1.0
    for _ in range(60):
        differences.append(random.uniform(-1, 1))
        now = always_valid_p(differences)
        assert now <= before
        before = now
    assert 0 <= always_valid_p([1.0] * 3_000) < 1e-100
    assert always_valid_p([]) == 1.0


def _rows(name: str, rewards: list[float | None], first: int = 1) -> list[Outcome]:
    return [
        Outcome(run=f"{name}{place}", step="", arm=name, quality=reward, judged=0 if reward is None else first + place)
        for place, reward in enumerate(rewards)
    ]


def test_verdict_names_the_better_of_three_once_it_beats_both() -> None:
    """Each pair's p-value is times three; the better one has to beat each other."""
    rows = _rows("a", [1.0] * 40) + _rows("b", [0.0] * 40, 100) + _rows("c", [0.0] * 40, 200)
    found = verdict(rows, ["a", "b", "c"])
    assert (found.better, found.is_over) == ("a", True)
    assert found.p_values["b", "c"] == 1.0
    assert found.p_values["a", "b"] == pytest.approx(3 * always_valid_p([1.0] * 40))
    undecided = verdict(
        _rows("a", [1.0] * 40) + _rows("b", [1.0] * 40, 100) + _rows("c", [0.0] * 40, 200), ["a", "b", "c"]
    )
    assert (undecided.better, undecided.is_over) == ("", False)


def test_verdict_pairs_in_the_order_of_judgement_and_knows_no_other_arms() -> None:
    """The order of runs does not matter; rewards not known yet do not count, nor those of variants that are gone."""
    late = [
        Outcome(run=run, step="", arm=run[0], quality=quality, judged=judged)
        for run, quality, judged in (("a1", 0.0, 3), ("a2", 1.0, 1), ("a3", 1.0, 2), ("b1", 0.0, 4), ("b2", 0.0, 5))
    ]
    late.append(Outcome(run="b3", step="", arm="b", quality=1.0, judged=6))
    assert verdict(late, ["a", "b"]).p_values["a", "b"] == always_valid_p([1.0, 1.0, -1.0])
    rows = [*_rows("a", [None, 1.0, 0.0]), *_rows("b", [1.0, None], 50), *_rows("gone", [0.0] * 9, 90)]
    found = verdict(rows, ["a", "b"])
    assert found.num_pairs == {("a", "b"): 1}
    assert found.p_values["a", "b"] == 1.0


def test_test_without_a_winner_ends() -> None:
    """After 2,000 outcomes a test is over, and none is better."""
    rows = _rows("a", [1.0, 0.0] * 500) + _rows("b", [1.0, 0.0] * 500)
    found = verdict(rows, ["a", "b"])
    assert (found.better, found.is_over, found.num_outcomes) == ("", True, 2_000)


def test_welch_is_the_formula_worked_out_by_hand() -> None:
    """Means 2.5 and 5, variances 5/3 and 20/3 of four: t is -sqrt(3), of 75/17 degrees of freedom."""
    found = welch([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0])
    assert found is not None
    assert (found.difference, found.t, found.df) == pytest.approx((-2.5, -math.sqrt(3), 75 / 17), rel=1e-14)
    assert found.interval[0] < found.difference < 0 < found.interval[1]


def test_welch_says_nothing_of_too_little() -> None:
    """One value, or values that do not vary, have no t; tiny variances do."""
    assert welch([1.0], [0.0, 1.0]) is None
    assert welch([1.0, 1.0], [0.0, 0.0]) is None
    found = welch([0.0, 1e-170], [0.0, 2e-170])
    assert found is None or math.isfinite(found.df)


def test_variants_are_shared_by_weight_and_fixed_by_run() -> None:
    """Of 4,000 runs a quarter has the variant with a weight of 1 of 4; a run has the same one whenever it is asked."""
    variants = [PromptVariant(name="own", weight=1.0), PromptVariant(name="terse", text="Be brief.", weight=3.0)]
    names = [assigned(variants, "0", f"r-{number}", "math").name for number in range(4_000)]
    assert names == [assigned(variants, "0", f"r-{number}", "math").name for number in range(4_000)]
    assert abs(names.count("own") / 4_000 - 0.25) < 0.03
    other = [assigned(variants, "1", f"r-{number}", "math").name for number in range(4_000)]
    assert other != names


def test_text_that_changes_is_another_arm() -> None:
    """What was learned of a text does not count for another text of the same name."""
    assert PromptVariant(name="a", text="one").arm != PromptVariant(name="a", text="two").arm
    assert PromptVariant(name="a", text="one").arm == PromptVariant(name="a", text="one", weight=2.0).arm


def test_system_prompt_is_replaced_or_filled_in() -> None:
    """A text stands for the agent's system prompt, `{system}` for its words; other braces are text."""
    messages = [Message("system", "Own {x}."), Message("user", "Hi")]
    assert with_system(messages, "") == messages
    assert with_system(messages, "New {y} {0}.") == [Message("system", "New {y} {0}."), Message("user", "Hi")]
    assert with_system(messages, "{system} Brief.")[0] == Message("system", "Own {x}. Brief.")
    assert with_system([Message("user", "Hi")], "{system}Brief.")[0] == Message("system", "Brief.")
