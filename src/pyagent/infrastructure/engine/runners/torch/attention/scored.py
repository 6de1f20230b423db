"""Attention whose scores have something added by distance: torch's `scaled_dot_product_attention` with that as mask.

A sequence at a time, in float32: what is added to far keys is larger than half precision tells neighbours apart.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache
from pyagent.infrastructure.engine.runners.torch.attention.plain import first_visible, gathered, visible

_MASK_NUMBERS = 1 << 24
"""Most that a mask has, 64 MB: queries of a long prompt go in parts. One query's may be more."""


def attend(
    q: Tensor, cache: PagedCache, batch: AttentionBatch, scale: float, window: int | None, table: Tensor
) -> Tensor:
    """As `Attend` without softcap; to a score is added what `table` [Hq, distances] has at its key's distance.

    The last number stands for all that are farther.
    """
    out = torch.empty_like(q)
    start = 0
    for pages, num_queries, length in zip(batch.tables, batch.num_queries, batch.num_tokens, strict=True):
        first = first_visible(num_queries, length, window)
        keys, values = (rows.float().transpose(0, 1)[:, None] for rows in gathered(cache, pages, first, length))
        at_once = max(1, _MASK_NUMBERS // (q.shape[1] * (length - first)))
        for begin in range(0, num_queries, at_once):
            num = min(at_once, num_queries - begin)
            seen = length - num_queries + begin + num - first  # [Hkv, 1, seen, D] of the keys
            rows = slice(start + begin, start + begin + num)
            queries = q[rows].float().unflatten(1, (len(keys), -1)).permute(1, 2, 0, 3)  # [Hkv, G, n, D]
            mask = _mask(table, num, first + seen, window, first).unflatten(0, queries.shape[:2])
            shape = (-1, queries.shape[1], -1, -1)
            seen_keys, seen_values = (part[:, :, :seen].expand(shape) for part in (keys, values))
            heads = scaled_dot_product_attention(queries, seen_keys, seen_values, attn_mask=mask, scale=scale)
            out[rows] = heads.permute(2, 0, 1, 3).flatten(1, 2).to(out.dtype)
        start += num_queries
    return out


def _mask(table: Tensor, num_queries: int, length: int, window: int | None, first: int) -> Tensor:
    """Return [Hq, num_queries, length - first]: what is added to the scores of the last queries; -inf is not seen."""
    keys = torch.arange(first, length, device=table.device)
    queries = torch.arange(length - num_queries, length, device=table.device)[:, None]
    distances = (queries - keys).clamp_(0, table.shape[1] - 1)
    hidden = ~visible(num_queries, length, window, first, table.device)
    return table[:, distances].masked_fill_(hidden, -torch.inf)
