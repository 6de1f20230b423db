"""The one layout of weights that stay quantised: whole numbers, and a scale for each group of a row's columns.

A weight is `scale * (number - offset) - minimum`; numbers of 8 bits may be floats (FP8). Scales and minimums may be
small integers times a float of a larger group, as in GGUF's K-quants. What lies side by side in a file's blocks are
planes here, so that a kernel reads each of them in whole lines: as many bytes as the file has, but for scales of 6
bits, which take 8.

Numbers of 4 bits: 64 columns are 32 bytes, the first 32 columns in the low halves. Of 6 bits: the lower four so, the
upper two of 128 columns in 32 bytes, those of the first 32 columns lowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from operator import attrgetter

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.quantised.scheme import Inputs

COLUMNS_OF_BITS = {4: 64, 6: 128, 8: 32}
"""What a matrix's columns are a multiple of, by the bits of a number."""


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """Quantised weights [N, K]. A zero point is a minimum without a super-minimum: it is in units of the scale."""

    bits: int
    num_columns: int
    group: int
    """Columns that share a scale."""
    quants: Tensor  # [N, K / 2] of uint8; for 8 bits [N, K] of int8 or float8
    scales: Tensor  # [N, K / group]
    offset: int = 0
    high: Tensor | None = None  # [N, K / 4], for 6 bits
    minimums: Tensor | None = None  # [N, K / group]
    super_group: int = 0
    """Columns that share a super-scale."""
    super_scales: Tensor | None = None  # [N, K / super_group]
    super_minimums: Tensor | None = None  # [N, K / super_group]
    order: Tensor | None = None  # [K] of int64
    """Which column of the model each is, where columns of a group are not neighbours there."""
    inputs: Inputs = Inputs.NONE
    """How rows of input become numbers of the same type as the weights, for the product."""
    input_scale: float = 0.0

    def __post_init__(self) -> None:
        """Check what kernels take for granted."""
        if not all(plane.is_contiguous() for _, plane in self.planes()):
            raise ValueError("the planes of a quantised matrix must be contiguous")

    @property
    def num_rows(self) -> int:
        """Its rows."""
        return len(self.quants)

    @property
    def num_bytes(self) -> int:
        """What it takes of the device's memory."""
        return sum(plane.nbytes for _, plane in self.planes())

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """Return the weights [N, K] in the order of its columns, computed in float32."""
        groups = (self._numbers() - self.offset).view(self.num_rows, -1, self.group)
        scales, minimums = self._scales()
        weights = groups * scales[..., None]
        if minimums is not None:
            weights -= minimums[..., None]
        return weights.flatten(1).to(dtype)

    @property
    def format(self) -> tuple[object, ...]:
        """What must be the same for two matrices to be one."""
        planes = tuple((name, plane.dtype) for name, plane in self.planes())
        numbers = (self.bits, self.num_columns, self.group, self.offset, self.super_group)
        order = None if self.order is None else self.order.cpu().numpy().tobytes()
        return (*numbers, planes, order, self.inputs, self.input_scale)

    def _numbers(self) -> Tensor:
        if self.bits == 8:
            return self.quants.float()
        numbers = torch.stack((self.quants & 15, self.quants >> 4), 1)  # [N, 2, K / 2]
        numbers = numbers.unflatten(2, (-1, 32)).transpose(1, 2)  # [N, K / 64, 2, 32]
        if self.high is not None:
            fields = torch.stack([self.high >> shift & 3 for shift in (0, 2, 4, 6)], 1)
            fields = fields.unflatten(2, (-1, 32)).transpose(1, 2)  # [N, K / 128, 4, 32]
            numbers = numbers | fields.reshape(numbers.shape) << 4
        return numbers.flatten(1).float()

    def _scales(self) -> tuple[Tensor, Tensor | None]:
        """Scales and minimums [N, K / group] in float32."""
        scales = self.scales.float()
        times = self.super_group // self.group if self.super_group else 0
        if self.super_scales is not None:
            scales = scales * self.super_scales.float().repeat_interleave(times, 1)
        if self.minimums is None:
            return scales, None
        units = scales if self.super_minimums is None else self.super_minimums.float().repeat_interleave(times, 1)
        return scales, self.minimums.float() * units

    def planes(self) -> list[tuple[str, Tensor]]:
        """Return what it has for each row, by name."""
        named = [(field.name, getattr(self, field.name)) for field in fields(self) if field.name != "order"]
        return [(name, value) for name, value in named if isinstance(value, Tensor)]


def joined(matrices: Iterable[GroupedMatrix]) -> list[GroupedMatrix]:
    """Return matrices with the same columns one below the other, neighbours of the same format as one."""
    return [_one_of(list(same)) for _, same in groupby(matrices, attrgetter("format"))]


def _one_of(matrices: Sequence[GroupedMatrix]) -> GroupedMatrix:
    first = matrices[0]
    if len(matrices) == 1:
        return first
    names = [name for name, _ in first.planes()]
    return replace(first, **{name: torch.cat([getattr(matrix, name) for matrix in matrices]) for name in names})


def packed(numbers: Tensor, bits: int) -> tuple[Tensor, Tensor | None]:
    """Return planes of `quants` and `high` for numbers [N, K] of uint8."""
    chunks = numbers.unflatten(1, (-1, 2, 32))
    quants = (chunks[:, :, 0] & 15 | chunks[:, :, 1] << 4).flatten(1)
    if bits == 4:
        return quants, None
    upper = numbers.unflatten(1, (-1, 4, 32)) >> 4
    high = upper[:, :, 0] | upper[:, :, 1] << 2 | upper[:, :, 2] << 4 | upper[:, :, 3] << 6
    return quants, high.flatten(1)
