"""What a step's queries are, and in which pages their keys lie, as attention needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

FEWEST_SHARED = 256
"""Fewer shared tokens are not worth a pass of their own."""


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """`n` sequences, whose last tokens are the queries, one sequence's after the other's.

    On the device, int32: `query_starts` [n + 1], where each sequence's queries begin; `lengths` [n], each sequence's
    tokens with its queries; `tables` [n, max_pages], the pages of its blocks in order, of which those beyond its length
    or out of its window's sight may be any page. `num_queries` and `num_tokens` are the same as numbers of the host, so
    that no kernel's launch has to wait for the device. Sequences with one query have their first `num_shared` tokens,
    whole pages, in the same pages.
    """

    query_starts: Tensor
    lengths: Tensor
    tables: Tensor
    num_queries: Sequence[int]
    num_tokens: Sequence[int]
    num_shared: int = 0
