"""The parsers of all dialects: recorded answers, and what holds for every text in every split."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dialect_texts import TOOLS, Case, arguments_of

from pyagent.core.dialects.dialect import OutputParser
from pyagent.core.dialects.registry import dialects

SAME = {"mistral_args": "mistral"}
"""Dialects that differ in their grammars alone."""
RECORDED = {name: import_module(f"support.dialect_texts.{SAME.get(name, name)}").CASES for name in dialects()}
ALL = [pytest.param(name, case, id=f"{name}: {case.says}") for name, cases in RECORDED.items() for case in cases]


@dataclass
class Heard:
    """What a parser gave out, joined."""

    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)

    def hear(self, parsed: Any) -> None:
        self.content += parsed.content
        self.reasoning += parsed.reasoning
        for delta in parsed.tool_calls:
            if delta.index == len(self.calls):
                assert delta.id
                assert delta.name
                self.calls.append([delta.name, ""])
            else:
                assert delta.index == len(self.calls) - 1
                assert not delta.name
                assert not delta.id
            self.calls[-1][1] += delta.arguments

    def values(self) -> tuple[str, str, list[tuple[str, Any]]]:
        return self.content, self.reasoning, [(name, arguments_of(text)) for name, text in self.calls]


def parser_of(name: str, case: Case) -> OutputParser:
    return dialects()[name].parser(TOOLS if case.has_tools else [], is_reasoning=case.is_reasoning)


def hear(parser: OutputParser, pieces: list[str], *, is_cut: bool = False) -> Heard:
    heard = Heard()
    for piece in pieces:
        heard.hear(parser.push(piece))
    heard.hear(parser.finish(is_cut=is_cut))
    return heard


def split(text: str, places: list[int]) -> list[str]:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(ends)]


@pytest.mark.parametrize(("name", "case"), ALL)
def test_recorded_answer_is_read(name: str, case: Case) -> None:
    """Whole and character by character, an answer gives the content, reasoning and calls that it says."""
    wanted = case.content, case.reasoning, case.calls
    assert hear(parser_of(name, case), [case.text], is_cut=case.is_cut).values() == wanted
    assert hear(parser_of(name, case), list(case.text), is_cut=case.is_cut).values() == wanted


@pytest.mark.parametrize("name", dialects())
def test_every_dialect_has_recorded_answers(name: str) -> None:
    """There are ten recorded answers at least for each dialect."""
    assert len(RECORDED[name]) >= 10


@pytest.mark.parametrize("name", dialects())
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_split_changes_nothing(name: str, data: st.DataObject) -> None:
    """In any split an answer gives the same; a copy made between two pieces goes on by itself."""
    case = data.draw(st.sampled_from(RECORDED[name]))
    pieces = split(case.text, data.draw(st.lists(st.integers(0, 2000), max_size=8)))
    at = data.draw(st.integers(0, len(pieces)))
    whole, parser, heard = hear(parser_of(name, case), [case.text]), parser_of(name, case), Heard()
    for piece in pieces[:at]:
        heard.hear(parser.push(piece))
    forked = parser.copy()
    forked.push("other text <")
    forked.finish()
    for piece in pieces[at:]:
        heard.hear(parser.push(piece))
    heard.hear(parser.finish())
    assert heard == whole


def test_bare_element_of_no_offered_function_is_text() -> None:
    """Where a function's tag stands without the one around it, only an offered function makes it a call."""
    text = "Write it so:\n<function=example>\n<parameter=x>\n1\n</parameter>\n</function>"
    parser = dialects()["qwen3_coder"].parser(TOOLS)
    first, last = parser.push(text), parser.finish()
    assert (first.content + last.content, first.tool_calls + last.tool_calls) == (text, ())
