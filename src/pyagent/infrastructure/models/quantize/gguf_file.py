"""The GGUF format, version 3, as it is written; knows no model.

Follows https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A value of the metadata is its bytes with its type
before them, so that what another file says is copied as it is.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ALIGNMENT = 32
Metadata = dict[str, bytes]

_UINT8, _UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 0, 4, 5, 6, 7, 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TYPE_IDS = {
    "F32": 0,
    "F16": 1,
    "BF16": 30,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "MXFP4": 39,
}
_BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "MXFP4": (32, 17),
}
"""Numbers and bytes of a block."""


class Tensor(NamedTuple):
    """A tensor to be: `dims` has the contiguous dimension first."""

    name: str
    dims: Sequence[int]
    type_name: str

    @property
    def num_values(self) -> int:
        """How many numbers it has."""
        count = 1
        for dim in self.dims:
            count *= dim
        return count

    @property
    def num_bytes(self) -> int:
        """How many bytes it takes, without those after it."""
        elements, size = _BLOCKS[self.type_name]
        return self.num_values // elements * size


def fits(type_name: str, cols: int) -> bool:
    """Whether rows of so many numbers are whole blocks of a type."""
    return cols % _BLOCKS[type_name][0] == 0


def uint32(value: int) -> bytes:
    """Encode a number that is not negative."""
    return struct.pack("<II", _UINT32, value)


def float32(value: float) -> bytes:
    """Encode a number with a fraction."""
    return struct.pack("<If", _FLOAT32, value)


def boolean(value: bool) -> bytes:
    """Encode a truth."""
    return struct.pack("<I?", _BOOL, value)


def string(value: str) -> bytes:
    """Encode a text."""
    return struct.pack("<I", _STRING) + _text(value)


def strings(values: Sequence[str]) -> bytes:
    """Encode texts."""
    return struct.pack("<IIQ", _ARRAY, _STRING, len(values)) + b"".join(map(_text, values))


def int32s(values: Sequence[int]) -> bytes:
    """Encode whole numbers."""
    return struct.pack(f"<IIQ{len(values)}i", _ARRAY, _INT32, len(values), *values)


def uint8s(values: bytes) -> bytes:
    """Encode bytes."""
    return struct.pack("<IIQ", _ARRAY, _UINT8, len(values)) + values


def float32s(values: Sequence[float]) -> bytes:
    """Encode numbers with fractions."""
    return struct.pack(f"<IIQ{len(values)}f", _ARRAY, _FLOAT32, len(values), *values)


def booleans(values: Sequence[bool]) -> bytes:
    """Encode truths."""
    return struct.pack(f"<IIQ{len(values)}?", _ARRAY, _BOOL, len(values), *values)


def header(metadata: Mapping[str, bytes], tensors: Sequence[Tensor]) -> bytes:
    """Return all that stands before the first tensor's bytes."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    parts += [_text(key) + value for key, value in metadata.items()]
    offset = 0
    for tensor in tensors:
        dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
        parts.append(_text(tensor.name) + dims + struct.pack("<IQ", _TYPE_IDS[tensor.type_name], offset))
        offset += padded(tensor.num_bytes)
    start = b"".join(parts)
    return start.ljust(padded(len(start)), b"\0")


def padded(size: int) -> int:
    """Return a size with what is after it, up to where the next tensor may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def read_metadata(path: Path) -> Metadata:
    """Return what the header of a file says, which the Rust reader has found to be right."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        number, place = struct.unpack_from("<Q", data, 16)[0], 24
        entries: Metadata = {}
        for _ in range(number):
            start = place + 8
            place = _after(data, _STRING, place)
            key, start = data[start:place].decode(), place
            place = _after(data, struct.unpack_from("<I", data, place)[0], place + 4)
            entries[key] = data[start:place]
    return entries


def _after(data: mmap.mmap, kind: int, place: int) -> int:
    """Return where a value of a type ends that begins at `place`."""
    if kind == _STRING:
        return place + 8 + struct.unpack_from("<Q", data, place)[0]
    if kind != _ARRAY:
        return place + _SIZES[kind]
    inner, number = struct.unpack_from("<IQ", data, place)
    place += 12
    if inner in _SIZES:
        return place + number * _SIZES[inner]
    for _ in range(number):
        place = _after(data, inner, place)
    return place


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data
