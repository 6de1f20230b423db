"""Attention of a tile of queries over a run of keys in pages, a block at a time: every attention kernel's inner loop.

The rows of a tile are all query heads of one KV head, for one or more tokens: each key and value is read once for the
whole group. A row's running maximum and sum (Milakov and Gimelshein 2018, FlashAttention) are in powers of two, as
`exp2` is what the device computes.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart.

from __future__ import annotations

import triton
import triton.language as tl

PAGE_TOKENS = tl.constexpr(16)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def power_of_2(exponents):
    """Return 2 to the power of whole numbers, exactly."""
    return ((exponents.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def with_sink(values, weights, sinks):
    """Return softmaxes' values [M, D] less what a sink takes of each.

    `weights` [M] are the logarithms, to base 2, of the sums of the rows' exponentials.
    """
    most = tl.maximum(weights, sinks * LOG2_E)
    share = tl.exp2(weights - most)
    return values * share[:, None] / (share + tl.exp2(sinks * LOG2_E - most))[:, None]


@triton.jit
def attend_keys(
    q,  # [M, D] of the tile
    acc,  # [M, D] float32: weighted values so far
    row_max,  # [M] float32
    row_sum,  # [M] float32
    row_positions,  # [M] int32: where each row's token is in its sequence
    k_cache,  # at the KV head
    v_cache,
    exponents,  # of FP8 scales, at the KV head
    page_table,  # at the sequence
    start,  # first block's first key
    end,  # after the last key
    first_seen,  # no row sees a key before it; only looked at with MASKED
    page_stride,
    token_stride,
    exponent_stride,  # of a token
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,  # whether a row may not see some of these keys
    WINDOW: tl.constexpr,  # 0: none
    SOFTCAP: tl.constexpr,  # 0: none
    SCALED: tl.constexpr,  # whether keys and values are FP8 with scales
):
    """Return `acc`, `row_max` and `row_sum` with the keys from `start` to `end` taken in."""
    dims = tl.arange(0, BLOCK_D)
    for block in range(start, end, BLOCK_N):
        positions = block + tl.arange(0, BLOCK_N)
        is_value = (dims < HEAD_DIM)[None, :]
        is_key = (positions >= first_seen) & (positions < end)
        if MASKED:
            # What lies out of sight may be anything: NaN times a weight of 0 would still be NaN.
            is_value = is_value & is_key[:, None]
            pages = tl.load(page_table + positions // PAGE_TOKENS, mask=is_key, other=0).to(tl.int64)
        else:
            pages = tl.load(page_table + positions // PAGE_TOKENS).to(tl.int64)
        rows = pages * page_stride + (positions % PAGE_TOKENS) * token_stride
        offsets = rows[:, None] + dims[None, :]
        k = tl.load(k_cache + offsets, mask=is_value, other=0.0).to(q.dtype)  # [N, D]
        v = tl.load(v_cache + offsets, mask=is_value, other=0.0).to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [M, N]
        if SCALED:
            places = exponents + (pages * PAGE_TOKENS + positions % PAGE_TOKENS) * exponent_stride
            scores *= power_of_2(tl.load(places, mask=is_key, other=0))[None, :]
            v = (v.to(tl.float32) * power_of_2(tl.load(places + 1, mask=is_key, other=0))[:, None]).to(q.dtype)
        if SOFTCAP > 0:
            scores = SOFTCAP * (2.0 * tl.sigmoid(scores * (2.0 / SOFTCAP)) - 1.0)  # tanh, which Triton lacks
        scores *= LOG2_E
        if MASKED:
            is_seen = (positions[None, :] <= row_positions[:, None]) & is_key[None, :]
            if WINDOW > 0:
                is_seen = is_seen & (positions[None, :] > row_positions[:, None] - WINDOW)
            scores = tl.where(is_seen, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        base = tl.where(new_max == float("-inf"), 0.0, new_max)  # a row that has seen no key yet
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(row_max - base)
        row_sum = row_sum * fade + tl.sum(weights, 1)
        acc = tl.dot(weights.to(q.dtype), v, acc * fade[:, None], input_precision="ieee")
        row_max = new_max
    return acc, row_max, row_sum
