"""Attention on torch's CPU device: sequences that decode are gathered into the same memory again and again.

A layer's pages are copied together, as `sdpa` does it, but into memory that stays: new memory of that size comes from
the system, which empties it page by page, and that takes longer than the copying and the products. Of what is gathered,
only the rows that no query may see are emptied. Where keys lie is worked out once for a step's layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache
from pyagent.infrastructure.engine.runners.torch.attention.sdpa import attend_prompts

_SCRATCH_BYTES = 4 << 20
"""Most that is gathered of the keys of several sequences: about what a core's caches hold."""
_UNEVEN_BLOCKS = 4
"""Sequences are computed at once, padded to the longest, whose lengths are within a quarter, or so many blocks."""


class _Group(NamedTuple):
    """Sequences [n] of about the same length: their `rows` in the step, and where what they see lies."""

    rows: Tensor  # [n]
    pages: Tensor  # [n * B]
    hidden: Tensor  # [h] places in [n * B * BLOCK_TOKENS] that their sequence does not see
    mask: Tensor | None  # [n, 1, 1, B * BLOCK_TOKENS], -inf there


class CpuAttend:
    """Computes `Attend`, without softcap. Not for concurrent use: a model's steps follow each other."""

    def __init__(self, scratch_bytes: int = _SCRATCH_BYTES) -> None:
        self._scratch_bytes = scratch_bytes
        self._scratch: dict[tuple[int, torch.dtype], Tensor] = {}
        self._last: tuple[AttentionBatch, int | None, list[_Group]] | None = None

    def __call__(
        self,
        q: Tensor,
        cache: PagedCache,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """As `Attend`. Raises `ValueError` for a softcap, which torch's kernels lack."""
        if softcap is not None:
            raise ValueError("torch's kernels have no softcap; use the plain form")
        num_decoding = sum(1 for _ in takewhile(lambda num_queries: num_queries == 1, batch.num_queries))
        if num_decoding == 0:
            return attend_prompts(q, cache, batch, 0, scale, window)
        out = torch.empty_like(q)
        for group in self._groups(q, cache, batch, num_decoding, window):
            out.index_copy_(0, group.rows, self._decode(q, cache, group, scale))
        if num_decoding < len(batch.num_queries):
            out[num_decoding:] = attend_prompts(q, cache, batch, num_decoding, scale, window)
        return out

    def _groups(
        self, q: Tensor, cache: PagedCache, batch: AttentionBatch, num_decoding: int, window: int | None
    ) -> list[_Group]:
        if self._last is None or self._last[0] is not batch or self._last[1] != window:
            most_blocks = self._scratch_bytes // (cache.keys[0].numel() * q.element_size())
            lengths = batch.lengths[:num_decoding].long()
            ends = -(lengths // -BLOCK_TOKENS)
            firsts = torch.zeros_like(lengths) if window is None else (lengths - window).clamp_(min=0) // BLOCK_TOKENS
            groups = [
                _group(batch.tables, torch.tensor(rows), _Seen(lengths, firsts, ends), window, q.dtype)
                for rows in even_groups((ends - firsts).tolist(), most_blocks)
            ]
            self._last = (batch, window, groups)
        return self._last[2]

    def _decode(self, q: Tensor, cache: PagedCache, group: _Group, scale: float) -> Tensor:
        """Some sequences' one query each [n, Hq, D]: heads that share keys are the rows of one product."""
        num_rows, num_kv_heads = len(group.rows), cache.keys.shape[2]
        keys, values = (
            rows.index_fill_(0, group.hidden, 0).unflatten(0, (num_rows, -1)).transpose(1, 2)  # [n, Hkv, L, D]
            for rows in self._gathered(cache, group.pages, q.dtype)
        )
        queries = q.index_select(0, group.rows).unflatten(1, (num_kv_heads, -1))  # [n, Hkv, G, D]
        heads = scaled_dot_product_attention(queries, keys, values, attn_mask=group.mask, scale=scale)
        return heads.flatten(1, 2)

    def _gathered(self, cache: PagedCache, pages: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield pages' keys and values [B * BLOCK_TOKENS, Hkv, D]; what others left in them may be anything, NaN too.

        A mask of scores would let that through.
        """
        scaled = (None, None) if cache.exponents is None else cache.read(pages)
        for place, (stored, read) in enumerate(zip((cache.keys, cache.values), scaled, strict=True)):
            shape = (len(pages), *stored.shape[1:])
            rows = self._room(place, shape, stored.dtype) if read is None else read
            if read is None:
                torch.index_select(stored, 0, pages, out=rows)
            exact = rows if rows.dtype == dtype else self._room(place, shape, dtype).copy_(rows)
            yield exact.flatten(0, 1)

    def _room(self, place: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return memory of a shape, which the next call with this place and type overwrites."""
        num, kept = torch.Size(shape).numel(), self._scratch.get((place, dtype))
        if kept is None or len(kept) < num:
            kept = self._scratch[place, dtype] = torch.empty(num, dtype=dtype)
        return kept[:num].view(shape)


def even_groups(num_blocks: Sequence[int], most_blocks: int) -> Iterator[list[int]]:
    """Yield rows that are padded to one length: within a quarter of the shortest, `most_blocks` in all or one row."""
    group: list[int] = []
    for row in sorted(range(len(num_blocks)), key=num_blocks.__getitem__):
        own = num_blocks[row]
        if group:
            shortest = num_blocks[group[0]]
            is_even = own <= max(shortest + shortest // 4, shortest + _UNEVEN_BLOCKS)
            if not is_even or (len(group) + 1) * own > most_blocks:
                yield group
                group = []
        group.append(row)
    yield group


class _Seen(NamedTuple):
    """Sequences' lengths [n], the first blocks that their last tokens see, and those after their last ones."""

    lengths: Tensor
    firsts: Tensor
    ends: Tensor


def _group(tables: Tensor, rows: Tensor, seen: _Seen, window: int | None, dtype: torch.dtype) -> _Group:
    """Lay a group out; what pads a sequence is its last page again."""
    lengths, firsts, ends = (numbers[rows, None] for numbers in seen)
    width = int((ends - firsts).max())
    blocks = firsts + torch.arange(width)
    pages = tables[rows].gather(1, torch.minimum(blocks, ends - 1))
    positions = firsts * BLOCK_TOKENS + torch.arange(width * BLOCK_TOKENS)  # [n, L]
    is_hidden = positions >= lengths
    if window is not None:
        is_hidden |= positions < lengths - window
    hidden = is_hidden.flatten().nonzero()[:, 0]
    mask = torch.zeros(is_hidden.shape, dtype=dtype).masked_fill_(is_hidden, -torch.inf) if len(hidden) else None
    return _Group(rows, pages.flatten(), hidden, None if mask is None else mask[:, None, None])
