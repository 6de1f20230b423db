"""Bytes and durations as text, in the one form of messages, tables and logs; `setting_kinds.parse_size` reads sizes."""

from __future__ import annotations

_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_SPANS = (("days", 86_400), ("h", 3_600), ("min", 60))
_LEAST = 2
"""Of a unit; less is told in the next smaller one."""
_ROUNDS_UP = 0.99995
"""From this share of a unit on, one digit after the point would say 1000.0 of the smaller unit."""


def format_bytes(num_bytes: int) -> str:
    """Return the bytes in decimal units with one digit after the point: `98.4 MB`, `1.2 GB`, `512 bytes`."""
    for unit, size in _UNITS:
        if num_bytes >= size * _ROUNDS_UP:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"


def format_duration(seconds: float) -> str:
    """Return a duration in whole units: `12 s`, `5 min`, `3 h`, `2 days`."""
    for unit, span in _SPANS:
        if seconds >= _LEAST * span:
            return f"{seconds // span:.0f} {unit}"
    return f"{seconds:.0f} s"
