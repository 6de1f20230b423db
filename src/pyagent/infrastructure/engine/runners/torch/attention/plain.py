"""Attention as its formula reads: a sequence at a time, scores in full. What the other forms are compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache


def attend(
    q: Tensor,
    cache: PagedCache,
    batch: AttentionBatch,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """As `Attend`; computes in float32 at least."""
    out = torch.empty_like(q)
    start = 0
    for table, num_queries, length in zip(batch.tables, batch.num_queries, batch.num_tokens, strict=True):
        first = first_visible(num_queries, length, window)
        keys, values = gathered(cache, table, first, length)
        exact = torch.promote_types(q.dtype, torch.float32)
        queries = q[start : start + num_queries].unflatten(1, (keys.shape[1], -1)).to(exact)  # [Q, Hkv, G, D]
        scores = torch.einsum("qhgd,khd->hgqk", queries, keys.to(exact)) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        mask = visible(num_queries, length, window, first, q.device)
        scores.masked_fill_(~mask, -torch.inf)
        if sinks is not None:
            of_heads = sinks.to(exact).view(*scores.shape[:2], 1, 1).expand(-1, -1, num_queries, 1)
            scores = torch.cat((scores, of_heads), -1)
        weights = scores.softmax(-1)[..., : length - first]
        heads = torch.einsum("hgqk,khd->qhgd", weights, values.to(exact))
        out[start : start + num_queries] = heads.flatten(1, 2).to(out.dtype)
        start += num_queries
    return out


def first_visible(num_queries: int, length: int, window: int | None) -> int:
    """Return the first position that any of a sequence's last `num_queries` tokens sees."""
    return 0 if window is None else max(0, length - num_queries + 1 - window)


def visible(num_queries: int, length: int, window: int | None, first: int, device: torch.device) -> Tensor:
    """Return [num_queries, length - first]: which positions from `first` on each of the last tokens sees."""
    keys = torch.arange(first, length, device=device)
    queries = torch.arange(length - num_queries, length, device=device)[:, None]
    mask = keys <= queries
    return mask if window is None else mask & (keys > queries - window)


def gathered(cache: PagedCache, table: Tensor, first: int, length: int) -> tuple[Tensor, Tensor]:
    """Return keys and values [length - first, Hkv, D] of a sequence's positions from `first` on."""
    block_tokens = cache.keys.shape[1]
    first_block = first // block_tokens
    pages = table[first_block : -(-length // block_tokens)]
    rows = slice(first - first_block * block_tokens, length - first_block * block_tokens)
    keys, values = cache.read(pages)
    return keys.flatten(0, 1)[rows], values.flatten(0, 1)[rows]
