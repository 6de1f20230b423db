"""The grammars of all dialects: what they let through, the parser of the same dialect reads as calls that fit."""

from __future__ import annotations

import json
import random
import re

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from support.dialect_texts import TOOLS, arguments_of

from pyagent.core.dialects.dialect import Dialect
from pyagent.core.dialects.registry import dialects
from pyagent.core.messages import Tool

_MOST_BYTES = 3000
_FREE = 60
"""Where so many bytes may come next, text is free."""


class _Bytes:
    """A tokenizer whose tokens are the bytes, an end, and control tokens."""

    bos_token_id = None
    eos_token_id = 256

    def __init__(self, control: list[str]) -> None:
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<end>", *(token.encode() for token in control)]
        self.special_token_ids = list(range(256, len(self.tokens)))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


class Walk:
    """Tokens at random, as a grammar lets them; now and then free text ends with one of the hints."""

    def __init__(self, grammar: str, control: list[str], seed: int) -> None:
        tokenizer = LLTokenizer(TokenizerWrapper(_Bytes(control)))
        self.matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        assert not self.matcher.is_error(), self.matcher.get_error()
        self.control, self.chance, self.hints = control, random.Random(seed), hints_of(grammar)
        self.written = b""

    def allowed(self) -> list[int]:
        mask = self.matcher.compute_bitmask()
        return [token for token in range(len(mask) * 8) if mask[token // 8] >> token % 8 & 1]

    def text(self) -> str:
        while len(self.written) < _MOST_BYTES:
            may = self.allowed()
            is_free = len(may) > _FREE
            if not may or may == [256] or (256 in may and self.chance.random() < (0.2 if is_free else 0.6)):
                return self.written.decode("utf-8", "replace")
            for token in self.next(may, is_free=is_free):
                assert self.matcher.consume_token(token), self.matcher.get_error()
                self.written += self.control[token - 257].encode() if token > 256 else bytes([token])
        pytest.fail("the walk does not end")

    def next(self, may: list[int], *, is_free: bool) -> list[int]:
        control = [token for token in may if token > 256]
        hint = [*self.chance.choice(self.hints).encode()] if is_free else [one for one in b"}]" if one in may][:1]
        if control and self.chance.random() < 0.2:
            return [self.chance.choice(control)]
        if hint and self.chance.random() < 0.4 and self.matcher.validate_tokens(hint) == len(hint):
            return hint
        letters = [token for token in may if 32 <= token < 127 or token == 10] or [one for one in may if one < 256]
        return [self.chance.choice(letters or control)]


def hints_of(grammar: str) -> list[str]:
    """What ends free text in this grammar."""
    ends = [
        "</parameter>\n",
        "\n</parameter>\n",
        "</arg_value>\n",
        "</｜DSML｜parameter>\n",
        "<escape>",
        '<|"|>',
        "<|end|>",
    ]
    return ['"', "</", *(end for end in ends if json.dumps(end, ensure_ascii=False) in grammar)]


def read(dialect: Dialect, text: str, tools: list[Tool] = TOOLS) -> tuple[str, list[tuple[str, str]]]:
    parser = dialect.parser(tools)
    parsed = [parser.push(text), parser.finish()]
    calls: dict[int, list[str]] = {}
    for delta in (delta for one in parsed for delta in one.tool_calls):
        call = calls.setdefault(delta.index, [delta.name, ""])
        call[1] += delta.arguments
    return "".join(one.content for one in parsed), [(name, text) for name, text in calls.values()]


def check(calls: list[tuple[str, str]]) -> None:
    schemas = {tool.function.name: tool.function.parameters for tool in TOOLS}
    for name, arguments in calls:
        jsonschema.validate(arguments_of(arguments), schemas[name] or {"type": "object"})


def grammar_of(
    dialect: Dialect, tools: list[Tool], *, is_required: bool, is_parallel: bool, is_control: bool
) -> tuple[str, list[str]]:
    """A dialect's grammar, and the tags that are control tokens."""
    control = sorted(dialect.markers) if is_control else []
    ids = {token: 257 + place for place, token in enumerate(control)}
    return dialect.grammar(tools, is_required=is_required, is_parallel=is_parallel, token_ids=ids), control


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", dialects())
def test_required_calls_of_the_grammar_are_read_and_fit(name: str, seed: int) -> None:
    """Whatever a model writes under a grammar that wants calls is calls, with arguments that follow the schemas."""
    dialect, is_parallel = dialects()[name], bool(seed % 2)
    is_control = name == "openai" or seed > 2  # its tags cannot be text: they could stand in strings
    grammar, control = grammar_of(dialect, TOOLS, is_required=True, is_parallel=is_parallel, is_control=is_control)
    text = Walk(grammar, control, seed).text()
    content, calls = read(dialect, text)
    assert calls, text
    assert not content or name == "openai", text
    assert is_parallel or len(calls) == 1, text
    check(calls)


@pytest.mark.parametrize("is_control", [False, True])
@pytest.mark.parametrize("name", dialects())
def test_optional_calls_of_the_grammar_are_read_and_fit(name: str, is_control: bool) -> None:
    """Under a grammar that leaves the choice text is text, and a call that begins is held to the schemas."""
    dialect = dialects()[name]
    is_control = is_control or name == "openai"
    grammar, control = grammar_of(dialect, TOOLS, is_required=False, is_parallel=True, is_control=is_control)
    for seed in range(4):
        walk = Walk(grammar, control, seed)
        walk.hints.append(trigger_of(grammar, dialect))
        check(read(dialect, walk.text())[1])


def trigger_of(grammar: str, dialect: Dialect) -> str:
    """What begins calls in the midst of text."""
    tags = [
        tag for tag in re.findall(r'"([^"\\]+)"', grammar) if tag in dialect.markers or tag.startswith("<tool_call")
    ]
    return tags[0] if tags else '"'


@pytest.mark.parametrize("name", sorted(dialects()))
@pytest.mark.parametrize("is_required", [False, True])
def test_calls_of_the_grammar_are_read_where_it_holds_the_answer(name: str, is_required: bool) -> None:
    """A parser that is told of the grammar reads the calls that the grammar has as one that is not told."""
    dialect = dialects()[name]
    grammar, control = grammar_of(dialect, TOOLS, is_required=is_required, is_parallel=True, is_control=True)
    text = Walk(grammar, control, 3).text()
    held, free = (dialect.parser(TOOLS, is_held=is_held) for is_held in (True, False))
    names = [
        [call.name for one in (parser.push(text), parser.finish()) for call in one.tool_calls if call.name]
        for parser in (held, free)
    ]
    assert len(names[0]) == len(names[1]) if is_required else len(names[0]) <= len(names[1])
