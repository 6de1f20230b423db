"""Matrices that stay quantised, behind the same door as others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix
from pyagent.infrastructure.engine.runners.torch.quantised.products import Products


class GroupedLinear:
    """Matrices with the same columns, one below the other. Those that did not stay quantised are plain tensors."""

    def __init__(self, parts: Sequence[GroupedMatrix | Tensor], bias: Tensor | None, products: Products) -> None:
        self._parts = parts
        self._sizes = [part.num_rows if isinstance(part, GroupedMatrix) else len(part) for part in parts]
        self._bias = bias
        self._products = products

    @property
    def num_bytes(self) -> int:
        """What the matrices take of the device's memory."""
        return sum(part.num_bytes if isinstance(part, GroupedMatrix) else part.nbytes for part in self._parts)

    def __call__(self, x: Tensor) -> Tensor:
        """As `Linear`."""
        out = torch.empty(len(x), sum(self._sizes), dtype=x.dtype, device=x.device)
        for part, columns in zip(self._parts, out.split(self._sizes, 1), strict=True):
            if isinstance(part, GroupedMatrix):
                rows = x if part.order is None else x.index_select(1, part.order)
                self._products.multiply(rows, part, columns)
            else:
                torch.mm(x, part.t(), out=columns)
        return out if self._bias is None else out.add_(self._bias)
