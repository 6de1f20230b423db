"""The parts of a Lark grammar as llguidance reads it, for what is to be known before it compiles. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import cast

PARTS = re.compile(
    r"""
      (?P<skip> //[^\n]* | \#[^\n]* )
    | (?P<token> <[^>\s]*+>?+ )
    | (?P<text> "(?:\\.|[^"\\\n])*+"?+ )
    | /(?P<regex> (?:\\.|[^/\\\n])++ )/?+
    | %(?P<json> json|regex|llguidance )\b\s*+
    | (?P<nested> %lark\s*+\{ )
    | (?P<head> (?:(?<=\n)|\A)[ \t]*+(?P<rule>[!?]?[A-Za-z_][\w-]*+)(?:::[\w-]*+)?+
        (?:[^:\n|/"\[]|\[(?:"(?:\\.|[^"\\\n])*+"|[^\]"\n])*+\])*+:(?!:) )
    | (?P<repeat> \{\s*+(?P<least>\d*+)\s*+(?P<comma>,?+)\s*+(?P<most>\d*+)\s*+\}
        | ~\s*+(?P<from>\d++)(?:\s*+\.\.\s*+(?P<to>\d++))?+ )
    | (?P<name> [A-Za-z_][\w-]*+ )
    | (?P<open> [(\[{~] )
    | (?P<close> [)\]] )
    | (?P<end> \} )
    """,
    re.VERBOSE,
)
"""A text, or a regex, that is not closed ends with its line; `~` is a prefix, whose operand is within it."""


def parts_in(lark: str) -> Iterator[tuple[re.Match[str], object]]:
    """Yield the parts, comments left out, each with the JSON that follows it.

    Where JSON is to follow and none does, that is the last one: llguidance takes no such grammar.
    """
    at, decoder = 0, json.JSONDecoder()
    while (part := PARTS.search(lark, at)) is not None:
        at, value = part.end(), None
        if part["json"]:
            try:
                value, at = cast("tuple[object, int]", decoder.raw_decode(lark, at))
            except (ValueError, RecursionError):
                return
        if not part["skip"]:
            yield part, value


def rule_name(part: re.Match[str]) -> str:
    """Return the name of the rule that begins with a part."""
    return part["rule"].lstrip("!?")


def num_repeated(part: re.Match[str]) -> int:
    """Return how often a part of repetition repeats what is before it, at most; the least where there is no most."""
    return int((part["most"] or part["least"] or part["to"] or part["from"] or "1")[:9])


def is_terminal(name: str) -> bool:
    """Whether a rule of this name is one regular expression."""
    return name.isupper()
