"""Quantising against the `gguf` package: the same bytes for the types it quantises."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import pytest

from pyagent._rust import quantise

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = pytest.mark.oracle

BLOCK = 32


@pytest.fixture(scope="module")
def numpy() -> ModuleType:
    return pytest.importorskip("numpy", reason="`make oracle` installs it")


def weights(numpy: ModuleType, num: int) -> Any:
    """Numbers of a matrix: most are small, few are large; some blocks are far smaller, larger, flat or of one sign."""
    random = numpy.random.default_rng(11)
    values = random.standard_t(4, (num // BLOCK, BLOCK)) * 10.0 ** random.integers(-4, 3, (num // BLOCK, 1))
    values[::17] = random.integers(-3, 4, (len(values[::17]), 1))  # flat
    values[5::17] = abs(values[5::17])
    values[9::17] = numpy.round(values[9::17] * 8) / 8 + 0.0  # ties between two quants; no zero below 0
    return values.astype("<f4").ravel()


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantise_equals_gguf(type_name: str, numpy: ModuleType) -> None:
    """200,000 numbers of many sizes give the reference's bytes, in two threads."""
    gguf = pytest.importorskip("gguf", reason="`make oracle` installs it")
    values = weights(numpy, 200_000 // BLOCK * BLOCK)
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType[type_name]).tobytes()
    assert quantise(type_name, array("f", values.tobytes()), 2) == expected
