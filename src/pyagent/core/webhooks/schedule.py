"""When a delivery is tried again, and when that ends. Pure.

After the first attempt 5 s pass, then four times as long each time, up to 12 h: 5 s, 20 s, 80 s, 5 min, 21 min, 1.4 h,
5.7 h, and 12 h five times, each with up to a fifth more or less, so that endpoints that failed together are not asked
together. After the thirteenth attempt, some three days after the first, the message is a dead letter. An endpoint that
took nothing for five days is disabled.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import msgspec

_JITTER = 0.2
_GONE = 410
MAX_RETRY_AFTER_SECONDS = 86_400.0


class Answer(NamedTuple):
    """What an attempt came to: a status, or an error where no answer came. `retry_after` is in seconds."""

    status: int | None
    error: str = ""
    retry_after: float | None = None

    @property
    def is_success(self) -> bool:
        """Whether the endpoint took the message: any 2xx."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def text(self) -> str:
        """What went wrong, in words."""
        if self.status is None:
            return self.error
        redirect = "; redirects are not followed: give the URL that it leads to" if 300 <= self.status < 400 else ""
        return f"it answered with status {self.status}{redirect}"


class Verdict(NamedTuple):
    """What becomes of a message that was not taken: tried again `due_at`, or never; and whether its endpoint ends."""

    due_at: float | None
    paused_until: float = 0.0
    disabled: str = ""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how fast. Up to `num_ordered` attempts a message holds up those behind it, later ones do not."""

    base_seconds: float = 5.0
    factor: float = 4.0
    max_seconds: float = 43_200.0
    num_attempts: int = 13
    num_ordered: int = 5
    disable_seconds: float = 5 * 86_400.0

    def wait_seconds(self, attempts: int, draw: Callable[[float, float], float] = random.uniform) -> float:
        """Return the seconds to wait after so many attempts."""
        wait = min(self.max_seconds, self.base_seconds * self.factor ** (attempts - 1))
        return wait * draw(1 - _JITTER, 1 + _JITTER)

    def after_failure(
        self,
        attempts: int,
        answer: Answer,
        failing_since: float,
        now: float,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> Verdict:
        """Decide on a message that was tried `attempts` times, for an endpoint that has taken nothing for a time."""
        if answer.status == _GONE:
            return Verdict(None, disabled="it answered 410: it is gone")
        if now - failing_since >= self.disable_seconds:
            days = self.disable_seconds / 86_400
            return Verdict(None, disabled=f"it took nothing for {days:g} days; at last {answer.text}")
        asked = min(answer.retry_after or 0.0, MAX_RETRY_AFTER_SECONDS)
        paused_until = now + asked if asked else 0.0
        if attempts >= self.num_attempts:
            return Verdict(None, paused_until)
        return Verdict(now + max(asked, self.wait_seconds(attempts, draw)), paused_until)


def retry_after_seconds(value: str, now: float) -> float | None:
    """Return what a header `Retry-After` asks for, as seconds; None for what says nothing."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    try:
        when = parsedate_to_datetime(text[:100])
    except (ValueError, TypeError, IndexError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.fromtimestamp(now, UTC)).total_seconds())
