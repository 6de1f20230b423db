"""Messages of a server that are nested deeper than the package reads: cut where they are too deep, and read after all.

The package drops a message that it cannot read, so that one schema would hide all tools of its server, and one deep
result would be waited for until its time is up. What is cut is told where it stood.
"""

from __future__ import annotations

import re
from itertools import islice

from pydantic_core import from_json

MAX_DEPTH = 150
"""Lists and tables within each other. The package reads 200."""
CUT = b'"[cut: nested too deep]"'
_MAX_TOKENS = 200_000
"""Texts and brackets of a message that are looked at, some 0.1 s."""
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


def shallow(message: bytes) -> bytes:
    """Return a message as one that can be read; one that is no JSON, or has too much to look at, as it is."""
    if message.count(b"{") + message.count(b"[") <= MAX_DEPTH:
        return message
    try:
        from_json(message)
    except ValueError as error:
        return _cut(message) if "recursion limit" in str(error) else message
    return message


def _cut(message: bytes) -> bytes:
    parts: list[bytes] = []
    depth, done = 0, 0
    for token in islice(_TOKEN.finditer(message), _MAX_TOKENS):
        letter = token[0][:1]
        if letter in b"[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                parts += [message[done : token.start()], CUT]
        elif letter in b"]}":
            if depth == MAX_DEPTH + 1:
                done = token.end()
            depth -= 1
    return message if depth else b"".join([*parts, message[done:]])
