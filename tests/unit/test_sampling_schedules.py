"""What changes over an answer, against its formulas in float64: temperature, penalties, the price of bad words."""

from __future__ import annotations

import math
import random
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reference_decoder import softmax
from support.reference_sampling import Sampler

from pyagent import PenaltySchedule, RequestError, SamplingParams, TemperatureSchedule, _rust
from pyagent.infrastructure.engine.sampling.sampler import make_sampler

SIZE = 60
SHAPES = st.sampled_from(["linear", "cosine"])
STEPS = st.integers(0, 2**40)
TOKENS = st.integers(1, 2**31 - 1)


class Words:
    """A vocabulary in which each letter is a token."""

    vocab_size = SIZE
    suppressed_ids = ()

    def words_as_tokens(self, words: Any) -> list[list[int]]:
        return [[ord(letter) - ord("a") for letter in word] for word in words]

    def tokens_with(self, texts: Any) -> list[int]:
        del texts
        return []


def way(step: int, tokens: int, shape: str) -> float:
    """How much of a way is done at a step."""
    done = min(1.0, step / tokens)
    return done if shape == "linear" else (1 - math.cos(math.pi * done)) / 2


def row(seed: int) -> list[float]:
    draw = random.Random(seed)
    return [draw.randint(-64, 64) / 8 for _ in range(SIZE)]


def shares(params: SamplingParams, step: int, seed: int, output: list[int] | None = None) -> list[float]:
    """The probability of each token as the kernels sample it."""
    sampler = make_sampler(params, Words(), [1, 2, 3])
    sampler.observe(output or [])
    found = [0.0] * SIZE
    for token, share in sampler.distribution(row(seed), step):
        found[token] = share
    return found


@given(
    first=st.floats(0.1, 2),
    end=st.floats(0.1, 2),
    tokens=TOKENS,
    shape=SHAPES,
    step=STEPS,
    part=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_temperature_goes_along_its_schedule(
    first: float, end: float, tokens: int, shape: Literal["linear", "cosine"], step: int, part: bool, seed: int
) -> None:
    """The temperature of each token is the one that a line or half a cosine has there."""
    step = step % (tokens + 1) if part else step
    schedule = TemperatureSchedule(end=end, tokens=tokens, shape=shape)
    params = SamplingParams(temperature=first, temperature_schedule=schedule)
    params.validate()
    temperature = first + (end - first) * way(step, tokens, shape)
    expected = softmax([logit / temperature for logit in row(seed)])
    assert shares(params, step, seed) == pytest.approx(expected, rel=1e-3, abs=1e-9)


@given(
    warmup=st.integers(0, 50),
    decay=st.integers(0, 50),
    end=st.floats(0, 1),
    shape=SHAPES,
    step=st.integers(0, 120),
    strengths=st.tuples(st.floats(0.5, 2), st.floats(-2, 2), st.floats(-2, 2)),
    output=st.lists(st.integers(0, SIZE - 1), max_size=40),
    window=st.sampled_from([-1, 1000]),
)
@settings(max_examples=30, deadline=None)
def test_penalties_go_along_their_schedule(
    warmup: int,
    decay: int,
    end: float,
    shape: Literal["linear", "cosine"],
    step: int,
    strengths: tuple[float, float, float],
    output: list[int],
    window: int,
) -> None:
    """Penalties grow to what they are and fall to a part of it; that of a repetition by its power."""
    strength = way(step, warmup, shape) if step < warmup else 1.0
    if decay and step >= warmup:
        strength = 1 + (end - 1) * way(step - warmup, decay, shape)
    repetition, frequency, presence = strengths
    expected = Sampler(
        repetition_penalty=repetition**strength,
        frequency_penalty=frequency * strength,
        presence_penalty=presence * strength,
    ).shares(row(7), [1, 2, 3], output)
    schedule = PenaltySchedule(warmup_tokens=warmup, decay_tokens=decay, end=end, shape=shape)
    params = SamplingParams(
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        repeat_last_n=window,
        penalty_schedule=schedule if warmup or decay else None,
    )
    params.validate()
    assert shares(params, step, 7, output) == pytest.approx(expected, rel=1e-3, abs=1e-9)


@given(penalty=st.none() | st.floats(0, 20), tokens=st.integers(1, 30), step=st.integers(0, 40))
@settings(max_examples=30, deadline=None)
def test_bad_words_cost_less_with_each_token(penalty: float | None, tokens: int, step: int) -> None:
    """The penalty falls along a line to nothing; what is forbidden is so until then."""
    params = SamplingParams(bad_words=("c",), bad_words_penalty=penalty, bad_words_decay_tokens=tokens)
    params.validate()
    left = max(0.0, 1 - step / tokens)
    cost = 0.0 if left == 0 else math.inf if penalty is None else penalty * left
    expected = softmax([logit - (cost if token == 2 else 0) for token, logit in enumerate(row(3))])
    assert shares(params, step, 3) == pytest.approx(expected, rel=1e-3, abs=1e-9)


def test_a_schedule_that_changes_nothing_changes_no_bit() -> None:
    """Before and after its schedule a request is sampled as one that never had any."""
    penalties: dict[str, Any] = {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.4}
    for window in (-1, 9):
        plain = SamplingParams(temperature=0.7, **penalties, repeat_last_n=window)
        warm = SamplingParams(
            temperature=1.9,
            temperature_schedule=TemperatureSchedule(end=0.7, tokens=10, shape="cosine"),
            penalty_schedule=PenaltySchedule(warmup_tokens=10),
            **penalties,
            repeat_last_n=window,
        )
        output = [4, 5, 4, 9]
        assert shares(warm, 10, 5, output) == shares(plain, 10, 5, output)
        assert shares(warm, 9, 5, output) != shares(plain, 9, 5, output)


@pytest.mark.parametrize(
    ("params", "param", "said"),
    [
        (
            SamplingParams(temperature_schedule=TemperatureSchedule(end=3, tokens=1)),
            "temperature_schedule.end",
            "must be between 0 and 2, got 3",
        ),
        (
            SamplingParams(temperature_schedule=TemperatureSchedule(end=1, tokens=0)),
            "temperature_schedule.tokens",
            "must be between 1 and 2147483647, got 0",
        ),
        (
            SamplingParams(temperature_schedule=TemperatureSchedule(end=math.nan, tokens=1)),
            "temperature_schedule.end",
            "got nan",
        ),
        (
            SamplingParams(temperature_schedule=TemperatureSchedule(end=1, tokens=1, shape="steps")),  # type: ignore[arg-type]
            "temperature_schedule.shape",
            "must be linear or cosine, got 'steps'",
        ),
        (
            SamplingParams(temperature=0, temperature_schedule=TemperatureSchedule(end=1, tokens=9)),
            "temperature_schedule",
            "begins with a temperature above 0",
        ),
        (SamplingParams(penalty_schedule=PenaltySchedule()), "penalty_schedule", "neither is above 0"),
        (SamplingParams(penalty_schedule=PenaltySchedule(-1, 5)), "penalty_schedule.warmup_tokens", "got -1"),
        (SamplingParams(penalty_schedule=PenaltySchedule(1, 2**31)), "penalty_schedule.decay_tokens", "got 2147483648"),
        (SamplingParams(penalty_schedule=PenaltySchedule(1, 1, 1.5)), "penalty_schedule.end", "got 1.5"),
        (SamplingParams(bad_words_decay_tokens=-1), "bad_words_decay_tokens", "got -1"),
        (SamplingParams(top_k_entropy=-0.5), "top_k_entropy", "must be between 0 and 1000, got -0.5"),
        (SamplingParams(min_p_entropy=math.inf), "min_p_entropy", "must be between 0 and 100, got inf"),
    ],
)
def test_wrong_schedules_are_refused_by_name(params: SamplingParams, param: str, said: str) -> None:
    """A value out of its range names the field inside the schedule."""
    with pytest.raises(RequestError, match=said) as caught:
        params.validate()
    assert caught.value.param == param


def test_kernels_check_schedules_too() -> None:
    """What is no temperature is none in the kernels either."""
    with pytest.raises(ValueError, match="temperature_end must be a finite number of at least 0, got -1"):
        _rust.SamplerState(temperature_end=-1.0)
