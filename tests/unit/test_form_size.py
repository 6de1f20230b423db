"""Which response formats are short enough to be compiled without a thread."""

from __future__ import annotations

import time

import pytest

from pyagent.core.messages import JsonObject, JsonSchemaFormat, ResponseFormat
from pyagent.core.response_format import GrammarFormat
from pyagent.core.structured_output.form_size import is_short


def _schema(schema: JsonObject) -> ResponseFormat:
    return ResponseFormat("json_schema", JsonSchemaFormat(schema=schema))


def _nested(depth: int) -> JsonObject:
    schema: JsonObject = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "wanted",
    [
        ResponseFormat("json_object"),
        ResponseFormat("choice", choice=["yes", "no"]),
        ResponseFormat("regex", regex=r"\d{4}-\d{2}-\d{2}"),
        _schema({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}),
    ],
)
def test_usual_formats_are_short(wanted: ResponseFormat) -> None:
    """What fits on a few lines is prepared where the request came in."""
    assert is_short(wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        ResponseFormat("choice", choice=["a"] * 2_000),
        ResponseFormat("choice", choice=["a" * 3_000]),
        ResponseFormat("regex", regex="a" * 3_000),
        _schema({"enum": [str(number) for number in range(1_000)]}),
        _schema({"a" * 3_000: True}),
        _schema({"properties": {"": {}} | {str(number): {} for number in range(700)}}),
        _schema(_nested(300)),
        ResponseFormat("grammar", grammar=GrammarFormat("start: /a/")),
        ResponseFormat("any_of", any_of=[ResponseFormat("json_object")]),
    ],
)
def test_long_formats_and_those_with_parsers_of_their_own_are_not(wanted: ResponseFormat) -> None:
    """Long texts, names and lists, many places, deep ones, and grammars go to a thread."""
    assert not is_short(wanted)


def test_no_more_than_a_part_of_a_long_format_is_read() -> None:
    """A hundred thousand names take no longer than a few thousand."""
    wide = _schema({"properties": {str(number): {} for number in range(100_000)}})
    start = time.thread_time()
    assert not is_short(wide)
    assert time.thread_time() - start < 0.01
