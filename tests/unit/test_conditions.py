"""Conditions on the results of steps: what they say, what cannot be read, and that they are no code."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyagent.core.errors import RequestError
from pyagent.core.fleet.condition_values import Seen, steps_in
from pyagent.core.fleet.conditions import is_met, read_condition, read_reference


class Review(msgspec.Struct):
    score: float
    issues: list[str]
    is_ok: bool = True


_SEEN = Seen(
    {"review": Review(8.5, ["slow"]), "read-1": "a text", "odd name": {"a key": [1, 2]}, "none": None},
    {"review": "done", "draft": "failed", "find": "skipped"},
)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("review.score >= 8 and not failed draft", False),
        ("review.score >= 8 and failed draft", True),
        ("review.score < 8 or skipped find", True),
        ("not (review.is_ok and review.score == 8.5)", False),
        ("not not review.is_ok", True),
        ("not review.score == 9", True),
        ("'slow' in review.issues", True),
        ('"text" in read-1 and "z" not in read-1', True),
        ("review.score in [7, 8.5]", True),
        ("review.score == true", False),
        ("exists review.issues[0] and not exists review.issues[1]", True),
        ("review.issues[-1] == 'slow'", True),
        ('`odd name`["a key"][1] == 2', True),
        ("exists review.__class__ or exists review.score.real", False),
        ("exists none or exists nothing", False),
        ("nothing.at.all > 3 or nothing == null", True),
        ("done review and done draft", False),
        ("null", False),
        ("'a key' in `odd name`", True),
        ("1 in null", False),
        ("true or review", True),
    ],
)
def test_condition_says(text: str, *, holds: bool) -> None:
    """A condition holds or not, and looks at no more than it has to."""
    assert is_met(text, _SEEN) is holds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("review.score >", "expected the name of a step, got 'its end'"),
        ("review.score == 'a", "cannot be read from"),
        ("review.score + 1 > 2", "cannot be read from"),
        ("import os", "expected and, or, or its end, got 'os'"),
        ("__import__('os')", "expected and, or, or its end"),
        ("(a", "expected '\\)'"),
        ("a[1.5] == 1", "a place or a 'key'"),
        ("a not 3", "expected 'in'"),
        ("3 in [a]", "a number, a text"),
        ("and", "the name of a step, got 'and'"),
        ("(" * 100 + "a" + ")" * 100, "more than 32"),
        ("a or " * 500 + "b", "at most 2,000"),
        ("1234567890123456789 > 1", "cannot be read from"),
    ],
)
def test_condition_that_cannot_be_read_is_refused(text: str, told: str) -> None:
    """The error says what was expected and what is there."""
    with pytest.raises(RequestError, match=told):
        read_condition(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("review.score", "expected true or false, got 8.5"),
        ("review.score > 'x'", "have no order"),
        ("true > false", "have no order"),
        ("1 in review.score", "nothing can be in 8.5"),
    ],
)
def test_condition_on_unlike_values_is_an_error(text: str, told: str) -> None:
    """What cannot be compared is no false: the error has the condition and the values."""
    with pytest.raises(RequestError, match=told) as caught:
        is_met(text, _SEEN)
    assert text in str(caught.value)


_DEEP: list[object] = []
for _ in range(5_000):
    _DEEP = [_DEEP]


@pytest.mark.parametrize("value", [_DEEP, {(1, 2): 3}, "\ud800"], ids=["deep", "odd key", "half a pair"])
def test_a_result_that_json_cannot_have_is_an_error_in_words(value: object) -> None:
    """Whatever an agent gave, a condition on it is decided or says why it cannot be."""
    with pytest.raises(RequestError, match="cannot be decided"):
        is_met("a > 1", Seen({"a": value}, {"a": "done"}))


def test_steps_of_a_condition_are_known() -> None:
    """All names that a condition looks at are found, in lists, tests and brackets too."""
    assert steps_in(read_condition("a.b == c and (not failed d or exists e.f) or g in [1]")) == set("acdeg")


@pytest.mark.parametrize("text", ["find.items", "{find.items", "{}", "{find items}", "{1}"])
def test_reference_needs_its_form(text: str) -> None:
    """A reference stands in braces and names a step."""
    with pytest.raises(RequestError):
        read_reference(text)


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from(["a", "(", ")", "and", "not", "[", "]", ".", "1", "=="])).map(" ".join)
)
@settings(max_examples=60)
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever stands there, it is a condition or a `RequestError`, and deciding it is so too."""
    with suppress(RequestError):
        is_met(text, Seen({"a": {"b": [1]}}, {"a": "done"}))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["x", "y"]), st.lists, max_leaves=4
)


@given(_JSON, _JSON)
def test_equality_is_that_of_json(left: object, right: object) -> None:
    """Values are equal when their JSON is; `!=` is the opposite; `in` a list is equality with one of it."""
    seen = Seen({"a": left, "b": right, "c": [right]})
    is_equal = msgspec.json.encode(left) == msgspec.json.encode(right)
    assert is_met("a == b", seen) is is_equal
    assert is_met("a != b", seen) is not is_equal
    assert is_met("a in c", seen) is is_equal
