"""What steps of so many rows take, as measured, and what drafts may still cost. Knows no request.

A row is a token that a decode-only step computes, so that a step of eight requests with two drafts has ten rows.
"""

from __future__ import annotations

from collections import deque

_SAMPLES = 9
"""The median of so many last steps counts: a step that the machine interrupted does not."""
_FEW, _STALE_STEPS = 3, 256
"""What rests on fewer steps than this is measured again after so many."""
_GUESSED_SLOPE = 0.1
"""What a row adds, before any was measured: this part of the step without it."""
_ALLOWANCE, MODEL_ALLOWANCE = 0.01, 0.005
"""Part of the decode time that copies of texts may lose, and drafts of a model."""
_OVERRUN_FADE = 1 - 1 / 16
"""What a step counts for beside the next, in how far steps exceed what was expected of them."""
LEAST_GAIN = 1.03
"""Steps with drafts are to give so many times the tokens a second of those without."""
_CREDIT_STEPS = 8
"""What drafts have won counts for so many plain steps at most, so that they end soon where they begin to lose."""
_FUND_ALLOWANCE, _FUND_STEPS = 0.005, 256
"""Part of all time that goes to a draft model's fund, and what it holds at most, in plain steps."""


class StepSeconds:
    """Medians by rows, and between them a line."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._noted: dict[int, int] = {}
        self._num_steps = 0

    def note(self, num_rows: int, seconds: float) -> None:
        """Record a decode-only step."""
        self._num_steps += 1
        samples = self._samples.setdefault(num_rows, deque(maxlen=_SAMPLES))
        samples.append(seconds)
        self._medians[num_rows] = sorted(samples)[len(samples) // 2]
        self._noted[num_rows] = self._num_steps

    def is_known(self, num_rows: int) -> bool:
        """Whether steps of just so many rows were measured, and not long ago where they were few."""
        samples = self._samples.get(num_rows)
        if samples is None:
            return False
        return len(samples) >= _FEW or self._num_steps - self._noted[num_rows] < _STALE_STEPS

    def age(self, num_rows: int) -> int:
        """Return how many steps ago one of so many rows was measured; they must be known."""
        return self._num_steps - self._noted[num_rows]

    def at(self, num_rows: int) -> float:
        """Return the seconds to expect of so many rows; 0 before anything is known."""
        if self.is_known(num_rows):
            return self._medians[num_rows]
        known = [rows for rows in self._medians if self.is_known(rows)]
        below = max((rows for rows in known if rows < num_rows), default=0)
        above = min((rows for rows in known if rows > num_rows), default=0)
        first, last = self._medians.get(below, 0.0), self._medians.get(above, 0.0)
        if not above:
            return first + first * _GUESSED_SLOPE * (num_rows - below)
        return first + (last - first) * (num_rows - below) / (above - below) if below else last


class Overrun:
    """How many times their medians steps take on average: what medians do not show of steps that are slow now and then.

    The last steps count most; what is older fades.
    """

    def __init__(self) -> None:
        self._seconds = self._expected = 0.0

    def note(self, seconds: float, expected: float) -> None:
        """Record a step of which `expected` seconds were expected."""
        self._seconds = _OVERRUN_FADE * self._seconds + seconds
        self._expected = _OVERRUN_FADE * self._expected + expected

    @property
    def ratio(self) -> float:
        """At least 1."""
        return max(1.0, self._seconds / self._expected) if self._expected > 0 else 1.0


class Balance:
    """Seconds that drafts have won, and of what they may lose, the rest. While it is spent there are none.

    What they lose is bounded by it, whatever was expected of them: a part of the time spent decoding, and a step.
    """

    def __init__(self, allowance: float = _ALLOWANCE) -> None:
        self.seconds = 0.0
        self._allowance = allowance

    def note(self, seconds: float, plain_seconds: float, num_requests: int, num_accepted: int) -> float:
        """Record a step with drafts, in which `num_accepted` were right; one without takes `plain_seconds`.

        Return the seconds that the drafts saved, or lost where it is negative.
        """
        saved = plain_seconds * (num_requests + num_accepted) / num_requests - seconds
        self.book(saved, seconds, plain_seconds)
        return saved

    def book(self, saved: float, seconds: float, plain_seconds: float) -> None:
        """Take in what the drafts of a step of so many seconds saved; a decode-only one takes `plain_seconds`."""
        self.seconds = min(self.seconds + saved + self._allowance * seconds, _CREDIT_STEPS * plain_seconds)

    def earn(self, seconds: float) -> None:
        """Record a step without drafts."""
        self.seconds += self._allowance * seconds if self.seconds < _CREDIT_STEPS * seconds else 0.0


class Fund:
    """Seconds that a draft model may take to compute logs for the first time: not while they are negative.

    They begin with a few steps' worth, grow by a part of all steps' time, and by what drafts have won.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_open = False

    def note(self, seconds: float, plain_seconds: float, saved: float) -> None:
        """Record a step, and what its drafts saved; one without any takes `plain_seconds`, 0 where it is not known."""
        if not self._is_open and plain_seconds:
            self._is_open = True
            self.seconds += _CREDIT_STEPS * plain_seconds
        self.seconds += _FUND_ALLOWANCE * seconds + saved
        if plain_seconds:
            self.seconds = min(self.seconds, _FUND_STEPS * plain_seconds)
