"""Tensors of a quantised matrix in a folder of safetensors, looked at before they are used."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.runners.torch.quantised.numbers import FLOAT8

if TYPE_CHECKING:
    from pyagent._rust import ModelFile

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_DTYPES = {**FLOATS, "I32": torch.int32, "I8": torch.int8, "F8_E4M3": FLOAT8}


class Tensors:
    """The tensors of one quantised matrix, by the ends of their names."""

    def __init__(self, file: ModelFile, path: str, module: str) -> None:
        """Of a module, by the file's own name."""
        self._file = file
        self._path = path
        self._module = module

    def error(self, problem: str, end: str = "") -> ModelError:
        """Return what is said of a tensor, or of the whole matrix."""
        name = f"{self._module}.{end}" if end else self._module
        return ModelError(f"{self._path}: {name!r} {problem}", model=self._path)

    def find(self, end: str) -> tuple[list[int], str] | None:
        """A tensor's shape, rows first, and element type."""
        found = self._file.find_stored(f"{self._module}.{end}")
        return None if found is None else (found[0][::-1], found[1])

    def shape(self, end: str) -> list[int]:
        """A tensor's shape. Raises `ModelError` where there is none."""
        found = self.find(end)
        if found is None:
            raise self.error("is missing: is the model whole?", end)
        return found[0]

    def dtype(self, end: str, *kinds: str) -> torch.dtype:
        """A tensor's element type. Raises `ModelError` where it is missing, or of another type than these."""
        self.shape(end)
        kind = (self.find(end) or ([], ""))[1]
        if kind not in kinds:
            raise self.error(f"is of element type {kind}; expected {', '.join(kinds)}", end)
        return _DTYPES[kind]

    def read(self, end: str, shape: tuple[int, ...], kinds: tuple[str, ...], rows: slice | None = None) -> Tensor:
        """Read a tensor, or some of its rows, into this machine's memory. Raises `ModelError` for another shape."""
        dtype = self.dtype(end, *kinds)
        if self.shape(end) != list(shape):
            raise self.error(f"is {self.shape(end)}; expected {list(shape)}", end)
        start, stop = (0, shape[0] if shape else 1) if rows is None else (rows.start, rows.stop)
        out = torch.empty(stop - start, *shape[1:], dtype=dtype, pin_memory=torch.cuda.is_available())
        self._file.read_stored(f"{self._module}.{end}", start, out.view(torch.uint8).numpy().data)
        return out

    def floats(self, end: str, shape: tuple[int, ...], rows: slice | None = None) -> Tensor:
        """As `read`, of numbers that must be finite."""
        values = self.read(end, shape, tuple(FLOATS), rows)
        if not bool(values.isfinite().all()):
            raise self.error("has numbers that are not finite", end)
        return values

    def number(self, *ends: str) -> float:
        """The one number of the first of these tensors that there is."""
        end = next((end for end in ends if self.find(end)), ends[0])
        shape = self.shape(end)
        if math.prod(shape) != 1:
            raise self.error(f"is {shape}; expected one number", end)
        value = float(self.floats(end, tuple(shape)).float().item())
        if not value > 0:
            raise self.error(f"is {value:g}; expected a number above 0", end)
        return value
