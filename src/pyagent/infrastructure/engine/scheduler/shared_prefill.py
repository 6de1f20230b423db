"""Shared prefill: of waiting prompts with a common prefix, the first computes it and the others wait for it.

Prefilling requests are indexed by their first block, so that a waiting one is compared only with those that begin
alike, and with each of them once: logs only grow, so a common prefix stays common.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyagent.core.runners.batch import BLOCK_TOKENS, PrefixKey

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.request import Request

Head = tuple[PrefixKey, tuple[int, ...]]


class PendingPrefixes:
    """Index the prompts being prefilled now."""

    def __init__(self) -> None:
        self._by_head: dict[Head, dict[int, Request]] = {}
        self._common: dict[int, dict[int, int]] = {}  # of each prompt being computed, with the waiting ones

    def add(self, request: Request) -> None:
        """Index a request whose prompt is being prefilled."""
        if len(request.tokens) > BLOCK_TOKENS:
            self._by_head.setdefault(_head(request), {})[request.id] = request
            self._common[request.id] = {}

    def discard(self, request: Request) -> None:
        """Drop a request that is prefilled, ended or preempted."""
        if self._common.pop(request.id, None) is not None:
            head = _head(request)
            del self._by_head[head][request.id]
            if not self._by_head[head]:
                del self._by_head[head]

    def has_more_for(self, request: Request) -> bool:
        """Return whether another request is about to compute a block that this one needs: waiting a step is cheaper."""
        if not self._by_head or len(request.tokens) <= BLOCK_TOKENS or request.most_cached is not None:
            return False
        others = self._by_head.get(_head(request))
        return others is not None and any(
            other.num_prefilled < self._in_common(request, other) for other in others.values()
        )

    def _in_common(self, request: Request, other: Request) -> int:
        known = self._common[other.id]
        if request.id not in known:
            known[request.id] = common_blocks(request.tokens, other.tokens)
        return known[request.id]


def _head(request: Request) -> Head:
    return request.key, tuple(request.tokens[:BLOCK_TOKENS])


def common_blocks(left: list[int], right: list[int]) -> int:
    """Return the tokens in the whole blocks that both begin with, leaving at least one token of `left`."""
    low, high = 0, min(len(left) - 1, len(right)) // BLOCK_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        part = slice(low * BLOCK_TOKENS, middle * BLOCK_TOKENS)
        if left[part] == right[part]:
            low = middle
        else:
            high = middle - 1
    return low * BLOCK_TOKENS
