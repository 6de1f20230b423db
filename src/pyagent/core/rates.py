"""A rate as users write it, `60/min`, and the arithmetic of a token bucket that is one number.

The number is the time at which the bucket is full again (GCRA, ITU-T I.371): it can be kept on disk, shared by
processes and read after a restart; once that time is past the bucket is full, and nothing needs to be kept. Pure.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

_SECONDS = {"s": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0, "day": 86400.0}
_RATE = rf"(\d{{1,9}}) ?/ ?({'|'.join(sorted(_SECONDS, reverse=True))})(?: burst (\d{{1,9}}))?( window)?( per client)?"
_LONGEST = 80
_ROUNDING_SECONDS = 1e-6


class Rate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`count` requests in `seconds`: by a bucket that holds `burst`, or exactly, in a sliding window."""

    count: int
    seconds: float
    burst: int = 0
    kind: Literal["bucket", "window"] = "bucket"
    is_per_client: bool = False
    text: str = ""


def read_rate(text: object) -> Rate:
    """Read a rate; raise `ValueError` for what is none."""
    match = re.fullmatch(_RATE, " ".join(text.split())) if isinstance(text, str) and len(text) < _LONGEST else None
    if match is None or not int(match[1]) or match[3] == "0":
        example = 'expected a rate such as "60/min", "10/s burst 20", "500/h window per client"'
        raise ValueError(f"{example}, got {text!r:.100}")
    if match[3] and match[4]:
        raise ValueError(f"expected either a burst or a window, got {text!r}")
    return Rate(
        count=int(match[1]),
        seconds=_SECONDS[match[2]],
        burst=int(match[3] or match[1]),
        kind="window" if match[4] else "bucket",
        is_per_client=bool(match[5]),
        text=match[0],
    )


def read_bucket_rate(text: object) -> Rate:
    """Read a rate that is a bucket of everybody's; raise `ValueError` for another."""
    rate = read_rate(text)
    if rate.kind == "window" or rate.is_per_client:
        raise ValueError(f'expected a rate such as "30/minute" or "10/s burst 20" here, got {text!r:.100}')
    return rate


def wait_seconds(rate: Rate, full_at: float, now: float, place: int = 1) -> float:
    """Return the seconds until the turn of who is at this place in the queue; 0 is now."""
    interval = rate.seconds / rate.count
    wait = _bounded(rate, full_at, now) + (place - rate.burst) * interval - now
    return 0.0 if wait <= _ROUNDING_SECONDS else wait


def full_at_after(rate: Rate, full_at: float, now: float) -> float:
    """Return when the bucket is full again after a turn is taken now."""
    return _bounded(rate, full_at, now) + rate.seconds / rate.count


def _bounded(rate: Rate, full_at: float, now: float) -> float:
    """Return when it is full again: never before now, and never later than an empty bucket is, should a clock jump."""
    return min(max(full_at, now), now + rate.burst * rate.seconds / rate.count)
