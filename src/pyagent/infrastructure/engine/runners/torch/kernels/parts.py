"""A context cut into parts that programs read at the same time, and the parts merged by their log-sum-exp.

A part leaves its softmax's weighted values and the logarithm (to base 2) of the sum of its exponentials. Merging is a
weighted mean, which is associative: parts may be cut anywhere, and come from different kernels.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.attention.batch import FEWEST_SHARED
from pyagent.infrastructure.engine.runners.torch.kernels.launch import (
    configured,
    divide_up,
    next_power_of_2,
    num_processors,
)
from pyagent.infrastructure.engine.runners.torch.kernels.online_softmax import LOG2_E

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.kernels.attention import PagedQueries

PART_TOKENS = 256
"""A part is no shorter, unless it is the whole context: a shorter one costs more to merge than it saves."""
MOST_PARTS = 64


class Parts(NamedTuple):
    """What the parts leave, a slot for each: first those of the prefix that all sequences share, then their own.

    `first` is the first key after that prefix. Of a sequence's own slots as many are used as its context is worth.
    """

    values: Tensor  # [n, Hq, slots, D] float32
    weights: Tensor  # [n, Hq, slots] float32
    num_shared: int
    num_own: int
    first: int
    block: int

    @property
    def num_slots(self) -> int:
        """Slots of each sequence and head."""
        return self.num_shared + self.num_own


def make_parts(queries: PagedQueries, block: int) -> Parts:
    """Return room for parts of blocks of so many keys. With one slot there is none: it goes straight to the output."""
    num_sequences, num_heads, head_dim = len(queries.lengths), *queries.q.shape[1:]
    num_kv_heads = queries.k_cache.shape[2]
    is_cascade = queries.window == 0 and queries.num_shared >= FEWEST_SHARED
    first = queries.num_shared // block * block if is_cascade else 0
    seen = min(queries.longest, queries.window + block) if queries.window else queries.longest - first
    num_own = num_parts(seen, num_kv_heads, queries.q.device)
    num_shared = num_parts(first, num_kv_heads, queries.q.device)
    slots = num_own + num_shared
    shape = (num_sequences, num_heads, slots) if slots > 1 else (0, 0, 0)
    values = torch.empty((*shape, head_dim), dtype=torch.float32, device=queries.q.device)
    weights = torch.empty(shape, dtype=torch.float32, device=queries.q.device)
    return Parts(values, weights, num_shared, num_own, first, block)


def num_parts(num_keys: int, num_kv_heads: int, device: torch.device) -> int:
    """Return the most parts of so many keys: with one sequence there are two programs for each multiprocessor."""
    most = min(MOST_PARTS, max(1, 2 * num_processors(device) // num_kv_heads))
    return min(most, divide_up(num_keys, PART_TOKENS))


@triton.jit
def part_of(
    num_tokens,
    first,
    part,
    most_parts,
    PART_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return where a part of the keys from `first` on starts and ends; an empty one does not end after its start."""
    num_keys = num_tokens - first
    num_parts = tl.minimum(tl.cdiv(num_keys, PART_TOKENS), most_parts)
    length = tl.cdiv(tl.cdiv(num_keys, num_parts), BLOCK_N) * BLOCK_N
    start = first + part * length
    return start, tl.minimum(start + length, num_tokens)


@triton.jit
def first_block(num_tokens, first, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr):
    """Return where the first block that a sequence's last token sees starts."""
    return tl.maximum(num_tokens - WINDOW, 0) // BLOCK_N * BLOCK_N if WINDOW > 0 else first


MERGE_CONFIGS = [triton.Config({}, num_warps=num_warps) for num_warps in (4, 8, 16)]


def _fits(shape: dict[str, Any], config: triton.Config) -> bool:
    """Whether the parts of a head are at most 64 numbers a thread, which stay in registers."""
    return shape["BLOCK_S"] * shape["BLOCK_D"] <= 64 * 32 * config.num_warps


@configured(MERGE_CONFIGS, key=["HEAD_DIM", "BLOCK_S"], fits=_fits)
@triton.jit(
    do_not_specialize=["first", "num_shared", "num_own"],
    do_not_specialize_on_alignment=["sinks", "query_starts", "lengths"],
)
def _merge_parts(
    sinks,
    query_starts,
    lengths,
    out,
    part_values,
    part_weights,
    first,
    num_shared,
    num_own,
    out_stride,
    PART_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
):
    sequence, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(query_starts + sequence).to(tl.int64)
    if tl.load(query_starts + sequence + 1) - token != 1:
        return
    slots = tl.arange(0, BLOCK_S)
    dims = tl.arange(0, BLOCK_D)
    num_tokens = tl.load(lengths + sequence)
    own = first_block(num_tokens, first, BLOCK_N, WINDOW)
    start, end = part_of(num_tokens, own, slots - num_shared, num_own, PART_TOKENS, BLOCK_N)
    is_part = (slots < num_shared) | ((slots < num_shared + num_own) & (start < end))
    places = (sequence.to(tl.int64) * tl.num_programs(1) + head) * (num_shared + num_own) + slots
    weights = tl.load(part_weights + places, mask=is_part, other=float("-inf"))
    most = tl.max(weights, 0)
    if SINKS:
        sink = tl.load(sinks + head) * LOG2_E
        most = tl.maximum(most, sink)
    weights = tl.exp2(weights - most)
    is_value = is_part[:, None] & (dims < HEAD_DIM)[None, :]
    values = tl.load(part_values + places[:, None] * HEAD_DIM + dims[None, :], mask=is_value, other=0.0)
    total = tl.sum(weights, 0)
    if SINKS:
        total += tl.exp2(sink - most)
    merged = tl.sum(values * weights[:, None], 0) / total
    tl.store(out + token * out_stride + head * HEAD_DIM + dims, merged.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


def merge_parts(queries: PagedQueries, parts: Parts, out: Tensor) -> None:
    """Write `out` for the sequences with one query out of their parts."""
    head_dim = queries.q.shape[2]
    _merge_parts[(len(queries.lengths), queries.q.shape[1])](
        queries.sinks,
        queries.query_starts,
        queries.lengths,
        out,
        parts.values,
        parts.weights,
        parts.first,
        parts.num_shared,
        parts.num_own,
        out.stride(0),
        PART_TOKENS=PART_TOKENS,
        HEAD_DIM=head_dim,
        BLOCK_S=8 if parts.num_slots <= 8 else next_power_of_2(max(MOST_PARTS, parts.num_slots)),
        BLOCK_N=parts.block,
        BLOCK_D=next_power_of_2(head_dim),
        WINDOW=queries.window,
        SINKS=queries.has_sinks,
    )
