"""Attention of prompts' chunks over pages, in FlashAttention-2's form: a tile of queries stays, keys pass by it.

Chunks of all sequences lie one after the other. A program finds its tile's sequence by a search over where they start,
so that nothing about the batch has to be known to launch it but the number of tokens.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from pyagent.infrastructure.engine.runners.torch.kernels.launch import configured, next_power_of_2, widens
from pyagent.infrastructure.engine.runners.torch.kernels.online_softmax import attend_keys, with_sink

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.kernels.attention import PagedQueries

PREFILL_CONFIGS = [
    triton.Config({"BLOCK_M": block_m}, num_warps=num_warps, num_stages=num_stages)
    for block_m, num_warps, num_stages in (
        (128, 8, 3),
        (128, 8, 2),
        (128, 4, 3),
        (64, 4, 3),
        (64, 4, 2),
        (32, 4, 2),
        (32, 4, 1),
    )
]


def _fits(shape: dict[str, Any], config: triton.Config) -> bool:
    """Whether a tile holds a token's group of heads."""
    return shape["GROUP"] <= config.kwargs["BLOCK_M"]


@triton.jit
def _tile_sequence(query_starts, tile, num_sequences, BLOCK_Q: tl.constexpr):
    """Return the sequence of a tile. Sequence i's tiles begin at i + start // BLOCK_Q, which leaves room for all."""
    low = 0
    high = num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        is_after = tl.load(query_starts + middle) // BLOCK_Q + middle <= tile
        low = tl.where(is_after, middle, low)
        high = tl.where(is_after, high, middle)
    return low


@configured(PREFILL_CONFIGS, key=["HEAD_DIM", "GROUP", "BLOCK_N", "WINDOW"], fits=_fits)
@triton.jit(
    do_not_specialize=["num_sequences", "table_stride"],
    do_not_specialize_on_alignment=["sinks", "query_starts", "lengths", "tables"],
)
def _attend_tiles(
    q,
    k_cache,
    v_cache,
    exponents,
    sinks,
    query_starts,
    lengths,
    tables,
    out,
    num_sequences,
    scale,
    q_stride,
    out_stride,
    page_stride,
    token_stride,
    head_stride,
    exponent_stride,
    table_stride,
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
    IS_FIXED: tl.constexpr,  # every query by the same instructions, also a sequence's only one
):
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # a prompt's last tiles see the most keys: they go first
    kv_head = tl.program_id(1)
    sequence = _tile_sequence(query_starts, tile, num_sequences, BLOCK_Q)
    first_token = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - first_token
    first_query = (tile - first_token // BLOCK_Q - sequence) * BLOCK_Q
    if first_query >= num_queries:
        return
    if num_queries == 1 and not IS_FIXED:
        return  # it is left to the decode kernel
    num_tokens = tl.load(lengths + sequence)
    first_position = num_tokens - num_queries + first_query
    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    row_queries = first_query + rows // GROUP
    row_positions = first_position + rows // GROUP
    row_tokens = (first_token + row_queries).to(tl.int64)
    is_row = ((row_queries < num_queries) & (rows < BLOCK_Q * GROUP))[:, None] & (dims < HEAD_DIM)[None, :]
    offsets = ((kv_head * GROUP + rows % GROUP) * HEAD_DIM)[:, None] + dims[None, :]
    q_tile = tl.load(q + row_tokens[:, None] * q_stride + offsets, mask=is_row, other=0.0)
    if WIDEN:
        q_tile = q_tile.to(tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    keys = k_cache + kv_head * head_stride
    values = v_cache + kv_head * head_stride
    key_exponents = exponents + 2 * kv_head
    page_table = tables + sequence.to(tl.int64) * table_stride
    end = tl.minimum(first_position + BLOCK_Q, num_tokens)
    if WINDOW > 0:
        first_seen = tl.maximum(first_position - WINDOW + 1, 0)
        masked_from = first_seen // BLOCK_N * BLOCK_N
    elif IS_FIXED:  # a compiler may round the masked loop otherwise than the one without
        first_seen = 0
        masked_from = 0
    else:
        first_seen = 0
        masked_from = (first_position + 1) // BLOCK_N * BLOCK_N  # every row sees every key before
        acc, row_max, row_sum = attend_keys(
            q_tile,
            acc,
            row_max,
            row_sum,
            row_positions,
            keys,
            values,
            key_exponents,
            page_table,
            0,
            masked_from,
            0,
            page_stride,
            token_stride,
            exponent_stride,
            scale,
            HEAD_DIM,
            BLOCK_D,
            BLOCK_N,
            False,
            WINDOW,
            SOFTCAP,
            SCALED,
        )
    acc, row_max, row_sum = attend_keys(
        q_tile,
        acc,
        row_max,
        row_sum,
        row_positions,
        keys,
        values,
        key_exponents,
        page_table,
        masked_from,
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
    result = acc / tl.where(row_sum > 0, row_sum, 1.0)[:, None]  # rows beyond the chunk may see no key
    if SINKS:
        head_sinks = tl.load(sinks + kv_head * GROUP + rows % GROUP)
        result = with_sink(result, row_max + tl.log2(tl.where(row_sum > 0, row_sum, 1.0)), head_sinks)
    tl.store(out + row_tokens[:, None] * out_stride + offsets, result.to(out.dtype.element_ty), mask=is_row)


def prefill_block(head_dim: int, element_bytes: int) -> int:
    """Return the keys that a tile meets at once: as many as keep keys and values of a stage within 64 kB."""
    return min(64, max(16, 32_768 // (next_power_of_2(head_dim) * element_bytes)))


def attend_prefill(queries: PagedQueries, out: torch.Tensor, *, is_fixed: bool = False) -> None:
    """Write `out` for the sequences with several queries; leaves the others' rows alone.

    With `is_fixed` it is for all sequences, and a query's bits are those it has in any batch and chunk.
    """
    q, k_cache = queries.q, queries.k_cache
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, num_sequences = k_cache.shape[2], len(queries.lengths)
    group = num_heads // num_kv_heads

    def grid(chosen: dict[str, Any]) -> tuple[int, int]:
        return num_tokens // (chosen["BLOCK_M"] // group) + num_sequences, num_kv_heads

    _attend_tiles[grid](
        q,
        k_cache,
        queries.v_cache,
        queries.exponents,
        queries.sinks,
        queries.query_starts,
        queries.lengths,
        queries.tables,
        out,
        num_sequences,
        queries.scale,
        q.stride(0),
        out.stride(0),
        *k_cache.stride()[:3],
        2 * num_kv_heads,
        queries.tables.stride(0),
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_N=prefill_block(head_dim, k_cache.element_size()),
        BLOCK_D=next_power_of_2(head_dim),
        WINDOW=queries.window,
        SOFTCAP=queries.softcap,
        SCALED=queries.is_scaled,
        SINKS=queries.has_sinks,
        WIDEN=widens(q.dtype, k_cache.dtype),
        IS_FIXED=is_fixed,
    )
