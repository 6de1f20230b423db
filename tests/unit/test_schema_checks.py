"""Values are checked by JSON schemas in bounded time, with the same verdict as jsonschema's own."""

from __future__ import annotations

import re
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyagent.core.emulation.patterns import Pattern, PatternError
from pyagent.core.emulation.schemas import fault_of
from pyagent.core.errors import RequestError


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(a+)+$", "a" * 40 + "!"),
        ("^(a|a)*$", "a" * 5000 + "!"),
        (r"^(\w+\s?)*$", "word " * 2000 + "!"),
        ("(x+x+)+y", "x" * 5000),
        ("(.*a){30}$", "b" * 5000),
    ],
)
def test_hostile_patterns_take_no_time(pattern: str, text: str) -> None:
    """Patterns that Python's `re` would follow for years are decided at once, in values and in names."""
    begun = time.perf_counter()
    assert "does not match" in str(fault_of(text, {"pattern": pattern}, "x"))
    named: Any = {"patternProperties": {pattern: True}, "additionalProperties": False}
    assert fault_of({text: 1}, named, "x") is not None
    assert time.perf_counter() - begun < 30  # a busy machine; here it is a hundredth of a second


def test_references_that_double_are_cut_off() -> None:
    """A schema whose work doubles with each reference is refused, not followed."""
    defs: Any = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)} | {"d60": {"type": "null"}}
    with pytest.raises(RequestError, match="steps to check; simplify it"):
        fault_of(None, {"$defs": defs, "$ref": "#/$defs/d0"}, "x")
    many = {"properties": {str(n): {"pattern": f"^{n}$"} for n in range(2000)}}
    with pytest.raises(RequestError, match="steps to check"):
        fault_of({str(n): str(n) for n in range(2000)}, many, "x")


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "x(^|,)a", r"\bfoo\b"])
def test_patterns_that_need_more_are_refused_by_name(pattern: str) -> None:
    """Look-around, back references and anchors in the middle are the schema's fault, and named."""
    with pytest.raises(RequestError, match="cannot be checked: the pattern") as caught:
        fault_of("a", {"pattern": pattern}, "response_format")
    assert caught.value.param == "response_format"
    with pytest.raises(RequestError, match="cannot be checked together"):
        fault_of({}, {"unevaluatedProperties": False, "allOf": [{"patternProperties": {"a": True}}]}, "x")


ways = st.lists(
    st.tuples(
        st.sampled_from(["", "^"]),
        st.lists(st.sampled_from(["a", "b", ".", "a*", "[ab]+", "(a|b)", "(?:ab)?", r"\.", r"\$", "[|)]", "b{1,2}"])),
        st.sampled_from(["", "$"]),
    ).map(lambda parts: parts[0] + "".join(parts[1]) + parts[2]),
    min_size=1,
    max_size=3,
)


@settings(max_examples=300, deadline=None)
@given(ways, st.text("ab.$|)", max_size=6))
def test_a_pattern_is_found_where_python_finds_it(parts: list[str], text: str) -> None:
    """Oracle: for patterns that are harmless, the verdict is that of `re.search`."""
    pattern = "|".join(parts)
    assert Pattern(pattern).is_in(text) == bool(re.search(pattern, text)), pattern


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("abx", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abx", max_size=2), inner, max_size=3),
    max_leaves=6,
)
schemas = st.recursive(
    st.sampled_from(
        [{}, True, False, {"type": "string"}, {"type": "object"}, {"pattern": "^a"}, {"enum": [1, "a"]}, {"minimum": 0}]
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abx"), inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$", "x"]), inner, max_size=2),
            "additionalProperties": inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "required": st.lists(st.sampled_from("abx"), max_size=2, unique=True),
        },
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(values, schemas.filter(lambda schema: isinstance(schema, dict)))
def test_verdicts_are_jsonschemas(value: Any, schema: Any) -> None:
    """Oracle: jsonschema's own validator says yes and no to the same values."""
    assert (fault_of(value, schema, "x") is None) == jsonschema.Draft202012Validator(schema).is_valid(value)


def test_any_text_is_a_pattern_or_refused() -> None:
    """What is no pattern is refused as such."""
    for pattern in ("(", "[a", "a{2,1}", "*", "\\"):
        with pytest.raises(PatternError):
            Pattern(pattern)
