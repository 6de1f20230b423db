"""Regular expressions as GBNF: the grammar takes what the expression matches, or there is none."""

from __future__ import annotations

import re

import pytest

from pyagent.core.response_format import GrammarFormat, ResponseFormat
from pyagent.core.structured_output.matching import fault_of_text
from pyagent.core.structured_output.regex_gbnf import gbnf_of_regex

SAMPLES = [
    *(
        "",
        "a",
        "b",
        "ab",
        "abab",
        "aaa",
        "0",
        "42",
        "2024-01-31",
        "-",
        "]",
        "^",
        '"',
        "\\",
        ".",
        "x.y",
        "a b",
        "\n",
        "\t",
    ),
    *("yes", "no", "maybe", "anna@example.org", "[x]", "a-b", "é", "日", "#ff00aa", "3.14", "$5", "_x1", "a\nb"),
]


@pytest.mark.parametrize(
    "regex",
    [
        *(
            "yes|no",
            "(a|b)+",
            r"\d{4}-\d{2}-\d{2}",
            "^a*$",
            "[^a-c]",
            r"[\]\^\-\\]",
            r"[a-z_]\w*",
            ".",
            "a.b",
            "",
            "a{2,}",
        ),
        *(r"\w+@\w+\.[a-z]{2,3}", r"#[0-9a-fA-F]{6}", r"\$\d+", r"\x41|\u00e9|\x{65E5}", "(?:ab){0,2}?", '"', '["-]'),
        *(r"(?P<year>\d+)(?:\.\d*)?", r"\[x\]", r"\s", r"[\s\d]+", "[a-]", "日|é", "a||b", r"\n", "(ab|)+"),
    ],
)
def test_grammar_takes_what_the_expression_matches(regex: str) -> None:
    """Each text is taken by the grammar exactly where the expression matches it whole."""
    gbnf = gbnf_of_regex(regex)
    assert gbnf is not None
    wanted = ResponseFormat("grammar", grammar=GrammarFormat(gbnf, "gbnf"))
    compiled = re.compile(regex.replace(r"\x{65E5}", "日"), re.ASCII)
    for text in SAMPLES:
        assert (fault_of_text(text, wanted) is None) == (compiled.fullmatch(text) is not None), (gbnf, text)


@pytest.mark.parametrize(
    "regex",
    [
        *(r"\bword", r"(a)\1", "(?=a)b", "(?i)a", "(?<!x)a", r"\p{L}", r"[^\d]", r"\D", "[[:alpha:]]", "[a&&b]", "a++"),
        *("a**", "a^b", "a$b", "(a", "a)", "[a", "[]a]", "a{2001}", "a{x}", "*a", "\\", "[z-a]", "(" * 60 + ")" * 60),
        *("x" * 10_000, r"\x{110000}", r"\z"),
    ],
)
def test_expression_without_a_counterpart_is_not_translated(regex: str) -> None:
    """What a grammar cannot say, or what is no expression, gives none: the link is then asked in words."""
    assert gbnf_of_regex(regex) is None
