"""Matrices of weights as what they do: products with a step's rows. Kinds of weights differ here, decoders do not."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

_ROWS_HINT = 16
"""Of a step: oneDNN lays weights out for so many. Within a tenth of the quickest from 1 to 512 rows, where measured."""


class Linear(Protocol):
    """A matrix [out, in] of weights and a bias [out]."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return [T, out] for `x` [T, in], in its data type."""
        ...


class DenseLinear:
    """Weights as torch has them."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """As `Linear`."""
        return functional.linear(x, self._weight, self._bias)


class PackedLinear:
    """Weights on the CPU, laid out once as oneDNN's products read them: up to twice as quick for few rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)

    def __call__(self, x: Tensor) -> Tensor:
        """As `Linear`."""
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


def linear_of(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """Return the quickest form of a matrix on its device."""
    return (PackedLinear if is_packed(weight.dtype, weight.device) else DenseLinear)(weight, bias)


def is_packed(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether such matrices are laid out anew: an embedding that is the output too then takes memory twice."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    match dtype:
        case torch.bfloat16:
            return torch.ops.mkldnn._is_mkldnn_bf16_supported()
        case torch.float16:
            return torch.ops.mkldnn._is_mkldnn_fp16_supported()
        case _:
            return dtype == torch.float32
