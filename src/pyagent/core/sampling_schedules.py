"""Sampling parameters that change over an answer: what a request says of them, checked. Knows no logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, get_args

import msgspec

from pyagent.core.errors import RequestError

Shape = Literal["linear", "cosine"]
MOST_TOKENS = 2**31 - 1


class TemperatureSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The temperature goes from `temperature` at the first output token to `end` after `tokens` of them, and stays.

    It goes along a line, or along half a cosine: slowly at first and at last. 0 at the end is greedy from there on.
    """

    end: float
    tokens: int
    shape: Shape = "linear"

    def checks(self, temperature: float) -> Iterator[Callable[[], None]]:
        """Return what is checked of it, beside the temperature that it begins with."""
        yield partial(_check, "temperature_schedule.end", self.end, 0, 2)
        yield partial(_check, "temperature_schedule.tokens", self.tokens, 1, MOST_TOKENS)
        yield partial(_check_shape, "temperature_schedule.shape", self.shape)
        yield partial(_check_begin, temperature)


class PenaltySchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The three penalties grow from nothing over `warmup_tokens`, then fall to the part `end` over `decay_tokens`.

    They do so along a line or half a cosine, and stay. Without `decay_tokens` they stay as they are.
    """

    warmup_tokens: int = 0
    decay_tokens: int = 0
    end: float = 0.0
    shape: Shape = "linear"

    def checks(self) -> Iterator[Callable[[], None]]:
        """Return what is checked of it."""
        yield partial(_check, "penalty_schedule.warmup_tokens", self.warmup_tokens, 0, MOST_TOKENS)
        yield partial(_check, "penalty_schedule.decay_tokens", self.decay_tokens, 0, MOST_TOKENS)
        yield partial(_check, "penalty_schedule.end", self.end, 0, 1)
        yield partial(_check_shape, "penalty_schedule.shape", self.shape)
        yield self._check_some

    def _check_some(self) -> None:
        if not (self.warmup_tokens or self.decay_tokens):
            text = "penalty_schedule takes warmup_tokens, decay_tokens or both, and neither is above 0"
            raise RequestError(text, param="penalty_schedule")


def _check(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise RequestError(f"{name} must be between {low} and {high}, got {value}", param=name)


def _check_shape(name: str, shape: str) -> None:
    if shape not in get_args(Shape):
        raise RequestError(f"{name} must be linear or cosine, got {shape!r:.80}", param=name)


def _check_begin(temperature: float) -> None:
    if temperature == 0:
        text = "temperature_schedule begins with a temperature above 0, got temperature 0, which is greedy throughout"
        raise RequestError(text, param="temperature_schedule")
