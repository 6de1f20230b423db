"""Attention on torch's CPU device by the Rust core: sequences that decode are computed where their pages lie.

Prompts, which torch's products compute well, go through `scaled_dot_product_attention`.
"""

from __future__ import annotations

from itertools import takewhile

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache
from pyagent.infrastructure.engine.runners.torch.attention.sdpa import attend_prompts
from pyagent.infrastructure.engine.runners.torch.rust_kernels import numbers_of, open_kernels, pages_of


class RustAttend:
    """Computes `Attend` for float32, without softcap."""

    def __init__(self) -> None:
        self._kernels = open_kernels()

    def __call__(
        self,
        q: Tensor,
        cache: PagedCache,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """As `Attend`. Raises `ValueError` for a softcap, which torch's kernels for prompts lack."""
        if softcap is not None:
            raise ValueError("torch's kernels have no softcap; use the plain form")
        num_decoding = sum(1 for _ in takewhile(lambda num_queries: num_queries == 1, batch.num_queries))
        if num_decoding == 0:
            return attend_prompts(q, cache, batch, 0, scale, window)
        out = torch.empty(q.shape)
        self._kernels.attend(
            numbers_of(q[:num_decoding].contiguous()),
            pages_of(cache.keys),
            pages_of(cache.values),
            numbers_of(batch.tables[:num_decoding].contiguous()),
            numbers_of(batch.lengths[:num_decoding]),
            numbers_of(out[:num_decoding]),
            num_threads=torch.get_num_threads(),
            scale=scale,
            window=window,
        )
        if num_decoding < len(batch.num_queries):
            out[num_decoding:] = attend_prompts(q, cache, batch, num_decoding, scale, window)
        return out
