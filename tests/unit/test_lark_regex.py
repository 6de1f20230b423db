"""Lark without rules that lead back to themselves is one regular expression, and says what of it is none."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyagent.core.emulation.patterns import bytes_as_tokens
from pyagent.core.structured_output.lark_regex import regex_of_lark

GRAMMARS = [
    'start: A{1,2} b?\nA: "x"i | /[a-c]/i\nb: ["!"] "."  -> dot\n  | "," // c\n',
    'start: "a".."c"~2 "b"~0..1 "."{,2}',
    'start: n | w\nn: INT\nw: WORD "!"\n%import common.INT\n%import common.WORD',
    'start: ("a" "b" | "c")+ | "[" /[^a\\]]/ "]"',
    '!start: x* -> many\n?x: "." | "!"',
]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(GRAMMARS), st.lists(st.sampled_from("aAbxX.!,c1[]"), max_size=5))
def test_expression_has_the_texts_of_the_grammar(lark: str, letters: list[str]) -> None:
    """A text matches the expression where llguidance takes it by the grammar; Lark may take fewer, as it is greedy."""
    from llguidance import LLMatcher

    text = "".join(letters)
    matcher = LLMatcher(bytes_as_tokens(), LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    num_taken = matcher.try_consume_tokens([*text.encode()])
    is_taken = num_taken == len(text) and matcher.is_accepting()
    is_matched = re.fullmatch(regex_of_lark(lark, 1000), text) is not None
    assert is_matched or not is_taken
    assert is_taken or not is_matched or "WORD" in lark


@pytest.mark.parametrize(
    ("lark", "says"),
    [
        ('start: "(" start ")" | "x"', "'start' leads back to itself"),
        ("start: x", "no rule 'x'"),
        ("", "no rule 'start'"),
        ('start: "b"\n%ignore " "', "'%'"),
        ("start: %json {}", "%json"),
        ("start: <tok>", "<tok>"),
        ("start[lazy]: /a/", "options of the rule 'start'"),
        ('start: A & B\nA: "a"\nB: "b"', "'&'"),
        ('start: ~A\nA: "a"', "'~'"),
        ('start: "a"\nstart: "b"', "two rules"),
        ('"x"\nstart: "a"', "before its first rule"),
        ("start: /a)|(b/", "brackets of"),
        ("start: /[(]a(/", "is not closed"),
        ("start: /(?x)a #/", "spaces that are none"),
        ("start: /[a/", "brackets of"),
        ('start: "ab".."c"', "one letter on either side"),
        ("%import common.NONE\nstart: NONE", "no common.NONE"),
        ("\n".join(f"a{at}: a{at + 1} a{at + 1}" for at in range(60)) + '\na60: "x"\nstart: a0', "more than 9999"),
        ("\n".join(f"a{at}: a{at + 1}" for at in range(150)) + '\na150: "x"\nstart: a0', "100 deep"),
    ],
)
def test_what_no_expression_has_is_named(lark: str, says: str) -> None:
    """Each is a `ValueError` in words for the grammar's author."""
    with pytest.raises(ValueError, match=re.escape(says)):
        regex_of_lark(lark, 9999)
