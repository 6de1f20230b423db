"""Counts of values by upper bound, as Prometheus has them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass(slots=True)
class Histogram:
    """Counts of values by upper bound, and their sum."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts, as Prometheus has them."""
        names, num_below, rows = [*map(repr, self.bounds), "+Inf"], 0, list[tuple[str, float]]()
        for name, count in zip(names, self.counts, strict=True):
            num_below += count
            rows.append((name, num_below))
        return rows
