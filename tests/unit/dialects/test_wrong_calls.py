"""Calls written slightly wrong: what a client gets as arguments is JSON, whatever a model wrote."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dialect_texts import TOOLS

from pyagent.core.dialects.registry import dialects

from .test_parsers import RECORDED, hear, split

OSLO = '{"city": "Oslo"}'
BROKEN: dict[str, tuple[str, Any]] = {
    "right": ('{"a": [1, {"b": "\\u00e9\\n"}, 1e5],\n "c":null }', {"a": [1, {"b": "é\n"}, 1e5], "c": None}),
    "single quotes": ("{'city': 'Oslo', 'days': 3}", {"city": "Oslo", "days": 3}),
    "an apostrophe in single quotes": ("{'city': 'Land's End'}", {"city": "Land's End"}),
    "bare keys": ('{city: "Oslo", days : 3}', {"city": "Oslo", "days": 3}),
    "bare words": ('{"city": New York, "days": 007}', {"city": "New York", "days": "007"}),
    "trailing commas": ('{"tags": ["a",], "days": 3,}', {"tags": ["a"], "days": 3}),
    "missing commas": (
        '{"city": "Oslo" "tags": ["a" "b"]\n"days": 3 metric: true}',
        {"city": "Oslo", "tags": ["a", "b"], "days": 3, "metric": True},
    ),
    "commas too many": ('{,"city": "Oslo",, "tags": [,1,,2]}', {"city": "Oslo", "tags": [1, 2]}),
    "a missing colon": ('{"city" "Oslo"}', {"city": "Oslo"}),
    "missing values": ('{"city": , "days": }', {"city": None, "days": None}),
    "Python's constants": ('{"a": True, "b": [False, None]}', {"a": True, "b": [False, None]}),
    "no numbers of JSON": ('{"a": NaN, "b": -Infinity, "c": +5, "d": .5, "e": 0x10, "f": 1_000}',
        {"a": "NaN", "b": "-Infinity", "c": 5, "d": 0.5, "e": 16, "f": 1000}),
    "comments": ('{"city": "Oslo", // a town\n "days": 3 /* nights, }" */}', {"city": "Oslo", "days": 3}),
    "triple quotes": ('{"city": """the "old"\ntown"""}', {"city": 'the "old"\ntown'}),
    "quotes in quotes": ('{"city": "the "old" town", "days": 3}', {"city": 'the "old" town', "days": 3}),
    "newlines and tabs": ('{"city": "a\n\tb"}', {"city": "a\n\tb"}),
    "escapes that are none": ('{"city": "C:\\\\new \\d \\\' \\u12"}', {"city": "C:\\new \\d ' \\u12"}),
    "a set": ('{"tags": {"a", "b"}, "options": {}}', {"tags": ["a", "b"], "options": {}}),
    "a tuple": ('{"tags": (1, 2)}', {"tags": [1, 2]}),
    "an expression": ('{"days": 1 + 2, "city": str("a, }")}', {"days": "1 + 2", "city": 'str("a, }")'}),
    "keys of other kinds": ('{1: "a", null: {2: 3}}', {"1": "a", "null": {"2": 3}}),
    "a wrong bracket": ('{"tags": [1, 2}', {"tags": [1, 2]}),
    "brackets left open": ('{"options": {"a": [1, {"b": 2', {"options": {"a": [1, {"b": 2}]}}),
    "keys twice": ('{"city": "Oslo", "city": "Rome"}', {"city": "Rome"}),
}  # fmt: skip
_OF_JSON = [
    (name, case.text)
    for name in dialects()
    for case in [next((one for one in RECORDED[name] if OSLO in one.text and len(one.calls) == 1), None)]
    if case
]


def read_in_any_split(name: str, text: str) -> list[list[str]]:
    """Read an answer whole and by characters; the arguments are JSON in the end, and come alike."""
    whole = hear(dialects()[name].parser(TOOLS), [text])
    assert hear(dialects()[name].parser(TOOLS), list(text)) == whole
    for _, arguments in whole.calls:
        json.loads(arguments, parse_constant=pytest.fail)
    return whole.calls


def test_dialects_with_json_are_many() -> None:
    """The broken arguments are tried in each dialect whose arguments are JSON."""
    assert len(_OF_JSON) == 16


@pytest.mark.parametrize("says", BROKEN)
def test_wrong_json_becomes_what_it_means(says: str) -> None:
    """Arguments that are almost JSON are mended in each dialect that writes JSON, those that are JSON left alone."""
    broken, meant = BROKEN[says]
    for name, text in _OF_JSON:
        ((_, arguments),) = read_in_any_split(name, text.replace(OSLO, broken))
        assert json.loads(arguments) == meant, name
        assert says != "right" or arguments == broken, name


@pytest.mark.parametrize(
    "written",
    [
        "{'name': 'now', 'arguments': {}}",
        '{name: "now", arguments: {}}',
        '{"name": "now" "arguments": {},}',
        '{"name": "now", "arguments": "{\'a\': 1"}',
        '{"name": "now", "arguments": null}',
        '{"name": "now", "arguments": [1, 2',
        '{"name": "now", "arguments": "Oslo"}',
        '{"arguments": {"a": 1, "name": "now"}',
    ],
)
def test_wrong_objects_around_arguments_are_read(written: str) -> None:
    """The object that holds name and arguments may be as wrong as its arguments."""
    text = f"<tool_call>{written}</tool_call>"
    calls = read_in_any_split("hermes", text)
    assert [name for name, _ in calls] == (["now"] if '{"arguments"' not in text else [])


@pytest.mark.parametrize("name", dialects())
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_mutated_calls_have_json_arguments(name: str, data: st.DataObject) -> None:
    """However characters are dropped, inserted or replaced, a call that ends has JSON for arguments.

    Of an answer that is cut, what is told is the beginning of what would have been.
    """
    text = data.draw(st.sampled_from([case.text for case in RECORDED[name] if case.calls]))
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    marks = "\"'{}[]():,=#/\\ \n+1.eaN<>|`"
    for _ in range(chance.randint(1, 6)):
        at, kept = chance.randrange(len(text) + 1), chance.randint(0, 1)
        text = text[:at] + chance.choice(["", chance.choice(marks)]) + text[at + 1 - kept :]
    calls = read_in_any_split(name, text)
    assert hear(dialects()[name].parser(TOOLS), split(text, [chance.randrange(500)])).calls == calls
    cut = text[: chance.randrange(len(text) + 1)]
    hear(dialects()[name].parser(TOOLS), list(cut), is_cut=True)
    read_in_any_split(name, cut)


UNITS = ["[", "{", '{"a":', "(", "[)", '"a" ', "a: ", "a'", "/*", "'", "1 ", '"', "#", "{1,", " \n"]


@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear_in_broken_arguments(unit: str) -> None:
    """Four thousand characters of anything end in JSON without recursion ."""
    text = unit * (4_000 // len(unit))
    heard = hear(dialects()["hermes"].parser(TOOLS), ['<tool_call>{"name": "now", "arguments": {"a": ' + text])
    assert heard.calls[0][1].startswith("{")
    assert heard.calls[0][1].endswith("}")
