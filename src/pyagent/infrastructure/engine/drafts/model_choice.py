"""For how many rows and how far a draft model drafts, by rates and seconds alone; knows no request and no model.

The tokens that a step is expected to give are its rows, and of each row the sum of `rate**k` over its drafts, as a
draft counts where those before it were right (Leviathan et al., arXiv 2211.17192, section 3). Its seconds are those of
the target's step of all rows and drafts, and one step of the draft model for each draft of a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyagent.infrastructure.engine.drafts.step_seconds import LEAST_GAIN

_HORIZON = 256
"""Tokens that an answer is expected to have yet, where it may have more and nothing was seen of others; and at most."""
_LENGTHS = 9
_TRIAL_STEPS, _TRIAL_TOKENS = 64, 2
"""Where drafts of the model do not seem to pay, so many are tried after so many steps, as the text may have changed."""
_HOPE = 2.0
"""How many times the tokens a second a trial may find: by that, catching up for it must pay."""


class Candidate(NamedTuple):
    """A row: how likely a draft of it is right where those before were, and its drafts at most."""

    rate: float
    most: int


class Choice(NamedTuple):
    """So many drafts for the first `num_rows` rows, and how many times the tokens a second without any that gives."""

    num_rows: int
    num_drafts: int
    gain: float


class Costs(NamedTuple):
    """Seconds by rows: of the target's steps, and of the draft model's."""

    target: Callable[[int], float]
    draft: Callable[[int], float]


def choose(candidates: Sequence[Candidate], num_rows: int, room: int, rate: float, costs: Costs) -> Choice | None:
    """Return what gives the most tokens a second, with no more than `room` drafts; None where nothing is better.

    Candidates are ordered, likelier ones first. Better is more than `rate` tokens a second, which the step gives
    without the model, and `LEAST_GAIN` times those of `num_rows` rows without any drafts.
    """
    plain = num_rows / costs.target(num_rows)
    best, choice = max(rate, LEAST_GAIN * plain), None
    for count in _sizes(len(candidates)):
        draft_seconds = costs.draft(count)
        chances, num_drafts, expected = [1.0] * count, 0, float(num_rows)
        for length in range(1, max(one.most for one in candidates[:count]) + 1):
            for place, one in enumerate(candidates[:count]):
                if length <= one.most:
                    chances[place] *= one.rate
                    expected += chances[place]
                    num_drafts += 1
            if num_drafts > room:
                break
            found = expected / (costs.target(num_rows + num_drafts) + length * draft_seconds)
            if found > best:
                best, choice = found, Choice(count, length, found / plain)
    return choice


def least_chance(count: int, num_rows: int, costs: Costs) -> float:
    """Return how likely a further draft of `count` rows must be right to be worth its seconds."""
    plain = costs.target(num_rows)
    cost = costs.draft(count) / count + max(0.0, costs.target(num_rows + 1) - plain)
    return cost * num_rows / plain


def pays(seconds: float, num_left: int, choice: Choice, num_rows: int, costs: Costs) -> bool:
    """Whether drafts for `num_left` tokens more of a row save the seconds that it takes to catch up with it."""
    return num_left * costs.target(num_rows) / num_rows * (1 - 1 / choice.gain) > seconds


class Trials:
    """When a draft model that does not seem to pay is asked all the same: now and then, and while it is right."""

    def __init__(self) -> None:
        self._num_unasked = 0

    def begin(self) -> None:
        """Begin with a step."""
        self._num_unasked += 1

    def note_asked(self) -> None:
        """Record that the model drafts in this step."""
        self._num_unasked = 0

    def choice(self, was_right: Callable[[], bool]) -> Choice | None:
        """Return a few drafts for one row, if a trial is due; or if the last step's first draft was right."""
        if self._num_unasked >= _TRIAL_STEPS or (self._num_unasked == 1 and was_right()):
            return Choice(1, _TRIAL_TOKENS, _HOPE)
        return None


class AnswerLengths:
    """How many tokens an answer is expected to have yet, by the median of those that ended last.

    One that is longer than others were is expected to have as much again, as lengths have a long tail. So what is
    expected of long answers after short ones is wrong for as many tokens as the short ones had.
    """

    def __init__(self) -> None:
        self._ended = deque[int](maxlen=_LENGTHS)

    def note(self, num_tokens: int) -> None:
        """Record an answer that ended of itself."""
        self._ended.append(num_tokens)

    def left(self, num_tokens: int, most_more: int) -> int:
        """Return it for an answer that has so many tokens, and may have `most_more`."""
        expected = sorted(self._ended)[len(self._ended) // 2] if self._ended else _HORIZON
        return min(most_more, _HORIZON, max(expected - num_tokens, num_tokens))


def _sizes(count: int) -> list[int]:
    """Return the numbers of rows that are considered: powers of two, and all."""
    return sorted({*(1 << bit for bit in range(count.bit_length()) if 1 << bit <= count), *([count] if count else [])})
