"""Attention through Triton, pages read in place: one pass for sequences that decode, one for chunks of prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.kernels import no_tile_reason
from pyagent.infrastructure.engine.runners.torch.kernels.decode import attend_decode
from pyagent.infrastructure.engine.runners.torch.kernels.prefill import attend_prefill

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
    from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache


class PagedQueries(NamedTuple):
    """What the attention kernels read. A window or softcap of 0 is none, `exponents` are read where `is_scaled`, and
    `sinks` where `has_sinks`.

    `longest` is the longest context. The sequences with one query begin with the same `num_shared` keys, and `leader`
    is one of them.
    """

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    exponents: Tensor
    sinks: Tensor
    query_starts: Tensor
    lengths: Tensor
    tables: Tensor
    longest: int
    scale: float
    window: int
    softcap: float
    num_shared: int
    leader: int
    is_scaled: bool
    has_sinks: bool


def attend(
    q: Tensor,
    cache: PagedCache,
    batch: AttentionBatch,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """As `Attend`. Raises `ValueError` for heads that the kernels have no tile for."""
    queries = _paged(q, cache, batch, scale, window, softcap, sinks)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if 1 in batch.num_queries:
        attend_decode(queries, out)
    if max(batch.num_queries) > 1:
        attend_prefill(queries, out)
    return out


def attend_invariant(
    q: Tensor,
    cache: PagedCache,
    batch: AttentionBatch,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """As `attend`, by one kernel for every query: its bits do not depend on the batch, nor on how prompts are cut."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    attend_prefill(_paged(q, cache, batch, scale, window, softcap, sinks), out, is_fixed=True)
    return out


def _paged(
    q: Tensor,
    cache: PagedCache,
    batch: AttentionBatch,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> PagedQueries:
    k_cache, v_cache, exponents = cache
    _check(q, k_cache, v_cache)
    return PagedQueries(
        q,
        k_cache,
        v_cache,
        k_cache if exponents is None else exponents,
        q if sinks is None else sinks,
        batch.query_starts,
        batch.lengths,
        batch.tables,
        longest=max(batch.num_tokens),
        scale=scale,
        window=window or 0,
        softcap=softcap or 0.0,
        num_shared=batch.num_shared,
        leader=batch.num_queries.index(1) if 1 in batch.num_queries else 0,
        is_scaled=exponents is not None,
        has_sinks=sinks is not None,
    )


def _check(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    """Raise `ValueError` where the kernels would read what is not meant."""
    if (reason := no_tile_reason(q.shape[1] // k_cache.shape[2], q.shape[2])) is not None:
        raise ValueError(f"{reason}; choose another attention backend")
    if q.stride()[1:] != (q.shape[2], 1) or k_cache.stride() != v_cache.stride() or k_cache.stride(3) != 1:
        raise ValueError("a token's query heads must lie together, and keys and values in caches of one layout")
