"""Attention through torch's `scaled_dot_product_attention`: sequences that decode all at once, prefills one by one.

Pages are copied together first, so memory is read and written twice more than it must be: a kernel that reads pages
where they lie is quicker on a GPU. Without softcap. Sinks are the scores of one key more, which a mask of numbers adds.
"""

from __future__ import annotations

from itertools import takewhile

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache
from pyagent.infrastructure.engine.runners.torch.attention.plain import first_visible, gathered, visible

GATHER_BYTES = 32 << 20
"""Most that is copied together of the keys of sequences that decode; one sequence's may be more."""
SINK_MASK_NUMBERS = 1 << 24
"""Most that a mask with sinks has: queries of a long prompt go in parts. One query's may be more."""


def attend(
    q: Tensor,
    cache: PagedCache,
    batch: AttentionBatch,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """As `Attend`. Raises `ValueError` for a softcap, which torch's kernels lack."""
    if softcap is not None:
        raise ValueError("torch's kernels have no softcap; use the plain form")
    num_decoding = sum(1 for _ in takewhile(lambda num_queries: num_queries == 1, batch.num_queries))
    parts: list[Tensor] = []
    row_bytes = cache.keys.shape[2] * cache.keys.shape[3] * q.element_size()
    at_once = max(1, GATHER_BYTES // (row_bytes * max(batch.num_tokens)))
    for start in range(0, num_decoding, at_once):
        rows = slice(start, min(start + at_once, num_decoding))
        parts.append(_decode(q[rows], cache, batch, rows, scale, window, sinks))
    if num_decoding < len(batch.num_queries):
        parts.append(attend_prompts(q, cache, batch, num_decoding, scale, window, sinks))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend_prompts(
    q: Tensor,
    cache: PagedCache,
    batch: AttentionBatch,
    first: int,
    scale: float,
    window: int | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return the heads of the sequences from `first` on, before which each has one query; one by one."""
    parts: list[Tensor] = []
    start = first
    for row in range(first, len(batch.num_queries)):
        end = start + batch.num_queries[row]
        parts.append(_prefill(q[start:end], cache, batch, row, scale, window, sinks))
        start = end
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _prefill(
    q: Tensor,
    cache: PagedCache,
    batch: AttentionBatch,
    row: int,
    scale: float,
    window: int | None,
    sinks: Tensor | None,
) -> Tensor:
    """One sequence's queries [Q, Hq, D]. Query heads of a key-value head are its heads, so that nothing is copied."""
    num_queries, length = batch.num_queries[row], batch.num_tokens[row]
    first = first_visible(num_queries, length, window)
    is_whole = num_queries == length and (window is None or window >= length)
    num_kv_heads = cache.keys.shape[2]
    queries = q.unflatten(1, (num_kv_heads, -1)).permute(1, 2, 0, 3)  # [Hkv, G, Q, D]
    keys, values = (
        rows.to(q.dtype).transpose(0, 1)[:, None]  # [Hkv, 1, L, D]
        for rows in gathered(cache, batch.tables[row], first, length)
    )
    group = queries.shape[1]
    if sinks is not None:
        mask = visible(num_queries, length, window, first, q.device)
        return _with_sinks(queries, keys, values, mask, sinks, scale).permute(2, 0, 1, 3).flatten(1, 2)
    heads = scaled_dot_product_attention(
        queries,
        keys.expand(-1, group, -1, -1),
        values.expand(-1, group, -1, -1),
        attn_mask=None if is_whole else visible(num_queries, length, window, first, q.device),
        is_causal=is_whole,
        scale=scale,
    )
    return heads.permute(2, 0, 1, 3).flatten(1, 2)


def _with_sinks(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, sinks: Tensor, scale: float) -> Tensor:
    """One sequence's queries [Hkv, G, Q, D], under a mask [Q, L]; keys and values [Hkv, 1, L, D]."""
    shape = (-1, queries.shape[1], -1, -1)
    keys, values = (pad(part, (0, 0, 0, 1)).expand(shape) for part in (keys, values))
    at_once = max(1, SINK_MASK_NUMBERS // (len(sinks) * keys.shape[2]))
    parts = [
        scaled_dot_product_attention(
            some, keys, values, attn_mask=_mask(seen.expand(*queries.shape[:2], -1, -1), sinks, some.dtype), scale=scale
        )
        for some, seen in zip(queries.split(at_once, 2), mask.split(at_once), strict=True)
    ]
    return torch.cat(parts, 2)


def _mask(seen: Tensor, sinks: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to scores [.., Hkv, G, Q, L + 1]: the sink to that of the last, a key of zeros."""
    of_heads = sinks.to(dtype).view(*seen.shape[-4:-2], 1, 1).expand(*seen.shape[:-1], 1)
    hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
    return torch.cat((hidden, of_heads), -1)


def _decode(
    q: Tensor,
    cache: PagedCache,
    batch: AttentionBatch,
    rows: slice,
    scale: float,
    window: int | None,
    sinks: Tensor | None,
) -> Tensor:
    """Some sequences' one query each [n, Hq, D]: heads that share keys are the rows of one product."""
    block_tokens, tables = cache.keys.shape[1], batch.tables[rows]
    lengths = batch.lengths[rows, None]  # [n, 1]
    longest = max(batch.num_tokens[rows])
    num_blocks = -(-longest // block_tokens)
    first_blocks = torch.zeros_like(lengths)
    if window is not None and window < longest:
        first_blocks = (lengths - window).clamp_(min=0).div_(block_tokens, rounding_mode="floor")
        num_blocks = min(num_blocks, -(-window // block_tokens) + 1)
    blocks = first_blocks + torch.arange(num_blocks, device=q.device)  # [n, B]
    pages = tables.gather(1, blocks.clamp(max=tables.shape[1] - 1).long())
    positions = (blocks[:, :, None] * block_tokens + torch.arange(block_tokens, device=q.device)).flatten(1)
    is_visible = positions < lengths
    if window is not None:
        is_visible &= positions >= lengths - window
    hidden = ~is_visible[:, :, None, None]
    keys, values = (
        # What others left in a page may be anything, NaN too, which a mask of scores would let through.
        rows.flatten(1, 2).to(q.dtype).masked_fill(hidden, 0).transpose(1, 2)  # [n, Hkv, L, D]
        for rows in cache.read(pages)
    )
    queries = q.unflatten(1, (cache.keys.shape[2], -1))  # [n, Hkv, G, D]
    mask = is_visible[:, None, None, :]
    if sinks is not None:
        keys, values = (pad(part, (0, 0, 0, 1)) for part in (keys, values))
        seen = is_visible[:, None, None, None, :].expand(-1, *queries.shape[1:3], -1, -1)
        mask = _mask(seen, sinks, q.dtype)[..., 0, :]
    return scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale).flatten(1, 2)
