"""Triton's small stages against their formulas in float64: interpreted, or on the GPU where there is one."""

from __future__ import annotations

import pytest
import torch
from support.paged_attention import worst_row
from torch.nn import functional

from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import FP8, PagedCache, quantised
from pyagent.infrastructure.engine.runners.torch.experts import Mxfp4Stack
from pyagent.infrastructure.engine.runners.torch.kernels.expert_rows import expert_rows
from pyagent.infrastructure.engine.runners.torch.kernels.gates import gate
from pyagent.infrastructure.engine.runners.torch.kernels.norms import rms_norm
from pyagent.infrastructure.engine.runners.torch.kernels.rotary import rotate_and_store
from pyagent.infrastructure.engine.runners.torch.layers import ClampedSwiglu, rotate
from pyagent.infrastructure.engine.runners.torch.quantised.mxfp4 import Mxfp4
from pyagent.infrastructure.engine.runners.torch.quantised.trial import expert_rows_fault

pytestmark = pytest.mark.oracle

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MOST_ERROR = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Of a row: a unit in the last place, which the interpreter cuts off where a GPU rounds."""
DTYPES = pytest.mark.parametrize("dtype", list(MOST_ERROR), ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(3)


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape).to(DEVICE, dtype)


def normalised(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight.double()


@DTYPES
@pytest.mark.parametrize("size", [1, 64, 100, 1536])
def test_rms_norm_equals_its_formula(size: int, dtype: torch.dtype) -> None:
    """Rows of any length, a power of two or not, become rows of mean square one, times the weights."""
    x, weight = random(3, 2 * size, dtype=dtype)[:, size:], random(size, dtype=dtype)
    assert worst_row(rms_norm(x, weight, 1e-5), normalised(x, weight, 1e-5)) < MOST_ERROR[dtype]


def test_rms_norm_of_heads_reads_them_where_they_lie() -> None:
    """Each head of a token is normalised on its own, out of the tensor that holds queries, keys and values."""
    qkv, weight = random(3, 8 * 24, dtype=torch.float32), random(24, dtype=torch.float32)
    heads = qkv[:, 2 * 24 : 6 * 24].unflatten(1, (4, 24))
    assert worst_row(rms_norm(heads, weight, 1e-6), normalised(heads, weight, 1e-6)) < 1e-6


@DTYPES
def test_rms_norm_adds_to_the_residual_first(dtype: torch.dtype) -> None:
    """The residual becomes the sum as its type holds it, and the rows returned are of that sum."""
    x, residual, weight = (random(*shape, dtype=dtype) for shape in ((4, 96), (4, 96), (96,)))
    before = residual.clone()
    out = rms_norm(x, weight, 1e-5, residual)
    assert worst_row(residual, x.double() + before.double()) < MOST_ERROR[dtype]
    assert worst_row(out, normalised(residual, weight, 1e-5)) < MOST_ERROR[dtype]


@DTYPES
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gate_equals_torch(activation: str, dtype: torch.dtype) -> None:
    """The first half of a row, activated, times the second, as torch computes it; blocks end in the middle of rows."""
    x = 3 * random(3, 2 * 300, dtype=dtype)
    first, second = x.double().chunk(2, dim=1)
    activated = functional.silu(first) if activation == "silu" else functional.gelu(first, approximate="tanh")
    assert worst_row(gate(x, activation), activated * second) < MOST_ERROR[dtype]


@DTYPES
def test_gate_with_limits_equals_its_formula(dtype: torch.dtype) -> None:
    """gpt-oss's: gates far below the limit, and what they let through up to it on both sides."""
    x = 6 * random(3, 2 * 300, dtype=dtype)
    first, second = x.double().chunk(2, dim=1)
    first, second = first.clamp(max=7.0), second.clamp(-7.0, 7.0)
    expected = first * torch.sigmoid(1.702 * first) * (second + 1)
    assert worst_row(gate(x, ClampedSwiglu(1.702, 7.0)), expected) < MOST_ERROR[dtype]


def turned(x: torch.Tensor, angles: torch.Tensor, is_interleaved: bool) -> torch.Tensor:
    """Return x [T, H, D] as complex numbers times exp(i angle), in float64."""
    rotary_dim = 2 * angles.shape[1]
    x, rest = x.double()[..., :rotary_dim], x.double()[..., rotary_dim:]
    pairs = x.unflatten(-1, (-1, 2)) if is_interleaved else x.unflatten(-1, (2, -1)).transpose(-1, -2)
    result = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones(()).double(), angles)[:, None]
    )
    rotated = result.flatten(-2) if is_interleaved else result.transpose(-1, -2).flatten(-2)
    return torch.cat([rotated, rest], -1)


@DTYPES
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "rotary"), [(4, 2, 64, 64), (3, 1, 80, 80), (2, 2, 96, 32)])
def test_rotation_turns_pairs_and_stores_keys_and_values(
    heads: int, kv_heads: int, dim: int, rotary: int, is_interleaved: bool, dtype: torch.dtype
) -> None:
    """Queries turn in place, keys on their way into their rows, values go as they are; other rows stay untouched."""
    num_tokens = 5
    qkv = random(num_tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    q, k, v = (part.unflatten(1, (-1, dim)) for part in qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], 1))
    queries, keys, values = q.clone(), k.clone(), v.clone()
    angles = torch.randn((num_tokens, rotary // 2), dtype=torch.float64) * 3
    rows = torch.tensor([17, 3, -1, 47, 16], device=DEVICE)
    caches = [torch.full((3, 16, kv_heads, dim), 7.0, dtype=dtype, device=DEVICE) for _ in range(2)]
    cos, sin = angles.cos().float().to(DEVICE), angles.sin().float().to(DEVICE)
    rotate_and_store((q, k, v), cos, sin, rows, PagedCache(*caches), is_interleaved=is_interleaved)
    angles = angles.to(DEVICE)
    kept = rows >= 0
    k_rows, v_rows = (cache.flatten(0, 1) for cache in caches)
    assert worst_row(q, turned(queries, angles, is_interleaved)) < MOST_ERROR[dtype]
    assert worst_row(k_rows[rows[kept]], turned(keys, angles, is_interleaved)[kept]) < MOST_ERROR[dtype]
    assert torch.equal(v_rows[rows[kept]], values[kept])
    untouched = torch.ones(48, dtype=torch.bool).index_fill(0, rows[kept].cpu(), False)
    assert (k_rows[untouched.to(DEVICE)] == 7).all()
    assert (v_rows[untouched.to(DEVICE)] == 7).all()
    assert torch.equal(k, keys)


@DTYPES
@pytest.mark.parametrize(("is_interleaved", "rotary"), [(False, 64), (True, 32)])
def test_keys_and_values_are_stored_in_fp8_with_their_scales(
    is_interleaved: bool, rotary: int, dtype: torch.dtype
) -> None:
    """Each token's and head's numbers have the scale that torch's operations give them; zeros stay zeros."""
    kv_heads, dim, rows = 2, 64, torch.tensor([17, 3, 47, 16], device=DEVICE)
    qkv = random(len(rows), 3 * kv_heads, dim, dtype=dtype) * torch.logspace(-6, 2, 6, device=DEVICE)[:, None].to(dtype)
    qkv[2, 1:] = 0
    qkv[..., rotary:] *= 10  # the scale is that of what is not turned
    q, k, v = qkv.split([kv_heads] * 3, 1)
    angles = torch.randn((len(rows), rotary // 2)) * 3
    cos, sin = angles.cos().to(DEVICE), angles.sin().to(DEVICE)
    ours, theirs = (
        PagedCache.made((3, 16, kv_heads, dim), FP8, lambda shape, kind: torch.zeros(shape, device=DEVICE).to(kind))
        for _ in range(2)
    )
    theirs.store(rows, rotate(k.float(), (cos[:, None], sin[:, None]), is_interleaved=is_interleaved), v)
    rotate_and_store((q, k, v), cos, sin, rows, ours, is_interleaved=is_interleaved)
    assert torch.equal(ours.values.view(torch.uint8), theirs.values.view(torch.uint8))
    assert ours.exponents is not None
    assert theirs.exponents is not None
    assert torch.equal(ours.exponents, theirs.exponents)
    pages = torch.arange(3, device=DEVICE)
    assert (ours.read(pages)[0] - theirs.read(pages)[0]).norm() < 1e-3 * theirs.read(pages)[0].norm()
    assert ours.read(pages)[0].flatten(0, 1)[rows[2], 1].eq(0).all()


def test_fp8_numbers_are_within_a_sixteenth_of_what_was_stored() -> None:
    """The greatest number of a head uses FP8's range, others are rounded to 3 bits or to a thousandth of the scale."""
    x = torch.randn(200, 64) * torch.logspace(-20, 20, 200)[:, None]
    x[7], x[9, 1:] = 0, 0
    numbers, exponents = quantised(x)
    scales = torch.ldexp(torch.ones(200, 1), exponents[:, None].int())
    restored = numbers.float() * scales
    assert ((restored - x).abs() <= torch.maximum(x.abs() / 16, scales / 1024)).all()
    assert restored[7].eq(0).all()
    greatest = numbers.float().abs().amax(1)[x.abs().amax(1) > 0]
    assert greatest.min() >= 224
    assert greatest.max() <= 448


@DTYPES
@pytest.mark.parametrize(("num_rows", "num_columns"), [(20, 288), (7, 32)])
def test_rows_with_experts_in_4_bits_equal_their_formula(num_rows: int, num_columns: int, dtype: torch.dtype) -> None:
    """Every number and scales down to 0, of experts in any order and more than once, with biases and without."""
    shape = (5, num_rows, num_columns // 2)
    numbers = torch.randint(256, shape, dtype=torch.uint8)
    scales = torch.randint(118, 128, (*shape[:2], num_columns // 32), dtype=torch.uint8)
    scales[0, 0] = torch.arange(len(scales[0, 0]))
    matrices = Mxfp4(numbers.to(DEVICE), scales.to(DEVICE))
    chosen = torch.tensor([4, 0, 2, 2, 0, 1], device=DEVICE)
    x, biases = random(6, num_columns, dtype=dtype), random(5, num_rows, dtype=dtype)
    expected = torch.einsum("noi,ni->no", matrices.dequantised(torch.float32).double()[chosen], x.double())
    assert worst_row(expert_rows(x, matrices, None, chosen), expected) < MOST_ERROR[dtype]
    with_biases = expert_rows(x, matrices, biases, chosen)
    assert worst_row(with_biases, expected + biases.double()[chosen]) < MOST_ERROR[dtype]
    stack = Mxfp4Stack(matrices, biases, dtype, expert_rows)
    assert torch.equal(stack.each(x, chosen), with_biases)


def test_the_trial_of_the_experts_kernel_tells_what_is_wrong() -> None:
    """Right it passes; scales of a neighbour, biases left out, and a compiler's errors are told."""
    told = torch.device(DEVICE), torch.float32
    assert expert_rows_fault(expert_rows, *told) is None

    def shifted(x: torch.Tensor, matrices: Mxfp4, *more: torch.Tensor) -> torch.Tensor:
        return expert_rows(x, matrices._replace(scales=matrices.scales.roll(1, 2)), *more)

    assert "MXFP4 is wrong by" in str(expert_rows_fault(shifted, *told))
    without = expert_rows_fault(lambda x, matrices, _, chosen: expert_rows(x, matrices, None, chosen), *told)
    assert "MXFP4 is wrong by" in str(without)

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("no compiler\nset CC")

    assert expert_rows_fault(broken, *told) == "RuntimeError: no compiler"
