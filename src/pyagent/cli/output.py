"""Writes JSON to standard output, for programs.

It goes out as UTF-8 whatever the terminal's encoding is (RFC 8259).
"""

from __future__ import annotations

import io
import sys
from typing import BinaryIO, cast

import msgspec


def write_json(value: object) -> None:
    """Write a value as one line of JSON; what JSON cannot carry becomes its text."""
    write_json_line(msgspec.json.encode(value, enc_hook=str))


def write_json_line(line: bytes) -> None:
    """Write JSON that is encoded already, and pass it on at once."""
    stream: object = sys.stdout
    sys.stdout.flush()
    if isinstance(stream, io.TextIOWrapper):
        cast("BinaryIO", stream.buffer).write(line + b"\n")
    else:
        sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()
