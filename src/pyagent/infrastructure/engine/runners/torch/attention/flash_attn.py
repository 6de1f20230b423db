"""Attention through FlashAttention 3 (`flash_attn_interface`), which reads pages of any size where they lie.

Version 2 takes pages of 256 tokens and more, not the engine's 16. No GPU has run this: a stand-in has, which computes
from the documented arguments.
"""

from __future__ import annotations

from importlib import import_module

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
) -> Tensor:
    """As `Attend`, of numbers of 16 bits. A window counts what is seen beside the query's own position."""
    return import_module("flash_attn_interface").flash_attn_with_kvcache(
        q,
        cache.keys,
        cache.values,
        cache_seqlens=batch.lengths,
        page_table=batch.tables,
        cu_seqlens_q=batch.query_starts,
        max_seqlen_q=max(batch.num_queries),
        softmax_scale=scale,
        causal=True,
        window_size=(-1, -1) if window is None else (window - 1, 0),
        softcap=softcap or 0.0,
    )
