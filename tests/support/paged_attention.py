"""Sequences over shuffled pages, for tests of attention: whatever no query may see is NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
    from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache

PAGE_TOKENS = 16


class Heads(NamedTuple):
    """Query heads, KV heads, and their dimension."""

    q: int
    kv: int
    dim: int


class Inputs(NamedTuple):
    """The first three arguments of attention."""

    q: torch.Tensor
    cache: PagedCache
    batch: AttentionBatch


def make_inputs(
    num_queries: list[int],
    num_tokens: list[int],
    heads: Heads,
    dtype: torch.dtype = torch.float32,
    *,
    window: int | None = None,
    num_shared: int = 0,
    seed: int = 0,
    device: str = "cpu",
) -> Inputs:
    """Return random queries and caches. Queries are a view of what holds keys and values too, as in a model.

    Sequences with one query begin with the same pages, of `num_shared` tokens.
    """
    from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
    from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache

    generator = torch.Generator().manual_seed(seed)
    blocks = [-(-length // PAGE_TOKENS) for length in num_tokens]
    num_pages = sum(blocks) + 1 + num_shared // PAGE_TOKENS
    order = (torch.randperm(num_pages - 1, generator=generator) + 1).tolist()  # page 0 is nobody's
    caches = [torch.full((num_pages, PAGE_TOKENS, heads.kv, heads.dim), torch.nan) for _ in range(2)]
    tables = torch.zeros((len(num_tokens), max(blocks) + 1), dtype=torch.int32)
    prefix = [order.pop() for _ in range(num_shared // PAGE_TOKENS)]
    for row, (queries, length) in enumerate(zip(num_queries, num_tokens, strict=True)):
        shared = prefix if queries == 1 else []
        pages = [*shared, *(order.pop() for _ in range(blocks[row] - len(shared)))]
        first = 0 if window is None else max(0, length - queries + 1 - window)
        for position in range(first, length):
            for cache in caches:
                rows = torch.randn((heads.kv, heads.dim), generator=generator)
                cache[pages[position // PAGE_TOKENS], position % PAGE_TOKENS] = rows
        tables[row, : blocks[row]] = torch.tensor(pages, dtype=torch.int32)
        tables[row, : first // PAGE_TOKENS] = 0
    starts = torch.tensor([0, *num_queries]).cumsum(0).to(torch.int32)
    width = (heads.q + 2 * heads.kv) * heads.dim
    qkv = torch.randn((sum(num_queries), width), generator=generator).to(device, dtype)
    q = qkv[:, : heads.q * heads.dim].unflatten(1, (heads.q, heads.dim))
    lengths = torch.tensor(num_tokens, dtype=torch.int32).to(device)
    there = (starts.to(device), lengths, tables.to(device))
    batch = AttentionBatch(*there, tuple(num_queries), tuple(num_tokens), num_shared)
    return Inputs(q, PagedCache(*(cache.to(device, dtype) for cache in caches)), batch)


def in_fp8(inputs: Inputs) -> Inputs:
    """Return the same inputs with keys and values rounded to FP8; where they were NaN, scales are of any size."""
    from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache, quantised

    (keys, key_exponents), (values, value_exponents) = (quantised(pages) for pages in inputs.cache.tensors)
    exponents = torch.stack([key_exponents, value_exponents], -1)
    exponents[inputs.cache.keys.isnan().any(-1)] = 100
    return inputs._replace(cache=PagedCache(keys, values, exponents))


def worst_row(out: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the greatest relative error of a row, NaN if any number is: ||out - expected|| / ||expected||."""
    difference = (out.double().cpu() - expected.double().cpu()).norm(dim=-1) / expected.double().cpu().norm(dim=-1)
    return float(difference.max())
