"""What tensors a message between nodes must hold: names, dtypes, shapes with named sizes. Pure.

A buffer crosses as bytes, with a `Tensor` beside it that says what they are. A schema is checked where they arrive,
before anything computes with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from pyagent.core.errors import RequestError

DTYPE_TO_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
}
"""Names as PyTorch and safetensors have them."""
_MAX_DIMENSIONS = 16
_MAX_SIZE = 1 << 40
_MAX_SHOWN = 40

Size = int | str | None
"""Of a dimension: fixed, the same in all dimensions of that name, or any."""


class Tensor(msgspec.Struct, frozen=True):
    """What the bytes of a buffer are: row by row, in the byte order of all machines PyAgent runs on (little-endian)."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class TensorSpec(msgspec.Struct, frozen=True):
    """What one tensor must be."""

    name: str
    dtype: str
    shape: tuple[Size, ...]


class TensorSchema(msgspec.Struct, frozen=True):
    """What the tensors of a message must be, in this order."""

    tensors: tuple[TensorSpec, ...]

    def check(
        self, tensors: Sequence[Tensor], num_bytes: Sequence[int], sizes: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Return the sizes of named dimensions; `sizes` are those known before.

        `num_bytes` are the lengths of the buffers. Raises `RequestError` naming the first field that does not fit.
        """
        if len(tensors) != len(self.tensors):
            _refuse("tensors", f"{len(tensors)} tensors", f"{len(self.tensors)}")
        if len(num_bytes) != len(tensors):
            _refuse("buffers", f"{len(num_bytes)} buffers", f"{len(tensors)}, one for each tensor")
        found = dict(sizes or {})
        for index, (tensor, spec, length) in enumerate(zip(tensors, self.tensors, num_bytes, strict=True)):
            if tensor.name != spec.name:
                _refuse(f"tensors[{index}].name", repr(tensor.name[:_MAX_SHOWN]), repr(spec.name))
            _check_tensor(tensor, spec, length, found)
        return found


def _check_tensor(tensor: Tensor, spec: TensorSpec, length: int, sizes: dict[str, int]) -> None:
    where = f"tensors.{spec.name}"
    if tensor.dtype != spec.dtype or spec.dtype not in DTYPE_TO_BYTES:
        _refuse(f"{where}.dtype", repr(tensor.dtype[:_MAX_SHOWN]), repr(spec.dtype))
    if len(tensor.shape) != len(spec.shape) or len(tensor.shape) > _MAX_DIMENSIONS:
        _refuse(f"{where}.shape", f"{len(tensor.shape)} dimensions", f"{len(spec.shape)}: {_shown(spec.shape)}")
    for index, (size, expected) in enumerate(zip(tensor.shape, spec.shape, strict=True)):
        _check_size(f"{where}.shape[{index}]", size, expected, sizes)
    num_bytes = math.prod(tensor.shape) * DTYPE_TO_BYTES[spec.dtype]
    if length != num_bytes:
        _refuse(f"{where}.buffer", f"{length} bytes", f"{num_bytes} for {spec.dtype} of {_shown(tensor.shape)}")


def _check_size(where: str, size: int, expected: Size, sizes: dict[str, int]) -> None:
    if not 0 <= size <= _MAX_SIZE:
        _refuse(where, str(size), f"0 to {_MAX_SIZE}")
    if isinstance(expected, str):
        if size != sizes.setdefault(expected, size):
            _refuse(where, str(size), f"{expected} = {sizes[expected]}")
    elif expected is not None and size != expected:
        _refuse(where, str(size), str(expected))


def _shown(shape: tuple[Size, ...]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"


def _refuse(where: str, got: str, expected: str) -> None:
    raise RequestError(f"{where} does not fit: got {got}, expected {expected}", param=where)
