"""Rotary positions of queries and keys, and the step's keys and values into their pages: one pass instead of five."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart; by the types, a
# kernel that another calls never returns.

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.kernels.float8 import rounded_to_float8
from pyagent.infrastructure.engine.runners.torch.kernels.launch import INTERPRETED, configured, next_power_of_2
from pyagent.infrastructure.engine.runners.torch.kernels.online_softmax import power_of_2

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache

ROTARY_CONFIGS = [triton.Config({}, num_warps=num_warps) for num_warps in (2, 4, 1, 8)]


@triton.jit
def _rotated(rows, cos, sin, is_pair, first, second):
    """Return both halves of rows [R, pairs] turned by their angles, in float32."""
    a = tl.load(rows + first, mask=is_pair, other=0.0).to(tl.float32)
    b = tl.load(rows + second, mask=is_pair, other=0.0).to(tl.float32)
    return a * cos - b * sin, b * cos + a * sin


@triton.jit
def _exponent(greatest):
    """Return the least whole power of two that brings a number within 448, as `paged_cache.quantised` has it."""
    bits = (greatest * (1.0 / 448.0)).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    return tl.minimum(tl.maximum(exponent, -100), 100)


@configured(ROTARY_CONFIGS, key=["HEAD_DIM", "GROUP"], changes=["q"])
@triton.jit
def _rotate_and_store(
    q,
    k,
    v,
    cos,  # [T, ROTARY_DIM / 2] float32
    sin,
    rows,  # [T]: a token's row of the caches, below 0 for one that is not kept
    k_cache,
    v_cache,
    exponents,
    q_stride,
    k_stride,
    v_stride,
    angle_stride,
    row_stride,
    head_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SCALED: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    token, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pairs = tl.arange(0, BLOCK_P)[None, :]
    is_pair = pairs < ROTARY_DIM // 2
    if INTERLEAVED:
        first = 2 * pairs
        second = 2 * pairs + 1
    else:
        first = pairs
        second = pairs + ROTARY_DIM // 2
    cos_row = tl.load(cos + token * angle_stride + pairs, mask=is_pair, other=0.0)
    sin_row = tl.load(sin + token * angle_stride + pairs, mask=is_pair, other=0.0)
    group = tl.arange(0, BLOCK_G)[:, None]
    is_query = is_pair & (group < GROUP)
    queries = q + token * q_stride + (kv_head * GROUP + group) * HEAD_DIM
    a, b = _rotated(queries, cos_row, sin_row, is_query, first, second)
    tl.store(queries + first, a.to(q.dtype.element_ty), mask=is_query)
    tl.store(queries + second, b.to(q.dtype.element_ty), mask=is_query)
    row = tl.load(rows + token).to(tl.int64)
    if row >= 0:
        key = k + token * k_stride + kv_head * HEAD_DIM
        value = v + token * v_stride + kv_head * HEAD_DIM
        place = row * row_stride + kv_head * head_stride
        dims = tl.arange(0, BLOCK_D)
        is_plain = (dims >= ROTARY_DIM) & (dims < HEAD_DIM)
        key_a, key_b = _rotated(key, cos_row, sin_row, is_pair, first, second)
        plain = tl.load(key + dims, mask=is_plain, other=0.0).to(tl.float32)
        numbers = tl.load(value + dims, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
        if SCALED:
            greatest = tl.maximum(tl.max(tl.abs(key_a)), tl.max(tl.abs(key_b)))
            key_exponent = _exponent(tl.maximum(greatest, tl.max(tl.abs(plain))))
            value_exponent = _exponent(tl.max(tl.abs(numbers)))
            head = exponents + (row * tl.num_programs(1) + kv_head) * 2
            tl.store(head, key_exponent.to(tl.int8))
            tl.store(head + 1, value_exponent.to(tl.int8))
            key_scale = power_of_2(-key_exponent)
            key_a = rounded_to_float8(key_a * key_scale, ROUNDS)
            key_b = rounded_to_float8(key_b * key_scale, ROUNDS)
            plain = rounded_to_float8(plain * key_scale, ROUNDS)
            numbers = rounded_to_float8(numbers * power_of_2(-value_exponent), ROUNDS)
        tl.store(k_cache + place + first, key_a.to(k_cache.dtype.element_ty), mask=is_pair)
        tl.store(k_cache + place + second, key_b.to(k_cache.dtype.element_ty), mask=is_pair)
        if ROTARY_DIM < HEAD_DIM:
            tl.store(k_cache + place + dims, plain.to(k_cache.dtype.element_ty), mask=is_plain)
        tl.store(v_cache + place + dims, numbers.to(v_cache.dtype.element_ty), mask=dims < HEAD_DIM)


def rotate_and_store(
    heads: tuple[Tensor, Tensor, Tensor],
    cos: Tensor,
    sin: Tensor,
    rows: Tensor,
    cache: PagedCache,
    *,
    is_interleaved: bool,
) -> None:
    """Turn queries [T, Hq, D] in place, and write keys turned and values [T, Hkv, D] into their rows of the cache.

    `cos` and `sin` [T, R / 2] are of the first R dimensions; those after are left as they are. Pairs are halves apart
    (NeoX), or neighbours with `is_interleaved` (GPT-J). `rows` [T] count tokens through all pages; a row below 0 is not
    written.
    """
    (q, k, v), (k_cache, v_cache, exponents) = heads, cache
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    for tensor in (q, k, v):
        if tensor.stride()[1:] != (head_dim, 1):
            raise ValueError("a token's heads must lie together")
    group, rotary_dim = num_heads // num_kv_heads, 2 * cos.shape[1]
    _rotate_and_store[(num_tokens, num_kv_heads)](
        q,
        k,
        v,
        cos,
        sin,
        rows,
        k_cache,
        v_cache,
        k_cache if exponents is None else exponents,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        cos.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        GROUP=group,
        HEAD_DIM=head_dim,
        ROTARY_DIM=rotary_dim,
        BLOCK_G=next_power_of_2(group),
        BLOCK_P=next_power_of_2(rotary_dim // 2),
        BLOCK_D=next_power_of_2(head_dim),
        INTERLEAVED=is_interleaved,
        SCALED=exponents is not None,
        ROUNDS=INTERPRETED,
    )
