r"""JSON schemas as llguidance is given them: dates that are days, and `\s` and `\S` that mean the same to all."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.grammars import compiled

from pyagent.core.dialects.schema_text import same_spaces, schema_text
from pyagent.core.errors import RequestError
from pyagent.core.messages import FunctionDefinition, JsonObject, Tool
from pyagent.infrastructure.engine.grammar import Grammar, GrammarCompiler
from pyagent.infrastructure.engine.tokens import ModelTokenizer


def is_taken(grammar: Grammar, tokenizer: ModelTokenizer, value: object) -> bool:
    try:
        for token in tokenizer.encode_further(json.dumps(value, ensure_ascii=False)):
            grammar.accept(token)
    except ValueError:
        return False
    mask = grammar.mask() if not grammar.is_finished else b""
    return grammar.is_finished or any(mask[token // 8] >> token % 8 & 1 for token in tokenizer.end_ids)


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"format": "date"}, "2024-02-29", True),
        ({"format": "date"}, "2000-02-29", True),
        ({"format": "date"}, "1900-02-29", False),
        ({"format": "date"}, "2021-02-29", False),
        ({"format": "date"}, "2021-04-31", False),
        ({"format": "date"}, 17, True),
        ({"format": "date", "pattern": "^2"}, "1999-01-01", False),
        ({"format": "date", "pattern": "^2", "allOf": [{"pattern": "7$"}]}, "2000-01-07", True),
        ({"format": "time"}, "23:58:60Z", False),
        ({"format": "date-time"}, "2024-02-29T12:00:00.5+01:00", True),
        ({"format": "date-time"}, "2024-02-30T12:00:00Z", False),
        ({"pattern": r"^\S$"}, "\ufeff", False),
        ({"pattern": r"^[\Sx]$"}, "x", True),
        ({"pattern": r"^a\sb$"}, "a b", True),
        ({"pattern": r"^a\\s$"}, r"a\s", True),
        ({"properties": {"format": {"const": "date"}}}, {"format": "date"}, True),
        ({"enum": [{"format": "date"}]}, {"format": "date"}, True),
    ],
    ids=str,
)
def test_formats_and_spaces_are_those_of_the_standard(
    compiler: GrammarCompiler, tokenizer: ModelTokenizer, schema: JsonObject, value: object, expected: bool
) -> None:
    """A date is a day of the calendar, white space is what all take for it, and values are left as they are."""
    assert is_taken(compiled(compiler, schema), tokenizer, value) is expected


def test_formats_hold_in_calls_too(compiler: GrammarCompiler, tokenizer: ModelTokenizer) -> None:
    """Schemas within grammars of calls are read in the same way."""
    lark = f"start: %json {schema_text({'format': 'date'})}"
    tool = Tool(FunctionDefinition("day", parameters={"format": "date"}))
    assert not is_taken(compiler.begin_calls(lark, [tool]).result(), tokenizer, "2021-02-29")


@given(st.text(max_size=3))
def test_spaces_of_patterns_agree_with_python(text: str) -> None:
    r"""What the rewritten `\s` matches is white space for Python, and what `\S` matches is none."""
    assert not re.fullmatch(same_spaces(r"\s+"), text) or re.fullmatch(r"\s+", text)
    assert not re.fullmatch(same_spaces(r"\S+"), text) or re.fullmatch(r"\S+", text)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"format": "nonsense"}}}, "(#/properties/a/format)"),
        ({"items": {"type": "string", "maxLength": 2.5}}, "(#/items/maxLength)"),
        ({"items": {"anyOf": [{"type": "null"}, {"pattern": "("}]}}, "(#/items/anyOf/1/pattern)"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"contains": {}}}}, "(#/$defs/x/contains)"),
        ({"properties": {"a/b~c": {"oneOf": [{}, {}]}}}, "(#/properties/a~1b~0c/oneOf)"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "(#/allOf)"),
        ({"patternProperties": {"a": {}, "b": {}}}, "(#/patternProperties)"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_refused_schema_is_told_with_its_place(compiler: GrammarCompiler, schema: JsonObject, place: str) -> None:
    """Whatever the backend refuses, the keyword without which it would not is named by a JSON pointer."""
    with pytest.raises(RequestError) as caught:
        compiled(compiler, schema)
    assert place in str(caught.value)
