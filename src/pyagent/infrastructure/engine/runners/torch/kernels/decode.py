"""Attention of one new token for each of many sequences: the context is cut into parts, and the parts are merged.

A program reads one part of one sequence's context for one KV head, for all query heads that share it. How a context is
cut depends on its own length and the model's shape alone, not on the batch beside it: its sums are the same in any,
unless the batch shares a prefix, which is read once for all (`cascade`).
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart.

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.kernels.cascade import attend_shared
from pyagent.infrastructure.engine.runners.torch.kernels.launch import configured, next_power_of_2, widens
from pyagent.infrastructure.engine.runners.torch.kernels.online_softmax import attend_keys, with_sink
from pyagent.infrastructure.engine.runners.torch.kernels.parts import (
    PART_TOKENS,
    Parts,
    first_block,
    make_parts,
    merge_parts,
    part_of,
)

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.kernels.attention import PagedQueries

DECODE_CONFIGS = [
    triton.Config({}, num_warps=num_warps, num_stages=num_stages)
    for num_warps, num_stages in ((4, 3), (4, 5), (2, 5), (8, 3), (4, 2), (4, 1))
]


@configured(DECODE_CONFIGS, key=["HEAD_DIM", "GROUP", "BLOCK_N", "WINDOW"])
@triton.jit(
    do_not_specialize=["first", "num_shared", "num_own", "table_stride"],
    do_not_specialize_on_alignment=["sinks", "query_starts", "lengths", "tables"],
)
def _attend_parts(
    q,
    k_cache,
    v_cache,
    exponents,
    sinks,
    query_starts,
    lengths,
    tables,
    out,
    part_values,
    part_weights,
    first,
    num_shared,
    num_own,
    scale,
    q_stride,
    out_stride,
    page_stride,
    token_stride,
    head_stride,
    exponent_stride,
    table_stride,
    IS_WHOLE: tl.constexpr,  # there is one part: it is the output
    PART_TOKENS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SCALED: tl.constexpr,
    SINKS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    sequence, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = tl.load(query_starts + sequence).to(tl.int64)
    if tl.load(query_starts + sequence + 1) - token != 1:
        return  # a chunk of a prompt
    num_tokens = tl.load(lengths + sequence)
    own = first_block(num_tokens, first, BLOCK_N, WINDOW)
    start, end = part_of(num_tokens, own, part, num_own, PART_TOKENS, BLOCK_N)
    if start >= end:
        return
    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    heads = kv_head * GROUP + rows
    is_row = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    offsets = heads[:, None] * HEAD_DIM + dims[None, :]
    q_tile = tl.load(q + token * q_stride + offsets, mask=is_row, other=0.0)
    if WIDEN:
        q_tile = q_tile.to(tl.float32)
    first_seen = own
    if WINDOW > 0:
        first_seen = tl.maximum(num_tokens - WINDOW, 0)
    acc, row_max, row_sum = attend_keys(
        q_tile,
        tl.zeros([BLOCK_M, BLOCK_D], tl.float32),
        tl.full([BLOCK_M], float("-inf"), tl.float32),
        tl.zeros([BLOCK_M], tl.float32),
        tl.zeros([BLOCK_M], tl.int32) + (num_tokens - 1),
        k_cache + kv_head * head_stride,
        v_cache + kv_head * head_stride,
        exponents + 2 * kv_head,
        tables + sequence.to(tl.int64) * table_stride,
        start,
        end,
        first_seen,
        page_stride,
        token_stride,
        exponent_stride,
        scale,
        HEAD_DIM,
        BLOCK_D,
        BLOCK_N,
        True,
        WINDOW,
        SOFTCAP,
        SCALED,
    )
    values = acc / row_sum[:, None]
    if IS_WHOLE:
        if SINKS:  # as parts are merged: the same bits, whatever is beside
            head_sinks = tl.load(sinks + heads, mask=rows < GROUP, other=0.0)
            values = with_sink(values, row_max + tl.log2(row_sum), head_sinks)
        tl.store(out + token * out_stride + offsets, values.to(out.dtype.element_ty), mask=is_row)
    else:
        num_heads = tl.num_programs(1) * GROUP
        slots = (sequence.to(tl.int64) * num_heads + heads) * (num_shared + num_own) + num_shared + part
        tl.store(part_values + slots[:, None] * HEAD_DIM + dims[None, :], values, mask=is_row)
        tl.store(part_weights + slots, row_max + tl.log2(row_sum), mask=rows < GROUP)


def decode_block(head_dim: int, element_bytes: int) -> int:
    """Return the keys that a program reads at once: 16 kB of keys and as much of values, as far as it can be."""
    return min(128, max(16, 16_384 // (next_power_of_2(head_dim) * element_bytes)))


def attend_decode(queries: PagedQueries, out: Tensor) -> None:
    """Write `out` for the sequences with one query; leaves the others' rows alone."""
    parts = make_parts(queries, decode_block(queries.q.shape[2], queries.k_cache.element_size()))
    if parts.num_shared:
        attend_shared(queries, parts)
    _attend_own(queries, parts, out)
    if parts.num_slots > 1:
        merge_parts(queries, parts, out)


def _attend_own(queries: PagedQueries, parts: Parts, out: Tensor) -> None:
    """Compute each sequence's own parts, which are the output where there is one slot."""
    q, k_cache = queries.q, queries.k_cache
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = k_cache.shape[2]
    group = num_heads // num_kv_heads
    _attend_parts[(len(queries.lengths), num_kv_heads, parts.num_own)](
        q,
        k_cache,
        queries.v_cache,
        queries.exponents,
        queries.sinks,
        queries.query_starts,
        queries.lengths,
        queries.tables,
        out,
        parts.values,
        parts.weights,
        parts.first,
        parts.num_shared,
        parts.num_own,
        queries.scale,
        q.stride(0),
        out.stride(0),
        *k_cache.stride()[:3],
        2 * num_kv_heads,
        queries.tables.stride(0),
        IS_WHOLE=parts.num_slots == 1,
        PART_TOKENS=PART_TOKENS,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_M=max(16, next_power_of_2(group)),
        BLOCK_N=parts.block,
        BLOCK_D=next_power_of_2(head_dim),
        WINDOW=queries.window,
        SOFTCAP=queries.softcap,
        SCALED=queries.is_scaled,
        SINKS=queries.has_sinks,
        WIDEN=widens(q.dtype, k_cache.dtype),
    )
