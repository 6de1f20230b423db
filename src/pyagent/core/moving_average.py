"""The exponential moving average of measured values, such as a step's seconds."""

from __future__ import annotations


def moving_average(before: float | None, value: float, weight: float) -> float:
    """Return the average after `value`, which has `weight` (0 to 1) in it; before the first value it is None."""
    return value if before is None else before + weight * (value - before)
