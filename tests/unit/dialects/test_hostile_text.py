"""Texts made to break parsers: tag soup, half tags, deep nesting. Nothing raises, nothing is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dialect_texts import TOOLS

from pyagent.core.dialects.registry import dialects

from .test_parsers import RECORDED, hear, split

_MOST_UNREAD = 1024
_PIECES = [
    '"',
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\\",
    "'",
    "(",
    ")",
    "=",
    "\n",
    " ",
    "1",
    "null",
    '{"name": "now", ',
    '"""',
]


UNITS = [
    *(
        "<",
        "<tool_cal",
        "<tool_call>",
        "{",
        '{"a":',
        '"',
        "[",
        "\n",
        " ",
        "`",
        "<think>",
        "</think>",
        "'",
        "<|channel|>",
    ),
    '<tool_call>{"name": "now", "arguments": {"a": [',
    *("<function=now><parameter=a>", "[now(a=[", "[now(", "<|tool_call>call:now{a:"),
]


def tags_of(name: str) -> list[str]:
    """The tags of a dialect, and of others."""
    text = "".join(case.text for case in RECORDED[name])
    return sorted({*re.findall(r"<[^<>\s]+>|\[[A-Z_]+\]", text), *dialects()[name].markers, "<", "</", "<think>"})


def soup(name: str) -> st.SearchStrategy[list[str]]:
    words = st.integers(0, 10**6).map(lambda number: f"w{number}w")
    return st.lists(st.one_of(st.sampled_from(tags_of(name)), st.sampled_from(_PIECES), words), max_size=30)


@pytest.mark.parametrize("name", dialects())
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_tag_soup_is_read_alike_in_any_split(name: str, data: st.DataObject) -> None:
    """No text raises, and its split changes nothing."""
    text = "".join(data.draw(soup(name)))
    is_reasoning = data.draw(st.booleans())
    places = data.draw(st.lists(st.integers(0, 500), max_size=6))
    whole = hear(dialects()[name].parser(TOOLS, is_reasoning=is_reasoning), [text])
    assert hear(dialects()[name].parser(TOOLS, is_reasoning=is_reasoning), split(text, places)) == whole
    assert hear(dialects()[name].parser(TOOLS, is_reasoning=is_reasoning), list(text)) == whole


@pytest.mark.parametrize("name", [name for name in dialects() if name != "openai"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_word_between_tags_is_lost(name: str, data: st.DataObject) -> None:
    """Each word comes out, in the content, the reasoning or a call; only a call that is cut may end before it."""
    text = " ".join(
        data.draw(st.lists(st.one_of(st.sampled_from(tags_of(name)), st.just("\n"), st.just("word")), max_size=20))
    )
    text = re.sub("word", lambda match: f"w{match.start()}w", text)
    heard = hear(dialects()[name].parser(TOOLS), [text])
    out = heard.content + heard.reasoning + str(heard.calls)
    lost = [word for word in re.findall(r"w\d+w", text) if word not in out]
    assert not lost


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "name", ["hermes", "qwen3_coder", "glm45", "mistral", "llama3_json", "pythonic", "gemma4", "openai"]
)
def test_unread_text_is_bounded(name: str, unit: str) -> None:
    """However long an answer of one and the same unit is, little of it waits unread, so that no push reads it again."""
    parser = dialects()[name].parser(TOOLS)
    for _ in range(200):
        parser.push(unit * 20)
        assert parser._source.num_left <= _MOST_UNREAD
    parser.finish()
