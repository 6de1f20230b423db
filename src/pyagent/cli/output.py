"""Writes to standard output: JSON that any program can read, colours and marks where a terminal has them.

JSON goes out as UTF-8 whatever the terminal's encoding is (RFC 8259).
"""

from __future__ import annotations

import io
import json
import sys
from typing import BinaryIO, Literal, cast

import msgspec

Colour = Literal["green", "red", "yellow", "cyan", "dim", "bold"]
_CODES: dict[Colour, int] = {"green": 32, "red": 31, "yellow": 33, "cyan": 36, "dim": 2, "bold": 1}
_OBEYED = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
_OBEYED[ord("\r")] = ""
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_SPINNER = "|/-\\"


def write_json(value: object) -> None:
    """Write a value as one line of JSON; what JSON cannot carry becomes its text."""
    try:
        line = msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:  # a file's name that is no UTF-8: its bytes go out as Python names them, `\udcff`
        line = json.dumps(msgspec.to_builtins(value, enc_hook=str), separators=(",", ":")).encode()
    write_json_line(line)


def write_json_line(line: bytes) -> None:
    """Write JSON that is encoded already, and pass it on at once."""
    stream: object = sys.stdout
    sys.stdout.flush()
    if isinstance(stream, io.TextIOWrapper):
        cast("BinaryIO", stream.buffer).write(line + b"\n")
    else:
        sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()


def coloured(text: str, colour: Colour) -> str:
    """Return the text in a colour, where standard output is a terminal that takes colours."""
    from pyagent.core.config import are_colours_allowed

    wants = sys.stdout.isatty() and are_colours_allowed()
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if wants else text


def for_terminal(text: str) -> str:
    """Return a text of others as a terminal may show it: its lines, and no escape that the terminal would obey.

    A model repeats what tools return, and an escape moves the cursor, writes the clipboard, hides what was asked. Where
    standard output is no terminal the text goes out as it is.
    """
    return text.translate(_OBEYED) if sys.stdout.isatty() else text


def mark(text: str, plain: str) -> str:
    """Return the mark, or a plain one where standard output cannot show it."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return plain
    return text


def spinner(seconds: float) -> str:
    """Return what a spinner shows after so many seconds."""
    frames = mark(_SPINNER, _PLAIN_SPINNER)
    return frames[int(seconds * 8) % len(frames)]
