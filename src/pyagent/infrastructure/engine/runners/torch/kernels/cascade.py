"""Attention of many sequences to a prefix that all of them begin with: read once for all, not once for each.

Tiles are as in prefill, but their rows are of different sequences, each with its one new token, and no key is hidden
from any. What they leave is a part as any other, merged with each sequence's own.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart; by the types, a
# kernel that another calls never returns.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from pyagent.infrastructure.engine.runners.torch.kernels.launch import configured, divide_up, next_power_of_2, widens
from pyagent.infrastructure.engine.runners.torch.kernels.online_softmax import attend_keys
from pyagent.infrastructure.engine.runners.torch.kernels.parts import PART_TOKENS, Parts, part_of

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.kernels.attention import PagedQueries

CASCADE_CONFIGS = [
    triton.Config({"BLOCK_M": block_m}, num_warps=num_warps, num_stages=num_stages)
    for block_m, num_warps, num_stages in ((64, 4, 3), (128, 8, 3), (64, 4, 2), (32, 4, 3), (16, 4, 2))
]


@configured(CASCADE_CONFIGS, key=["HEAD_DIM", "GROUP", "BLOCK_N"])
@triton.jit(
    do_not_specialize=["num_sequences", "num_keys", "leader", "num_shared", "num_slots", "table_stride"],
    do_not_specialize_on_alignment=["query_starts", "tables"],
)
def _attend_prefix(
    q,
    k_cache,
    v_cache,
    exponents,
    query_starts,
    tables,
    part_values,
    part_weights,
    num_sequences,
    num_keys,  # of the prefix: whole blocks
    leader,  # a sequence that begins with it
    num_shared,
    num_slots,
    scale,
    q_stride,
    page_stride,
    token_stride,
    head_stride,
    exponent_stride,
    table_stride,
    PART_TOKENS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SCALED: tl.constexpr,
    WIDEN: tl.constexpr,
):
    tile, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    sequences = rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    is_sequence = sequences < num_sequences
    tokens = tl.load(query_starts + sequences, mask=is_sequence, other=0).to(tl.int64)
    after = tl.load(query_starts + sequences + 1, mask=is_sequence, other=0)
    is_decoding = is_sequence & (after - tokens == 1)
    is_row = is_decoding[:, None] & (dims < HEAD_DIM)[None, :]
    offsets = tokens[:, None] * q_stride + (heads * HEAD_DIM)[:, None] + dims[None, :]
    q_tile = tl.load(q + offsets, mask=is_row, other=0.0)
    if WIDEN:
        q_tile = q_tile.to(tl.float32)
    start, end = part_of(num_keys, 0, part, num_shared, PART_TOKENS, BLOCK_N)
    acc, row_max, row_sum = attend_keys(
        q_tile,
        tl.zeros([BLOCK_M, BLOCK_D], tl.float32),
        tl.full([BLOCK_M], float("-inf"), tl.float32),
        tl.zeros([BLOCK_M], tl.float32),
        rows,
        k_cache + kv_head * head_stride,
        v_cache + kv_head * head_stride,
        exponents + 2 * kv_head,
        tables + leader.to(tl.int64) * table_stride,
        start,
        end,
        0,
        page_stride,
        token_stride,
        exponent_stride,
        scale,
        HEAD_DIM,
        BLOCK_D,
        BLOCK_N,
        False,
        0,
        SOFTCAP,
        SCALED,
    )
    is_read = row_sum > 0  # a part beyond the last block is of no weight
    values = acc / tl.where(is_read, row_sum, 1.0)[:, None]
    weights = tl.where(is_read, row_max + tl.log2(tl.where(is_read, row_sum, 1.0)), float("-inf"))
    slots = (sequences.to(tl.int64) * (tl.num_programs(1) * GROUP) + heads) * num_slots + part
    tl.store(part_values + slots[:, None] * HEAD_DIM + dims[None, :], values, mask=is_row)
    tl.store(part_weights + slots, weights, mask=is_decoding)


def attend_shared(queries: PagedQueries, parts: Parts) -> None:
    """Fill the slots of the shared prefix, for the sequences with one query."""
    q, k_cache = queries.q, queries.k_cache
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, num_sequences = k_cache.shape[2], len(queries.lengths)
    group = num_heads // num_kv_heads

    def grid(chosen: dict[str, Any]) -> tuple[int, int, int]:
        return divide_up(num_sequences * group, chosen["BLOCK_M"]), num_kv_heads, parts.num_shared

    _attend_prefix[grid](
        q,
        k_cache,
        queries.v_cache,
        queries.exponents,
        queries.query_starts,
        queries.tables,
        parts.values,
        parts.weights,
        num_sequences,
        parts.first,
        queries.leader,
        parts.num_shared,
        parts.num_slots,
        queries.scale,
        q.stride(0),
        *k_cache.stride()[:3],
        2 * num_kv_heads,
        queries.tables.stride(0),
        PART_TOKENS=PART_TOKENS,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_N=parts.block,
        BLOCK_D=next_power_of_2(head_dim),
        SOFTCAP=queries.softcap,
        SCALED=queries.is_scaled,
        WIDEN=widens(q.dtype, k_cache.dtype),
    )
