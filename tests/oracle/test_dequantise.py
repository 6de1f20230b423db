"""Dequantisation against the `gguf` package: the same bytes for the same blocks, not just close ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pyagent._rust import dequantise

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

pytestmark = pytest.mark.oracle

# Where each block has binary16 scales; random bytes there would be infinities and NaNs once in 32 blocks, whose
# arithmetic the engine does not promise.
TYPE_TO_SCALE_OFFSETS: dict[str, tuple[int, ...]] = {
    "F32": (),
    "F16": (),
    "BF16": (),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}
# Zeroes of both signs, least and greatest subnormal, least normal, one, an odd fraction, greatest, of both signs.
EXTREME_SCALES = (0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0xB555, 0x7BFF, 0xFBFF)


@pytest.fixture(scope="module")
def numpy() -> ModuleType:
    return pytest.importorskip("numpy", reason="`make oracle` installs it")


@pytest.fixture(scope="module")
def reference() -> Callable[[str, bytes], bytes]:
    """Gives a function from type name and blocks to little-endian f32, computed by the `gguf` package."""
    gguf = pytest.importorskip("gguf", reason="`make oracle` installs it")
    numpy = pytest.importorskip("numpy")

    def dequantise_by_gguf(type_name: str, data: bytes) -> bytes:
        kind = gguf.GGMLQuantizationType[type_name]
        with numpy.errstate(over="ignore"):  # the greatest powers of MXFP4 times its greatest numbers are infinite
            values = gguf.quants.dequantize(numpy.frombuffer(data, dtype=numpy.uint8), kind)
        return values.astype("<f4").tobytes()

    return dequantise_by_gguf


def random_blocks(numpy: ModuleType, type_name: str, num_blocks: int, seed: int) -> bytes:
    """Blocks of random bytes whose scales are finite, every fourth of them an extreme one."""
    gguf = pytest.importorskip("gguf")
    random = numpy.random.default_rng(seed)
    block_bytes = gguf.constants.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]][1]
    blocks = random.integers(0, 256, (num_blocks, block_bytes), dtype=numpy.uint8)
    for offset in TYPE_TO_SCALE_OFFSETS[type_name]:
        scales = random.integers(0, 0x7C00, num_blocks, dtype=numpy.uint16)
        scales |= random.integers(0, 2, num_blocks, dtype=numpy.uint16) << 15
        scales[::4] = random.choice(numpy.array(EXTREME_SCALES, dtype=numpy.uint16), len(scales[::4]))
        blocks[:, offset : offset + 2] = scales.astype("<u2")[:, None].view(numpy.uint8)
    return blocks.tobytes()


def without_nans(numpy: ModuleType, type_name: str, data: bytes) -> bytes:
    """Plain elements with NaNs made zero: which NaN comes out is up to the processor."""
    dtype, mask = {"F32": ("<u4", 0x7F80_0000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}[type_name]
    elements = numpy.frombuffer(data, dtype=dtype).copy()
    elements[(elements & mask) == mask] &= ~numpy.array(mask, dtype=dtype)
    return elements.tobytes()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("type_name", TYPE_TO_SCALE_OFFSETS)
def test_dequantise_equals_gguf(
    type_name: str, seed: int, numpy: ModuleType, reference: Callable[[str, bytes], bytes]
) -> None:
    """Random blocks of every type give the reference's numbers, bit for bit."""
    data = random_blocks(numpy, type_name, 500, seed)
    if type_name in {"F32", "F16", "BF16"}:
        data = without_nans(numpy, type_name, data)
    assert dequantise(type_name, data) == reference(type_name, data)


@pytest.mark.parametrize("type_name", [name for name, offsets in TYPE_TO_SCALE_OFFSETS.items() if offsets])
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_dequantise_equals_gguf_at_the_limits(
    type_name: str, byte: int, numpy: ModuleType, reference: Callable[[str, bytes], bytes]
) -> None:
    """Blocks of one repeated byte with each pair of extreme scales give the reference's numbers, bit for bit."""
    gguf = pytest.importorskip("gguf")
    block_bytes = gguf.constants.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]][1]
    blocks: list[bytes] = []
    for first in EXTREME_SCALES:
        for second in EXTREME_SCALES:
            block = bytearray([byte]) * block_bytes
            for offset, scale in zip(TYPE_TO_SCALE_OFFSETS[type_name], (first, second), strict=False):
                block[offset : offset + 2] = scale.to_bytes(2, "little")
            blocks.append(bytes(block))
    data = b"".join(blocks)
    assert dequantise(type_name, data) == reference(type_name, data)
