"""JSON text of what a model wrote in another way: characters in strings, escapes of Python, bare words."""

from __future__ import annotations

import json
import math
import re
from functools import partial

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
_PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_MAX_NUMBER_CHARS = 1000


def string_part(text: str) -> str:
    """Return text as it stands inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def string(text: str) -> str:
    """Return text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def unescaped(said: str) -> str:
    """Return what follows a backslash as it stands in a JSON string; a backslash that begins no escape is itself."""
    if said[0] == "u" and len(said) > 1:
        return f"\\{said}"
    if said[0] in "xU" and len(said) > 1:
        code = int(said[1:], 16)
        if 0xD800 <= code < 0xE000:
            return f"\\u{code:04x}"
        return string_part(chr(code) if code < 0x110000 else f"\\{said}")
    if said in _PLAIN_ESCAPES:
        return string_part(_PLAIN_ESCAPES[said])
    return string_part(said if said in "\"'\\/" else f"\\{said}")


def is_constant(word: str) -> bool:
    """Whether a bare word is a constant or a number."""
    return not word_as_json(word).startswith('"')


def word_as_json(word: str) -> str:
    """Return a bare word as JSON: a constant, a number, else a string. What JSON has no number for stays a string."""
    if word in _WORDS:
        return _WORDS[word]
    if _NUMBER.fullmatch(word):
        return word
    if len(word) <= _MAX_NUMBER_CHARS and word.isascii() and not _LEADING_ZERO.match(word):
        for read in (partial(int, base=0), float):
            try:
                value = read(word)
            except ValueError:
                continue
            if math.isfinite(value):
                return json.dumps(value)
    return string(word)
