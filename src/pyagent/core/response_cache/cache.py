"""A chain's response cache: equal requests are answered once.

A request whose answer is deterministic (greedy, seeded, or beam search) is looked up, else it joins an equal request in
flight, else it is computed and its answer cached. The key holds everything that decides the answer or may be refused
(a request's class), and the links that may give it; priority and deadline are no part of it, the tenant is. A field
that is new in `ChatRequest` is part of the key until it is taken out below. Calls no backend itself.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from pyagent.core.chain.structured_output import validate_aside, wants_structured_output
from pyagent.core.cluster.peers import is_for_peer
from pyagent.core.messages import ChatDelta, ChatRequest, ImagePart, Origin, PromptTokensDetails
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.response_cache.coalescing import CoalescedResponse
from pyagent.core.response_cache.store import ResponseStore

Keep = Literal["determined", "all"]
Compute = Callable[[ChatRequest], AsyncGenerator[ChatDelta, None]]
_FlightKey = tuple[bytes, bool, int, bool, int]


class ResponseCacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache holds, and how requests were answered since it was made.

    `num_hits` were answered from the cache, `num_shared` coalesced with an equal request in flight, `num_misses`
    computed; `num_bypassed` were not cacheable. `hit_ratio` is the fraction of cacheable requests not computed.
    """

    num_hits: int
    num_shared: int
    num_misses: int
    num_bypassed: int
    hit_ratio: float
    num_entries: int
    num_pinned: int
    num_bytes: int
    max_bytes: int
    num_evicted: int
    num_expired: int


@dataclass(slots=True)
class _Counts:
    """Counts of one tenant's requests; see `ResponseCacheStats`."""

    num_hits: int = 0
    num_shared: int = 0
    num_misses: int = 0
    num_bypassed: int = 0


@dataclass(slots=True)
class ResponseCache:
    """Answers by request. One event loop at a time owns it.

    Answers to requests whose system prompt begins with a text of `pinned` are evicted last. With `between_clients` an
    answer computed for one client is given to others.
    """

    store: ResponseStore
    keep: Keep = "determined"
    pinned: Sequence[str] = ()
    between_clients: bool = False
    _counts: defaultdict[str, _Counts] = field(default_factory=lambda: defaultdict(_Counts))
    _in_flight: dict[_FlightKey, CoalescedResponse] = field(default_factory=dict[_FlightKey, CoalescedResponse])

    def chat(self, request: ChatRequest, links: Sequence[str], compute: Compute) -> AsyncGenerator[ChatDelta, None]:
        """Yield the answer: cached, shared, or from `compute`; `links` are those that may give it."""
        key = self._key(request, links)
        if key is None:
            self._counts[request.origin.tenant].num_bypassed += 1
            return compute(request)
        return self._cached(key, request) or self._join(key, request, compute)

    def _cached(self, key: bytes, request: ChatRequest) -> AsyncGenerator[ChatDelta, None] | None:
        deltas = self.store.get(key)
        if deltas is None:
            return None
        self._counts[request.origin.tenant].num_hits += 1
        return _replay(deltas)

    def _key(self, request: ChatRequest, links: Sequence[str]) -> bytes | None:
        """Return all that decides the answer, encoded; None when it is not deterministic, or has no encoding."""
        if self.keep == "determined" and not is_determined(request):
            return None
        origin = request.origin
        deciding = msgspec.structs.replace(
            request,
            origin=Origin() if self.between_clients else Origin(tenant=origin.tenant, client=origin.client),
            priority=0,
            timeout_seconds=None,
            session=None,
            whole=False,
        )
        try:
            return msgspec.json.encode((deciding, links))
        except (TypeError, ValueError, OverflowError, RecursionError):  # a program's own values: JSON has none such
            return None

    # -- answers in flight ------------------------------------------------------------------------------------------

    async def _join(self, key: bytes, request: ChatRequest, compute: Compute) -> AsyncGenerator[ChatDelta, None]:
        """Yield the answer in flight, or a new one; begin anew where its deadline, shorter than this, ends it."""
        deadline = Deadline.after(request.timeout_seconds)
        # A request of higher priority does not wait in the queue of an equal one with a lower.
        # Nor does a peer's wait for one that may be waiting for that peer.
        flight = (key, request.whole, request.priority, is_for_peer(), id(asyncio.get_running_loop()))
        while True:
            answer = self._in_flight.get(flight)
            if answer is not None and answer.is_over:  # it may not be given again until it is known to be right
                await deadline.bound(answer.ended.wait(), "the check of an equal request's answer")
                if (cached := self._cached(key, request)) is not None:
                    async with aclosing(cached) as stream:
                        async for delta in stream:
                            yield delta
                    return
                continue
            is_shorter = answer is not None and answer.deadline.at < deadline.at
            if answer is None or answer.is_aborting or (is_shorter and not request.whole):
                async with aclosing(self._begin(flight, request, deadline, compute)) as stream:
                    async for delta in stream:
                        yield delta
                return
            try:
                # Held back until it is whole: deltas sent could not be taken back when the shorter deadline ends it.
                held = [delta async for delta in answer.listen(deadline)] if is_shorter else None
            except Exception:
                if not answer.deadline.is_past or deadline.is_past:
                    raise
                request = msgspec.structs.replace(request, timeout_seconds=deadline.remaining_seconds)
                continue
            self._counts[request.origin.tenant].num_shared += 1
            async with aclosing(_replay(held) if held is not None else answer.listen(deadline)) as stream:
                async for delta in stream:
                    yield _marked(delta, "shared")
            return

    def _begin(
        self, flight: _FlightKey, request: ChatRequest, deadline: Deadline, compute: Compute
    ) -> AsyncGenerator[ChatDelta, None]:
        tenant = request.origin.tenant
        self._counts[tenant].num_misses += 1
        answer = self._in_flight[flight] = CoalescedResponse(deadline, tenant)

        async def end(ended: CoalescedResponse, is_whole: bool) -> None:
            try:
                is_kept = is_whole and await is_keepable(ended.deltas, request)
            finally:
                is_latest = self._in_flight.get(flight) is ended  # else begun anew since, or the cache was cleared
                if is_latest:
                    del self._in_flight[flight]
            if is_kept and is_latest:
                self.store.put(flight[0], ended.deltas, is_pinned=self._is_pinned(request), tenant=tenant)

        answer.begin(compute(request), end)
        return answer.listen(Deadline())  # the chain applies the deadline of the request that began it

    def _is_pinned(self, request: ChatRequest) -> bool:
        system = next((message.text for message in request.messages if message.role in {"system", "developer"}), "")
        return any(system.startswith(beginning) for beginning in self.pinned if beginning)

    def clear(self, tenant: str | None = None) -> int:
        """Remove a tenant's answers, or all; answers in flight are not cached. Return how many were removed."""
        for flight in [flight for flight, answer in self._in_flight.items() if tenant in {None, answer.tenant}]:
            del self._in_flight[flight]
        return self.store.clear(tenant)

    # -- stats ----------------------------------------------------------------------------------------------------

    def stats(self, tenant: str | None = None) -> ResponseCacheStats:
        """Return the counts of a tenant's requests and answers, or of all."""
        self.store.expire()
        counts = [self._counts[tenant]] if tenant is not None else [*self._counts.values()]
        num_hits, num_shared = sum(one.num_hits for one in counts), sum(one.num_shared for one in counts)
        num_misses, num_saved = sum(one.num_misses for one in counts), num_hits + num_shared
        held = self.store.held(tenant)
        return ResponseCacheStats(
            num_hits=num_hits,
            num_shared=num_shared,
            num_misses=num_misses,
            num_bypassed=sum(one.num_bypassed for one in counts),
            hit_ratio=num_saved / max(1, num_saved + num_misses),
            num_entries=held.num_entries,
            num_pinned=held.num_pinned,
            num_bytes=held.num_bytes,
            max_bytes=self.store.max_bytes,
            # Of all tenants together, so one of them is told nothing of it.
            num_evicted=self.store.num_evicted if tenant is None else 0,
            num_expired=self.store.num_expired if tenant is None else 0,
        )


def is_determined(request: ChatRequest) -> bool:
    """Whether equal requests have equal answers. An image by URL may change."""
    sampling = request.sampling
    parts = [part for message in request.messages if isinstance(message.content, list) for part in message.content]
    if any(isinstance(part, ImagePart) and not part.image_url.url.startswith("data:") for part in parts):
        return False
    return sampling.temperature == 0 or sampling.seed is not None or request.beam is not None


async def is_keepable(deltas: Sequence[ChatDelta], request: ChatRequest) -> bool:
    """Whether an answer may be cached: whole, valid, and by the first link of the chain's order.

    An answer by a fallback is not cached, nor one filtered, aborted, resumed elsewhere, or invalid.
    """
    if any(delta.attempts or delta.resumed for delta in deltas):
        return False
    indices = {delta.index for delta in deltas}
    answers = [[delta for delta in deltas if delta.index == index] for index in indices]
    return len(answers) == request.n and all([await _is_sound(answer, request) for answer in answers])


async def _is_sound(deltas: list[ChatDelta], request: ChatRequest) -> bool:
    reason, wanted = deltas[-1].finish_reason, request.response_format
    if reason not in {"stop", "length", "tool_calls"}:
        return False
    if reason == "stop" or any(delta.tool_calls for delta in deltas):
        if not wants_structured_output(request):
            return True
        return not await validate_aside(deltas, request, Deadline())
    return wanted is None or wanted.type == "text"


async def _replay(deltas: Sequence[ChatDelta]) -> AsyncGenerator[ChatDelta, None]:
    for delta in deltas:
        yield _marked(delta, "cached")


def _marked(delta: ChatDelta, how: Literal["cached", "shared"]) -> ChatDelta:
    """Return the delta with a usage that says where the answer came from."""
    usage = delta.usage
    if usage is None or usage.answer != "computed":
        return delta
    details = PromptTokensDetails(usage.prompt_tokens)
    free = {"timings": None, "cache": None, "cost_usd": 0.0}
    usage = msgspec.structs.replace(usage, answer=how, prompt_tokens_details=details, **free)
    return msgspec.structs.replace(delta, usage=usage)
