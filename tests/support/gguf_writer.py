"""Writes GGUF files with the standard library alone: metadata, tensors of F32 or of ready blocks. Knows no model."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_ALIGNMENT = 32

Metadata = Mapping[str, object]


class Blocks(NamedTuple):
    """A tensor's bytes in another of ggml's element types, by its number."""

    kind: int
    data: bytes

    def tobytes(self) -> bytes:
        """As an array's."""
        return self.data


Tensors = Mapping[str, tuple[tuple[int, ...], "array[float] | Blocks"]]
"""Name to (dimensions, the contiguous one first; values)."""


def write_gguf(path: Path, metadata: Metadata, tensors: Tensors) -> Path:
    """Write a GGUF version 3 file; returns `path`."""
    header = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    header += [_text(key) + _value(value) for key, value in metadata.items()]
    offset = 0
    for name, (dims, values) in tensors.items():
        sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        kind = values.kind if isinstance(values, Blocks) else 0
        header.append(_text(name) + sizes + struct.pack("<IQ", kind, offset))
        offset += _padded(len(values.tobytes()))
    start = b"".join(header)
    with path.open("wb") as file:
        file.write(start.ljust(_padded(len(start)), b"\0"))
        for _, values in tensors.values():
            data = values.tobytes()
            file.write(data.ljust(_padded(len(data)), b"\0"))
    return path


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: object) -> bytes:
    kind, data = _encoded(value)
    return struct.pack("<I", kind) + data


def _encoded(value: object) -> tuple[int, bytes]:
    match value:
        case bool():
            return _BOOL, struct.pack("<?", value)
        case int():
            return _UINT32, struct.pack("<I", value)
        case float():
            return _FLOAT32, struct.pack("<f", value)
        case str():
            return _STRING, _text(value)
        case list():
            kinds, items = zip(*map(_encoded, value), strict=True)
            return _ARRAY, struct.pack("<IQ", kinds[0], len(items)) + b"".join(items)
        case _:
            raise TypeError(f"GGUF has no value for {value!r}")
