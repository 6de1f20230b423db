"""Rows of a matrix as a checkpoint has them: numbers, their scales and zero points, before they become planes.

`Numbers.dequantised` is what formats' descriptions say, and the oracle of the planes and of their products.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.parallel.shard import Span
from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix, packed
from pyagent.infrastructure.engine.runners.torch.quantised.scheme import Inputs

FLOAT8 = torch.float8_e4m3fn


class Numbers(NamedTuple):
    """Rows of weights `(value - zero) * scale`. Values of 4 bits without zero points have 8 for 0."""

    values: Tensor  # [n, K] of uint8 (4 bits), int8 or float8
    scales: Tensor  # [n, groups] of floats
    zeros: Tensor | None  # [n, groups] of the values' type
    group: int
    """Columns that share a scale."""
    groups: Tensor | None = None  # [K] of int64
    """The group of each column, where that is not its place."""

    @property
    def offset(self) -> int:
        """What 0 is, where there are no zero points."""
        return 8 if self.values.dtype == torch.uint8 else 0

    def dequantised(self) -> Tensor:
        """Return the weights [n, K] in float32."""
        columns = torch.arange(self.values.shape[1], device=self.values.device)
        groups = columns // self.group if self.groups is None else self.groups
        zeros = self.offset if self.zeros is None else self.zeros.float()[:, groups]
        return (self.values.float() - zeros) * self.scales.float()[:, groups]

    def planes(self, columns: Span, group: int, inputs: Inputs, input_scale: float) -> GroupedMatrix:
        """Return some columns as they stay on the device, `group` of which share a scale."""
        order = None if self.groups is None else self.groups.argsort(stable=True)
        values = self.values if order is None else self.values[:, order]
        values = values[:, columns.first : columns.end].contiguous()
        wanted = slice(None)
        if self.scales.shape[1] > 1:
            wanted = slice(columns.first // group, columns.end // group)
        is_packed = values.dtype == torch.uint8
        zeros = None if self.zeros is None else self.zeros[:, wanted].contiguous()
        return GroupedMatrix(
            bits=4 if is_packed else 8,
            num_columns=columns.num,
            group=group,
            quants=packed(values, 4)[0] if is_packed else values,
            scales=self.scales[:, wanted].contiguous(),
            offset=self.offset if zeros is None else 0,
            minimums=zeros,
            order=order,
            inputs=inputs,
            input_scale=input_scale,
        )


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Return the numbers [n, W * 32 / bits] of uint8 in words [n, W] of int32, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    return (words[..., None] >> shifts & ((1 << bits) - 1)).to(torch.uint8).flatten(-2)
