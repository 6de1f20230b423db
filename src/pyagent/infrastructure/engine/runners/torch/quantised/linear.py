"""Matrices that stay quantised, behind the same door as others; their products are Triton's kernels on a GPU.

Elsewhere, and as the kernels' oracle, the plain form dequantises a matrix for each product.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch import kernels
from pyagent.infrastructure.engine.runners.torch.quantised.gguf import BLOCK_TYPES
from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix

logger = logging.getLogger(__name__)

DENSE_ROWS = 1024
"""Rows of input from which the whole matrix is dequantised for a product: its bytes are then little beside the work."""

_TRIAL_TYPES = ("Q4_K", "Q6_K", "Q8_0")
_MOST_ERROR = 1e-2
"""Of a trial: products in 16 bits."""


class Products(Protocol):
    """How inputs are multiplied with quantised weights."""

    def multiply(self, x: Tensor, matrix: GroupedMatrix, out: Tensor) -> None:
        """Put `x` [T, K] times the weights, transposed, into `out` [T, N], whose rows may be parts of longer ones."""
        ...


class PlainProducts:
    """Torch's own operations."""

    def multiply(self, x: Tensor, matrix: GroupedMatrix, out: Tensor) -> None:
        """As `Products.multiply`."""
        torch.mm(x, matrix.dequantised(x.dtype).t(), out=out)


class TritonProducts:
    """Triton's kernels."""

    def multiply(self, x: Tensor, matrix: GroupedMatrix, out: Tensor) -> None:
        """As `Products.multiply`."""
        from pyagent.infrastructure.engine.runners.torch.kernels import grouped

        if len(x) < DENSE_ROWS:
            grouped.product(x, matrix, out)
            return
        weights = torch.empty(matrix.num_rows, matrix.num_columns, dtype=x.dtype, device=x.device)
        grouped.dequantise(matrix, weights)
        torch.mm(x, weights.t(), out=out)


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
                self._products.multiply(x, part, columns)
            else:
                torch.mm(x, part.t(), out=columns)
        return out if self._bias is None else out.add_(self._bias)


def choose_products(device: torch.device, dtype: torch.dtype) -> Products | None:
    """Return the kernels on a GPU where they are right; None, with the reason in the log, where they are not."""
    if device.type != "cuda":
        return PlainProducts()
    reason = kernels.unavailable_reason(device.type) or trial_fault(device, dtype)
    if reason is None:
        return TritonProducts()
    logger.warning("dequantising weights when they are loaded, as Triton's products cannot be taken: %s", reason)
    return None


@lru_cache
def trial_fault(device: torch.device, dtype: torch.dtype, num_rows: int = 80, num_columns: int = 512) -> str | None:
    """Return what is wrong with the kernels' products of small random matrices; None where nothing is."""
    try:
        for kind in _TRIAL_TYPES:
            for num_tokens in (1, 20):
                x = torch.randn(num_tokens, num_columns, generator=torch.Generator().manual_seed(1))
                x = (x / 16).to(device, dtype)  # float16 has room for all of their products
                error = _trial_error(kind, num_rows, x)
                if not error < _MOST_ERROR:
                    return f"the product with {kind} is wrong by {error:.1e}"
    except Exception as error:  # noqa: BLE001 - whatever a compiler or driver raises is why they are not taken
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return None


def _trial_error(kind: str, num_rows: int, x: Tensor) -> float:
    about, random = BLOCK_TYPES[kind], torch.Generator().manual_seed(2)
    shape = (num_rows, x.shape[1] // about.columns, about.num_bytes)
    blocks = torch.randint(0, 64, shape, dtype=torch.uint8, generator=random)  # scales of 16 bits are finite below 64
    matrix, results = about.planes(blocks.to(x.device)), list[Tensor]()
    for products in (TritonProducts(), PlainProducts()):
        out = torch.empty(len(x), num_rows, dtype=x.dtype, device=x.device)
        products.multiply(x, matrix, out)
        results.append(out.float())
    return float((results[0] - results[1]).norm() / results[1].norm())
