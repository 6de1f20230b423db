"""How many drafts a step verifies that computes prompt tokens too, by rates and seconds alone; knows no request.

Such a step is bound by arithmetic: a draft takes a row's share, and all that decode wait for the prompts meanwhile. A
draft is worth what it saves later: its request's share of a decode-only step. It takes a row here, and what a row adds
to a decode-only step, where it has logits as here, but no more than as much again. Prompts give up a fiftieth of a
step at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pyagent.infrastructure.engine.drafts.step_seconds import LEAST_GAIN, StepSeconds

_SHARE = 50
"""Of so many rows one may be a draft."""
_SAMPLES = 9
_PLAIN_EVERY = 16
"""After so many steps with drafts one goes without, to measure; sooner while little was measured."""
_PAIRS = 8
_NOISE = 1.05
"""That steps with drafts take so many times as long as those without says nothing: the machine varies by as much."""


class BesidePrompts:
    """Chooses them, and measures what a row takes in steps with prompts: medians by power of two of all rows.

    Such steps get longer and longer as prompts do, and vary with all else on the machine by more than drafts take. So
    what drafts add is measured by steps that follow each other, one with drafts and one without, and counts where three
    quarters of the last pairs say so.
    """

    def __init__(self, decoding: StepSeconds) -> None:
        """Decode-only steps take as long as `decoding` says."""
        self._decoding = decoding
        self._samples: dict[int, deque[float]] = {}
        self._ratios = deque([1.0] * _PAIRS, maxlen=_PAIRS)  # how many times as long one with drafts took
        self._num_pairs = 0
        # Of the last step: the class of its size, whether it had drafts, the seconds of a row.
        self._before: tuple[int, bool, float] = (0, False, 0.0)
        self._num_drafted = 0  # steps since one without drafts

    def most(self, num_rows: int) -> int:
        """Return how many drafts a step of so many rows verifies at most: none where it is time to go without."""
        is_due = self._row_seconds(num_rows) > 0 and self._num_drafted < min(_PLAIN_EVERY, 1 + self._num_pairs)
        return num_rows // _SHARE if is_due else 0

    def num_worth(self, chances: Sequence[float], num_requests: int, num_rows: int) -> int:
        """Return how many of some drafts, likeliest first, save the most seconds beside prompts; 0 if none saves any.

        The step has `num_rows` rows without them, those of `num_requests` that decode among them.
        """
        worth = self._decoding.at(num_requests) / num_requests
        most, num_best, saved = 0.0, 0, 0.0
        for num_drafts, chance in enumerate(chances, 1):
            saved += chance * worth
            net = saved - LEAST_GAIN * self._rows(num_drafts, num_requests, num_rows)
            if net > most:
                most, num_best = net, num_drafts
        return num_best

    def cost(self, num_drafts: int, num_requests: int, num_rows: int) -> float:
        """Return what drafts took of a step of so many rows, in seconds: by their number, and by what was measured."""
        excess = max(0.0, sorted(self._ratios)[_PAIRS // 4] - _NOISE)
        return self._rows(num_drafts, num_requests, num_rows) + excess * num_rows * self._row_seconds(num_rows)

    def note(self, num_rows: int, seconds: float, *, has_drafts: bool) -> None:
        """Record a step with prompts beside which others decoded."""
        self._num_drafted = self._num_drafted + 1 if has_drafts else 0
        size, row_seconds = num_rows.bit_length(), seconds / num_rows
        size_before, had_drafts, before = self._before
        if size == size_before and has_drafts is not had_drafts:
            self._ratios.append(row_seconds / before if has_drafts else before / row_seconds)
            self._num_pairs += 1
        self._before = size, has_drafts, row_seconds
        self._samples.setdefault(size, deque(maxlen=_SAMPLES)).append(row_seconds)

    def _row_seconds(self, num_rows: int) -> float:
        """Return what a row takes in a step of about so many; 0 before one was measured."""
        samples = sorted(self._samples.get(num_rows.bit_length(), (0.0,)))
        return samples[len(samples) // 2]

    def _rows(self, num_drafts: int, num_requests: int, num_rows: int) -> float:
        with_logits = self._decoding.at(num_requests + num_drafts) - self._decoding.at(num_requests)
        seconds = num_drafts * self._row_seconds(num_rows)
        return seconds + min(max(0.0, with_logits), seconds)
