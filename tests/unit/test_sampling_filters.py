"""Each filter of a row of logits against its paper's formula in float64."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reference_sampling import Sampler

from pyagent import _rust


def rounded(value: float) -> float:
    """The nearest number of 32 bits, as the kernels have it."""
    return struct.unpack("f", struct.pack("f", value))[0]


def between(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(least, most).map(rounded)


STRENGTHS: dict[str, st.SearchStrategy[Any]] = {
    "top_n_sigma": between(0.1, 4),
    "epsilon_cutoff": between(0.0001, 0.1),
    "eta_cutoff": between(0.0001, 0.1),
    "top_k": st.integers(1, 600),
    "top_h": between(0.05, 0.95),
    "typical_p": between(0.05, 0.95),
    "top_p": between(0.05, 0.95),
    "min_p": between(0.001, 0.9),
    "top_k_entropy": between(0.1, 4),
    "min_p_entropy": between(0.1, 2),
    "temperature": between(0.25, 2),
}


def row(size: int, spread: float, seed: int) -> list[float]:
    """Logits with a spread."""
    draw = random.Random(seed)
    return [rounded(draw.gauss(0, spread)) for _ in range(size)]


@given(
    sampling=st.lists(st.sampled_from(sorted(STRENGTHS)), min_size=1, max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: STRENGTHS[name] for name in names})
    ),
    size=st.integers(1, 700),
    spread=st.sampled_from([0.2, 1.0, 3.0]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_filters_keep_what_their_formulas_say(sampling: dict[str, Any], size: int, spread: float, seed: int) -> None:
    """Any filters together keep the tokens of their formulas, with the same probabilities."""
    check(sampling, row(size, spread, seed))


def check(sampling: dict[str, Any], logits: list[float]) -> None:
    size = len(logits)
    found = [0.0] * size
    for token, share in _rust.SamplerState(**sampling).distribution(logits):
        found[token] = share
    expected = Sampler(**sampling).shares(logits)
    # A token whose place is within rounding of a border may be on either side of it.
    differing = [token for token in range(size) if (found[token] > 0) != (expected[token] > 0)]
    assert len(differing) <= 1
    if not differing:
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-7)


@given(
    sampling=st.fixed_dictionaries(
        {"min_p": between(0.01, 1), "min_p_entropy": between(0.1, 2)},
        optional={name: STRENGTHS[name] for name in ("temperature", "top_p", "top_k_entropy", "epsilon_cutoff")},
    ),
    size=st.integers(1, 700),
    spread=st.sampled_from([0.2, 1.0, 3.0, 30.0]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=30, deadline=None)
def test_min_p_follows_the_entropy(sampling: dict[str, Any], size: int, spread: float, seed: int) -> None:
    """Where the row is unsure min-p cuts less, by its formula, and the best token is always kept."""
    check(sampling, row(size, spread, seed))


def test_certain_rows_leave_one_token() -> None:
    """As many tokens as the model hesitates between are one where it hardly does, and all of equals."""
    certain = [20.0, *[0.0] * 99]
    assert _rust.SamplerState(top_k_entropy=1.0).distribution(certain) == [(0, 1.0)]
    assert _rust.SamplerState(min_p=1.0, min_p_entropy=2.0).distribution(certain) == [(0, 1.0)]
    for num_equal in (1, 2, 100, 5000):
        assert len(_rust.SamplerState(top_k_entropy=1.0).distribution([1.0] * num_equal)) == num_equal


def test_xtc_leaves_the_least_likely_of_the_top() -> None:
    """Where it has its turn, all tokens above the threshold but the last are out."""
    sampling = {"xtc_probability": 1.0, "xtc_threshold": 0.1}
    logits = row(50, 2.0, 7)
    found = _rust.SamplerState(**sampling).distribution(logits)
    expected = Sampler(**sampling).shares(logits)
    assert dict(found) == pytest.approx({token: share for token, share in enumerate(expected) if share}, rel=1e-4)


def test_a_dynamic_temperature_is_never_below_nothing() -> None:
    """A range wider than the temperature begins at 0, and a row without doubt is certain there."""
    logits = row(50, 1.0, 5)
    shares = Sampler().shares(logits)
    relative = -sum(share * math.log(share) for share in shares) / math.log(len(shares))
    found = _rust.SamplerState(temperature=0.5, dynatemp_range=1.0).distribution(logits)
    expected = Sampler(temperature=1.5 * relative).shares(logits)
    assert dict(found) == pytest.approx(dict(enumerate(expected)), rel=1e-4)
    certain = _rust.SamplerState(temperature=0.5, dynatemp_range=0.5).distribution([200.0, 0.0])
    assert certain[0] == (0, 1.0)


def test_of_equals_the_lower_id_is_first_whatever_the_sign_of_nothing() -> None:
    """0 and -0 are one number, as where tokens are ranked by themselves."""
    assert _rust.SamplerState().distribution([-0.0, 0.0, -0.0]) == [(token, pytest.approx(1 / 3)) for token in range(3)]


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"typical_p": 0.0}, "typical_p must be above 0 and at most 1, got 0"),
        ({"mirostat": 3}, "mirostat must be 0, 1 or 2, got 3"),
        ({"dry_base": 0.5}, "dry_base must be a finite number of at least 1, got 0.5"),
    ],
)
def test_parameters_out_of_range_are_refused(sampling: dict[str, Any], said: str) -> None:
    """The kernels check again what requests are checked for."""
    with pytest.raises(ValueError, match=said):
        _rust.SamplerState(**sampling)


def test_parameters_that_are_none_are_refused() -> None:
    """A misspelt name is an error, not a sampler that does something else."""
    with pytest.raises(TypeError, match='there is no sampling parameter "top_q"'):
        _rust.SamplerState(top_q=1)  # type: ignore[call-arg]
