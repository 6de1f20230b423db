r"""Patterns of JSON schemas, matched in time that grows with the text alone, also where they are hostile.

Python's `re` takes exponential time for some patterns, and a client brings both the pattern and, by its prompt, the
text. llguidance, which holds the embedded engine's answers to such patterns, follows all ways of a pattern at once.
What it lacks (look-around, back references, anchors in the middle) is refused.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_ANY = "(?s:.*)"


class PatternError(ValueError):
    """A pattern that is none, or needs what cannot be matched in linear time."""


class Pattern:
    """A pattern, ready to be looked for."""

    def __init__(self, pattern: str) -> None:
        """Raises `PatternError`."""
        from llguidance import LLMatcher

        self._pattern = pattern
        whole = "|".join(_unanchored(way) for way in _ways(pattern))
        self._matcher = LLMatcher(bytes_as_tokens(), LLMatcher.grammar_from_regex(whole), log_level=0)
        self._check(self._matcher)

    def is_in(self, text: str) -> bool:
        """Whether it is found in a text. Raises `PatternError` for one that is too complex for this text."""
        matcher = self._matcher.deep_copy()
        tokens = bytes_as_tokens().tokenize_bytes(text.encode(errors="replace"))
        is_found = not tokens or (matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens))
        self._check(matcher)
        return is_found and matcher.is_accepting()

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            lines = [line for line in matcher.get_error().splitlines() if "error:" in line or "not supported" in line]
            why = (lines or ["it is too complex"])[0].strip()[:160]
            raise PatternError(f"the pattern {self._pattern[:80]!r} cannot be matched: {why}")


@cache
def bytes_as_tokens() -> LLTokenizer:
    """Return a vocabulary with a token for each byte."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def _unanchored(way: str) -> str:
    """Return what must match the whole of a text for `way` to be found in it."""
    is_ended = way.endswith("$") and not (len(way) - len(way[:-1].rstrip("\\")) - 1) % 2
    before = "" if way.startswith("^") else _ANY
    return f"{before}(?:{way.removeprefix('^')[: -1 if is_ended else None]}){'' if is_ended else _ANY}"


def _ways(pattern: str) -> list[str]:
    """Return the alternatives of a pattern, outside of its groups and classes."""
    ways, begin, depth, is_class, is_escaped = list[str](), 0, 0, False, False
    for place, letter in enumerate(pattern):
        if is_escaped or letter == "\\":
            is_escaped = not is_escaped
        elif is_class:
            is_class = letter != "]"
        elif letter == "[":
            is_class = True
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == "|" and depth == 0:
            ways.append(pattern[begin:place])
            begin = place + 1
    return [*ways, pattern[begin:]]
