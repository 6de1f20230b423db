"""Bytes as text: the one form of every message, table and log line. `setting_kinds.parse_size` reads sizes."""

from __future__ import annotations

_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_ROUNDS_UP = 0.99995
"""From this share of a unit on, one digit after the point would say 1000.0 of the smaller unit."""


def format_bytes(num_bytes: int) -> str:
    """Return the bytes in decimal units with one digit after the point: `98.4 MB`, `1.2 GB`, `512 bytes`."""
    for unit, size in _UNITS:
        if num_bytes >= size * _ROUNDS_UP:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"
