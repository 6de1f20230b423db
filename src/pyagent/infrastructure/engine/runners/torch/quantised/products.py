"""How inputs are multiplied with quantised weights: by Triton's kernels and torch's own on a GPU.

Elsewhere, and as the kernels' oracle, the plain form dequantises a matrix for each product.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix
from pyagent.infrastructure.engine.runners.torch.quantised.numbers import FLOAT8
from pyagent.infrastructure.engine.runners.torch.quantised.scheme import Inputs

DENSE_ROWS = 1024
"""Rows of input from which the whole matrix is dequantised for a product: its bytes are then little beside the work."""

_LIBRARY_ROWS = 65
"""Of input quantised to FP8, from which torch's own product is taken: our tiles divide few rows among more programs."""
_LEAST_SCALE = 1e-30
"""What a row of zeros is divided by."""


class Products(Protocol):
    """How inputs are multiplied with quantised weights."""

    def quantises_inputs(self, matrix: GroupedMatrix) -> bool:
        """Return whether inputs become numbers of the matrix's type, as its checkpoint says."""
        ...

    def multiply(self, x: Tensor, matrix: GroupedMatrix, out: Tensor) -> None:
        """Put `x` [T, K] times the weights, transposed, into `out` [T, N], whose rows may be parts of longer ones."""
        ...


def quantised_rows(x: Tensor, matrix: GroupedMatrix) -> tuple[Tensor, Tensor]:
    """Return rows [T, K] as numbers of a matrix's type, and scales [T, 1], or [T, K / group] where its are of groups.

    A row's largest number becomes the largest of the type; with a scale of the file, what is beyond is cut off.
    """
    most = 127.0 if matrix.quants.dtype == torch.int8 else torch.finfo(matrix.quants.dtype).max
    groups = x.float().unflatten(1, (-1, matrix.group))
    if matrix.inputs is Inputs.STATIC:
        scales = torch.full((len(x), 1), matrix.input_scale, device=x.device)
    else:
        scales = groups.abs().amax(2) / most
    numbers = (groups / scales.clamp_min(_LEAST_SCALE)[..., None]).clamp_(-most, most)
    numbers = numbers.round_() if matrix.quants.dtype == torch.int8 else numbers
    return numbers.to(matrix.quants.dtype).flatten(1), scales


class PlainProducts:
    """Torch's own operations."""

    def quantises_inputs(self, matrix: GroupedMatrix) -> bool:
        """As `Products.quantises_inputs`."""
        return matrix.inputs is not Inputs.NONE

    def multiply(self, x: Tensor, matrix: GroupedMatrix, out: Tensor) -> None:
        """As `Products.multiply`."""
        if not self.quantises_inputs(matrix):
            torch.mm(x, matrix.dequantised(x.dtype).t(), out=out)
            return
        numbers, scales = quantised_rows(x, matrix)
        rounded = numbers.float().unflatten(1, (scales.shape[1], -1)) * scales[..., None]
        out.copy_(rounded.flatten(1) @ matrix.dequantised(torch.float32).t())


class TritonProducts:
    """Triton's kernels; torch's own product for many rows of FP8."""

    def __init__(self, device: torch.device) -> None:
        """On a device, or in Triton's interpreter."""
        is_gpu = device.type == "cuda"
        self._has_float8 = not is_gpu or torch.cuda.get_device_capability(device) >= (8, 9)
        self._has_library = is_gpu and self._has_float8

    def quantises_inputs(self, matrix: GroupedMatrix) -> bool:
        """As `Products.quantises_inputs`. They stay as they are where the GPU has no products of FP8."""
        return matrix.inputs is not Inputs.NONE and (self._has_float8 or matrix.quants.dtype != FLOAT8)

    def multiply(self, x: Tensor, matrix: GroupedMatrix, out: Tensor) -> None:
        """As `Products.multiply`."""
        from pyagent.infrastructure.engine.runners.torch.kernels import grouped, scaled

        if self.quantises_inputs(matrix):
            numbers, scales = scaled.quantised_rows(x, matrix)
            if self._has_library and is_for_library(numbers, matrix, out):
                library_product(numbers, scales, matrix, out)
            else:
                scaled.product(numbers, scales, matrix, out)
        elif len(x) < DENSE_ROWS:
            grouped.product(x, matrix, out)
        else:
            weights = torch.empty(matrix.num_rows, matrix.num_columns, dtype=x.dtype, device=x.device)
            grouped.dequantise(matrix, weights)
            torch.mm(x, weights.t(), out=out)


def is_for_library(numbers: Tensor, matrix: GroupedMatrix, out: Tensor) -> bool:
    """Return whether torch's own product takes such inputs, and is the quicker one."""
    is_whole = matrix.group == matrix.num_columns and matrix.num_columns % 16 == 0 and matrix.num_rows % 16 == 0
    return is_whole and len(numbers) >= _LIBRARY_ROWS and (numbers.dtype, out.dtype) == (FLOAT8, torch.bfloat16)


def library_product(numbers: Tensor, scales: Tensor, matrix: GroupedMatrix, out: Tensor) -> None:
    """Put rows of FP8 times the weights, transposed, into `out`, by cuBLAS or CUTLASS."""
    weights, row_scales = matrix.quants.t(), matrix.scales.t()
    out.copy_(torch.ops.aten._scaled_mm(numbers, weights, scales, row_scales, out_dtype=out.dtype))
