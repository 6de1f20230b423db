"""Attention through torch's FlexAttention, which takes a mask of the user's: compiled on a GPU, as it is on a CPU.

Keys and values are copied together, all sequences' one after the other, and a mask keeps sequences apart. It is made
once for a step's layers of the same window.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from pyagent.core.runners.attention import Mask
from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache


class _Layout(NamedTuple):
    """Which pages hold a step's keys, and what each query sees of them."""

    pages: Tensor  # [B] int32
    is_key: Tensor  # [B * BLOCK_TOKENS]: the others' contents may be anything
    mask: flex.BlockMask


class FlexAttend:
    """Attention under a mask, besides that queries see their own sequence up to themselves, within the window."""

    def __init__(self, mask: Mask | None) -> None:
        self._mask = mask
        self._last: tuple[AttentionBatch, int | None, _Layout] | None = None

    def __call__(
        self,
        q: Tensor,
        cache: PagedCache,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """As `Attend`."""
        layout = self._layout(batch, window)
        hidden = ~layout.is_key[:, None, None]
        keys, values = (
            rows.flatten(0, 1).to(q.dtype).masked_fill(hidden, 0).transpose(0, 1)[None]  # [1, Hkv, K, D]
            for rows in cache.read(layout.pages)
        )

        def capped(score: Tensor, *_: Tensor) -> Tensor:
            return score if softcap is None else softcap * torch.tanh(score / softcap)

        found = flex_attention_on(q.device.type)(
            q.transpose(0, 1)[None],
            keys,
            values,
            score_mod=None if softcap is None else capped,
            block_mask=layout.mask,
            scale=scale,
            enable_gqa=q.shape[1] != keys.shape[1],
            **({} if sinks is None else {"return_lse": True}),
        )
        heads = found if sinks is None else _with_sinks(found[0], found[1], sinks)
        return heads[0].transpose(0, 1).contiguous()

    def _layout(self, batch: AttentionBatch, window: int | None) -> _Layout:
        if self._last is None or self._last[0] is not batch or self._last[1] != window:
            self._last = (batch, window, _layout(batch, window, self._mask))
        return self._last[2]


def _with_sinks(heads: Tensor, sums: Tensor, sinks: Tensor) -> Tensor:
    """Return heads [1, Hq, T, D] less what their sinks take of the softmax, of whose sums `sums` are the logarithms."""
    return heads * torch.sigmoid(sums - sinks[:, None])[..., None].to(heads.dtype)


def _layout(batch: AttentionBatch, window: int | None, mask: Mask | None) -> _Layout:
    """Lay a step out; sizes come from the host's numbers, so that nothing waits for the device."""
    device = batch.lengths.device
    num_queries = batch.query_starts.diff()
    before = batch.lengths - num_queries  # tokens before each sequence's queries
    first_blocks = torch.zeros_like(before)
    num_host = [-(-length // BLOCK_TOKENS) for length in batch.num_tokens]
    if window is not None:
        first_blocks = (before + 1 - window).clamp_(min=0) // BLOCK_TOKENS
        starts = (
            max(0, length - new + 1 - window) for new, length in zip(batch.num_queries, batch.num_tokens, strict=True)
        )
        num_host = [end - start // BLOCK_TOKENS for end, start in zip(num_host, starts, strict=True)]
    num_blocks = (batch.lengths + BLOCK_TOKENS - 1) // BLOCK_TOKENS - first_blocks
    total = sum(num_host)
    sequence = torch.repeat_interleave(num_blocks, output_size=total)  # [B]
    block = torch.arange(total, device=device) - (num_blocks.cumsum(0) - num_blocks - first_blocks)[sequence]
    places = torch.arange(BLOCK_TOKENS, device=device)
    key_positions = (block[:, None] * BLOCK_TOKENS + places).flatten()
    key_sequences = sequence.repeat_interleave(BLOCK_TOKENS)
    query_sequences = torch.repeat_interleave(num_queries, output_size=sum(batch.num_queries))
    query_positions = (
        torch.arange(len(query_sequences), device=device) + (before - batch.query_starts[:-1])[query_sequences]
    )

    def seen(batch_row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        at, of = query_positions[query], key_positions[key]
        is_seen = (query_sequences[query] == key_sequences[key]) & (of <= at)
        if window is not None:
            is_seen = is_seen & (of > at - window)
        return is_seen if mask is None else is_seen & mask(head, at, of)

    num_keys = len(key_positions)
    block_mask = flex.create_block_mask(seen, None, None, len(query_sequences), num_keys, device=str(device))
    is_key = key_positions < batch.lengths[key_sequences]
    if window is not None:
        is_key &= key_positions > (before - window)[key_sequences]
    return _Layout(batch.tables[sequence, block], is_key, block_mask)


@cache
def flex_attention_on(device_type: str) -> Callable[..., Any]:  # compiled, it has no type
    """Return FlexAttention, compiled once for all shapes on a GPU."""
    return torch.compile(flex.flex_attention, dynamic=True) if device_type == "cuda" else _uncompiled


def _uncompiled(*arguments: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is slow so
        return flex.flex_attention(*arguments, **options)  # pyright: ignore[reportDeprecated] - its return_lse is
