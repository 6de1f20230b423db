"""Bytes as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.setting_kinds import parse_size
from pyagent.core.sizes import format_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (98_400_000, "98.4 MB"),
        (1_200_000_000, "1.2 GB"),
        (5 * 10**15, "5000.0 TB"),
    ],
)
def test_format_bytes_takes_the_largest_unit(num_bytes: int, text: str) -> None:
    """A size is a number of the largest decimal unit that it reaches."""
    assert format_bytes(num_bytes) == text


@given(st.integers(1000, 10**15))
def test_format_bytes_is_read_back_within_its_last_digit(num_bytes: int) -> None:
    """A size written in a message, given back as a setting, is the size within half a tenth of the smallest unit."""
    assert abs(parse_size(format_bytes(num_bytes)) - num_bytes) <= 0.05001 * num_bytes
