"""Products whose rows do not depend on each other, nor on how many there are.

A library picks a kernel by the number of rows, and kernels add up in different orders. So torch's products are computed
in blocks of few sizes; which sizes give the same bits is tried when a model is loaded. Triton's kernel has one order
for any number of rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from pyagent.core.errors import ConfigError
from pyagent.infrastructure.engine.runners.torch import kernels
from pyagent.infrastructure.engine.runners.torch.linear import Linear, linear_of

logger = logging.getLogger(__name__)

LEAST_ROWS = 16
"""Of a block: with fewer, libraries take kernels for vectors."""
_LARGER_ROWS = (256, 64)
_MOST_TRIAL_WORK = 1e11
"""Floating-point operations that a size is worth to be tried."""


class InvariantLinear(Linear, Protocol):
    """A matrix whose products' rows depend on themselves alone, once it is settled."""

    def settle(self) -> None:
        """Find by trial how it is quickest. Raises `ConfigError` where rows do depend on others."""
        ...

    def follow(self, settled: InvariantLinear) -> None:
        """Be as another matrix of the same shape."""
        ...


class BlockedLinear:
    """Products through torch, in blocks of fixed numbers of rows; what is missing of the last is zeros."""

    def __init__(self, linear: Linear, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        """Of a matrix of this shape, [out, in]."""
        self._linear = linear
        self._shape = shape
        self._dtype, self._device = dtype, device
        self._sizes: tuple[int, ...] = (LEAST_ROWS,)

    def __call__(self, x: Tensor) -> Tensor:
        """As `Linear`."""
        if len(x) == 0:
            return x.new_empty(0, self._shape[0])
        parts = [self._block(x[first : first + size], size) for first, size in blocks_of(len(x), self._sizes)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _block(self, rows: Tensor, size: int) -> Tensor:
        if len(rows) == size:
            return self._linear(rows.contiguous())
        padded = rows.new_zeros(size, rows.shape[1])
        padded[: len(rows)] = rows
        return self._linear(padded)[: len(rows)]

    def settle(self) -> None:
        """As `InvariantLinear.settle`."""
        num_out, num_in = self._shape
        worth = [size for size in _LARGER_ROWS if 2 * size * num_out * num_in <= _MOST_TRIAL_WORK]
        draw = torch.Generator(self._device).manual_seed(1)
        num_rows = max((*worth, 2 * LEAST_ROWS))
        x = torch.randn(num_rows, num_in, generator=draw, device=self._device).to(self._dtype)
        expected = self(x)
        for turn in (1, 7):
            if not torch.equal(self(x.roll(turn, 0)), expected.roll(turn, 0)):
                raise not_invariant(f"a product of {num_out} x {num_in} by torch {torch.__version__}")
        right = [size for size in worth if torch.equal(self._linear(x[:size]), expected[:size])]
        self._sizes = (*right, LEAST_ROWS)
        logger.debug("products of %d x %d in blocks of %s rows", num_out, num_in, self._sizes)

    def follow(self, settled: InvariantLinear) -> None:
        """As `InvariantLinear.follow`."""
        assert isinstance(settled, BlockedLinear)
        self._sizes = settled._sizes


class TritonLinear:
    """Products by Triton's kernel: of many rows in larger tiles, where a trial finds the same bits."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias
        self._is_wide = False

    def __call__(self, x: Tensor) -> Tensor:
        """As `Linear`."""
        from pyagent.infrastructure.engine.runners.torch.kernels.products import WIDE_ROWS, product

        return product(x, self._weight, self._bias, is_wide=self._is_wide and len(x) >= WIDE_ROWS)

    def settle(self) -> None:
        """As `InvariantLinear.settle`."""
        from pyagent.infrastructure.engine.runners.torch.kernels.products import WIDE_ROWS, product

        weight, bias = self._weight, self._bias
        draw = torch.Generator(weight.device).manual_seed(1)
        x = torch.randn(2 * WIDE_ROWS, weight.shape[1], generator=draw, device=weight.device).to(weight.dtype)
        expected = product(x, weight, bias, is_wide=False)
        for turn in (1, 7):
            if not torch.equal(product(x.roll(turn, 0), weight, bias, is_wide=False), expected.roll(turn, 0)):
                raise not_invariant(f"a product of {weight.shape[0]} x {weight.shape[1]} by Triton")
        self._is_wide = torch.equal(product(x, weight, bias, is_wide=True), expected)

    def follow(self, settled: InvariantLinear) -> None:
        """As `InvariantLinear.follow`."""
        assert isinstance(settled, TritonLinear)
        self._is_wide = settled._is_wide


class InvariantProducts:
    """Makes a model's matrices, and settles them: one of each shape is tried. Any thread may make them."""

    def __init__(self) -> None:
        self._made: list[tuple[tuple[int, ...], InvariantLinear]] = []

    def __call__(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Return a matrix [out, in] as `linear_of` does."""
        linear: InvariantLinear
        if weight.device.type == "cuda" and kernels.unavailable_reason(str(weight.device)) is None:
            linear = TritonLinear(weight, bias)
        else:
            shape = (weight.shape[0], weight.shape[1])
            linear = BlockedLinear(linear_of(weight, bias), shape, weight.dtype, weight.device)
        self._made.append((tuple(weight.shape), linear))
        return linear

    def settle(self) -> None:
        """Try each shape. Raises `ConfigError` where rows depend on others."""
        settled: dict[tuple[int, ...], InvariantLinear] = {}
        with torch.inference_mode():
            for shape, linear in self._made:
                if shape in settled:
                    linear.follow(settled[shape])
                else:
                    linear.settle()
                    settled[shape] = linear


def blocks_of(num_rows: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the blocks of so many rows: (first, size), the largest first; the last may be longer than what is left."""
    first = 0
    while first < num_rows:
        size = next((size for size in sizes if size <= num_rows - first), sizes[-1])
        yield first, size
        first += size


def not_invariant(what: str) -> ConfigError:
    """Return the error of what depends on the rows beside it."""
    text = f"engine.batch_invariant cannot be kept on this machine: {what} depends on the batch"
    return ConfigError(f"{text}; set it to false, or engine.runner to cpu", key="engine.batch_invariant")
