"""Vectors in a file: rows of float32, little-endian, unit length, side by side; a row that begins with NaN is deleted.

The scan of all rows is Rust's (`nearest_rows`), exact and without the interpreter's lock. Which row is whose, and which
are free, the index's database says: a row is written before it is told of.
"""

from __future__ import annotations

import math
import os
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path

_FLOAT_BYTES = 4
_GONE = math.nan


class VectorFile:
    """The rows of one index, each of `num_dimensions`."""

    def __init__(self, path: Path, num_dimensions: int) -> None:
        self._path = path
        self._num_dimensions = num_dimensions

    def write(self, slot: int, vector: Sequence[float]) -> None:
        """Write a row."""
        row = array("f", vector)
        if sys.byteorder == "big":
            row.byteswap()
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, row.tobytes(), slot * self._num_dimensions * _FLOAT_BYTES)
        finally:
            os.close(descriptor)

    def delete(self, slots: Sequence[int]) -> None:
        """Write over rows, so that nothing of them is left."""
        for slot in slots:
            self.write(slot, [_GONE] * self._num_dimensions)

    def nearest(self, vector: Sequence[float], count: int) -> list[int]:
        """Return the rows nearest to a vector of unit length, nearest first."""
        from pyagent import _rust

        if not self._path.is_file():
            return []
        found = _rust.nearest_rows(self._path, list(vector), count, _rust.available_cores())
        return [row for row, _ in found]


def unit(vector: Sequence[float]) -> list[float] | None:
    """Return a vector at length 1; None for one that has no direction, or holds what is no number."""
    length = math.sqrt(math.fsum(value * value for value in vector)) if all(map(math.isfinite, vector)) else 0.0
    return [value / length for value in vector] if length > 0 and math.isfinite(length) else None
