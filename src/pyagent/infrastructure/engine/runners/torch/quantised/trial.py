"""Which products are taken: kernels whose results of small random matrices are right, on this device and today."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch import kernels
from pyagent.infrastructure.engine.runners.torch.parallel.shard import Span
from pyagent.infrastructure.engine.runners.torch.quantised import mxfp4
from pyagent.infrastructure.engine.runners.torch.quantised.gguf import BLOCK_TYPES
from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix
from pyagent.infrastructure.engine.runners.torch.quantised.mxfp4 import ExpertRows
from pyagent.infrastructure.engine.runners.torch.quantised.numbers import FLOAT8, Numbers
from pyagent.infrastructure.engine.runners.torch.quantised.products import PlainProducts, Products, TritonProducts
from pyagent.infrastructure.engine.runners.torch.quantised.scheme import Inputs

logger = logging.getLogger(__name__)

_MOST_ERROR = 1e-2
"""Of a trial: products in 16 bits. Those of quantised inputs are held to products of the same quantised inputs."""


@lru_cache
def choose_products(device: torch.device, dtype: torch.dtype) -> Products | None:
    """Return the kernels on a GPU where they are right; None, with the reason in the log, where they are not."""
    if device.type != "cuda":
        return PlainProducts()
    products = TritonProducts(device)
    reason = kernels.unavailable_reason(device.type) or trial_fault(products, device, dtype)
    if reason is None:
        return products
    logger.warning("dequantising weights when they are loaded, as Triton's products cannot be taken: %s", reason)
    return None


@lru_cache
def choose_expert_rows(device: torch.device, dtype: torch.dtype) -> ExpertRows | None:
    """Return the kernel for rows with experts in MXFP4 on a GPU where it is right; None, which the log explains."""
    if device.type != "cuda" or (reason := kernels.unavailable_reason(device.type)) is not None:
        return None
    from pyagent.infrastructure.engine.runners.torch.kernels.expert_rows import expert_rows

    reason = expert_rows_fault(expert_rows, device, dtype)
    if reason is None:
        return expert_rows
    logger.warning("experts are dequantised for each product, which is slower than Triton's kernel: %s", reason)
    return None


def expert_rows_fault(tried: ExpertRows, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return what is wrong with products of a few rows with experts of their own; None where nothing is."""
    draw, (num_rows, num_columns) = _random(), (40, 544)
    numbers = torch.randint(0, 256, (5, num_rows, num_columns // 2), dtype=torch.uint8, generator=draw)
    scales = torch.randint(120, 128, (5, num_rows, num_columns // mxfp4.GROUP), dtype=torch.uint8, generator=draw)
    matrices = mxfp4.Mxfp4(numbers.to(device), scales.to(device))
    biases, x = (torch.randn(5, size, generator=draw).to(device, dtype) for size in (num_rows, num_columns))
    chosen = torch.tensor([4, 0, 2, 2, 1], device=device)
    try:
        result = tried(x / 16, matrices, biases, chosen).float()
    except Exception as error:  # noqa: BLE001 - whatever a compiler or driver raises is why it is not taken
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    weights = matrices.dequantised(torch.float32).index_select(0, chosen)
    expected = torch.bmm(weights, (x / 16).float()[..., None])[..., 0] + biases.float().index_select(0, chosen)
    error = float((result - expected).norm() / expected.norm())
    return None if error < _MOST_ERROR else f"the product with MXFP4 is wrong by {error:.1e}"


def trial_fault(
    products: Products, device: torch.device, dtype: torch.dtype, num_rows: int = 80, num_columns: int = 512
) -> str | None:
    """Return what is wrong with products of small random matrices; None where nothing is."""
    try:
        for name, make in _TRIALS.items():
            matrix = make(num_rows, num_columns, device)
            for num_tokens in (1, 20):
                x = torch.randn(num_tokens, num_columns, generator=torch.Generator().manual_seed(1))
                x = (x / 16).to(device, dtype)  # float16 has room for all of their products
                error = _error(products, matrix, x)
                if not error < _MOST_ERROR:
                    return f"the product with {name} is wrong by {error:.1e}"
    except Exception as error:  # noqa: BLE001 - whatever a compiler or driver raises is why they are not taken
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return None


def _error(products: Products, matrix: GroupedMatrix, x: Tensor) -> float:
    same = matrix if products.quantises_inputs(matrix) else replace(matrix, inputs=Inputs.NONE)
    results = list[Tensor]()
    for tried in (products, PlainProducts()):
        out = torch.empty(len(x), matrix.num_rows, dtype=x.dtype, device=x.device)
        tried.multiply(x, same, out)
        results.append(out.float())
    return float((results[0] - results[1]).norm() / results[1].norm())


def _blocks(kind: str, num_rows: int, num_columns: int, device: torch.device) -> GroupedMatrix:
    """A matrix of a GGUF file."""
    about = BLOCK_TYPES[kind]
    shape = (num_rows, num_columns // about.columns, about.num_bytes)
    blocks = torch.randint(0, 64, shape, dtype=torch.uint8, generator=_random())
    return about.planes(blocks.to(device))


def _numbers(
    dtype: torch.dtype, group: int, inputs: Inputs, num_rows: int, num_columns: int, device: torch.device
) -> GroupedMatrix:
    """A matrix of a folder; with zero points where numbers are of 4 bits."""
    values = torch.randint(0, 16, (num_rows, num_columns), generator=_random()).to(device, dtype)
    group = group or num_columns
    scales = torch.rand(num_rows, num_columns // group, generator=_random()).to(device) / 16
    zeros = torch.full(scales.shape, 7, dtype=torch.uint8, device=device) if dtype == torch.uint8 else None
    return Numbers(values, scales, zeros, group).planes(Span.whole(num_columns), group, inputs, 0.0)


def _random() -> torch.Generator:
    return torch.Generator().manual_seed(2)


_TRIALS: dict[str, Callable[[int, int, torch.device], GroupedMatrix]] = {
    **{kind: partial(_blocks, kind) for kind in ("Q4_K", "Q6_K", "Q8_0")},
    "INT4": partial(_numbers, torch.uint8, 128, Inputs.NONE),
    "INT8": partial(_numbers, torch.int8, 0, Inputs.DYNAMIC),
    "FP8": partial(_numbers, FLOAT8, 0, Inputs.DYNAMIC),
    "FP8 in blocks": partial(_numbers, FLOAT8, 128, Inputs.DYNAMIC),
    "FP8 of weights alone": partial(_numbers, FLOAT8, 0, Inputs.NONE),
}
"""Every way that kernels make weights of numbers, or multiply numbers."""
