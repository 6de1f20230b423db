"""The answer cache of a chain: equal requests are answered once.

A request whose answer is determined (greedy, seeded, or searched for) is looked up, else it joins an equal one under
way, else it is asked for and its answer kept. The key is everything that decides the answer, or that may be refused (a
request's class), the links that may give it included. How urgently and for how long it is asked for is not in it; who
asks keeps tenants apart. What a new field of a request means for its answer is not known here, so it is in the key
until it is taken out below. Asks no backend itself.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from pyagent.core.chain.structured_output import validate_answer
from pyagent.core.messages import ChatDelta, ChatRequest, ImagePart, Origin, PromptTokensDetails
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.response_cache.coalescing import CoalescedResponse
from pyagent.core.response_cache.store import ResponseStore

Keep = Literal["determined", "all"]
Ask = Callable[[ChatRequest], AsyncGenerator[ChatDelta, None]]
_Place = tuple[bytes, bool, int, int]


class ResponseCacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache holds, and what became of requests since it was made.

    `num_hits` were answered from it, `num_shared` by the answer to an equal request under way, `num_misses` were asked
    for, `num_passed` are those whose answers are not determined. `hit_ratio` is the share that needed no computing.
    """

    num_hits: int
    num_shared: int
    num_misses: int
    num_passed: int
    hit_ratio: float
    num_kept: int
    num_pinned: int
    num_bytes: int
    max_bytes: int
    num_evicted: int
    num_expired: int


@dataclass(slots=True)
class _Counts:
    """Of one tenant's requests; see `ResponseCacheStats`."""

    num_hits: int = 0
    num_shared: int = 0
    num_misses: int = 0
    num_passed: int = 0


@dataclass(slots=True)
class ResponseCache:
    """`pinned` are beginnings of system prompts whose answers go last. One event loop at a time owns it.

    With `between_clients` an answer made for one client is given to others.
    """

    kept: ResponseStore
    keep: Keep = "determined"
    pinned: Sequence[str] = ()
    between_clients: bool = False
    _counts: defaultdict[str, _Counts] = field(default_factory=lambda: defaultdict(_Counts))
    _under_way: dict[_Place, CoalescedResponse] = field(default_factory=dict[_Place, CoalescedResponse])

    def chat(self, request: ChatRequest, links: Sequence[str], ask: Ask) -> AsyncGenerator[ChatDelta, None]:
        """The answer, from `ask` where nobody has it; `links` are those that may give it."""
        key = self._key(request, links)
        if key is None:
            self._counts[request.origin.tenant].num_passed += 1
            return ask(request)
        deltas = self.kept.get(key)
        if deltas is None:
            return self._join(key, request, ask)
        self._counts[request.origin.tenant].num_hits += 1
        return _replay(deltas)

    def _key(self, request: ChatRequest, links: Sequence[str]) -> bytes | None:
        """All that decides the answer; None when it is not determined, or cannot be written down."""
        if self.keep == "determined" and not is_determined(request):
            return None
        origin = request.origin
        asked = msgspec.structs.replace(
            request,
            origin=Origin() if self.between_clients else Origin(tenant=origin.tenant, client=origin.client),
            priority=0,
            timeout_seconds=None,
            session=None,
            whole=False,
        )
        try:
            return msgspec.json.encode((asked, links))
        except (TypeError, ValueError, OverflowError, RecursionError):  # of programs: JSON from outside is never so
            return None

    # -- answers under way ------------------------------------------------------------------------------------------

    async def _join(self, key: bytes, request: ChatRequest, ask: Ask) -> AsyncGenerator[ChatDelta, None]:
        """The answer under way, or a new one; one that ends with its own deadline is asked for again."""
        deadline = Deadline.after(request.timeout_seconds)
        # Who is in more of a hurry does not wait in another's queue.
        place = (key, request.whole, request.priority, id(asyncio.get_running_loop()))
        while True:
            answer = self._under_way.get(place)
            is_shorter = answer is not None and answer.deadline.at < deadline.at
            if answer is None or answer.is_left or (is_shorter and not request.whole):
                async with aclosing(self._begin(place, request, deadline, ask)) as stream:
                    async for delta in stream:
                        yield delta
                return
            try:
                # Told bit by bit, it could not be taken back when the other's deadline ends it.
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
        self, place: _Place, request: ChatRequest, deadline: Deadline, ask: Ask
    ) -> AsyncGenerator[ChatDelta, None]:
        tenant = request.origin.tenant
        self._counts[tenant].num_misses += 1
        answer = self._under_way[place] = CoalescedResponse(deadline, tenant)

        def end(ended: CoalescedResponse, is_whole: bool) -> None:
            if self._under_way.get(place) is not ended:  # begun again since, or all was to be forgotten
                return
            del self._under_way[place]
            if is_whole and is_keepable(ended.deltas, request):
                self.kept.put(place[0], ended.deltas, is_pinned=self._is_pinned(request), tenant=tenant)

        answer.begin(ask(request), end)
        return answer.listen(Deadline())  # the chain keeps the deadline of who began

    def _is_pinned(self, request: ChatRequest) -> bool:
        system = next((message.text for message in request.messages if message.role in {"system", "developer"}), "")
        return any(system.startswith(beginning) for beginning in self.pinned if beginning)

    def clear(self, tenant: str | None = None) -> int:
        """Forget a tenant's answers, or all, those under way as soon as they are told; returns how many were kept."""
        for place in [place for place, answer in self._under_way.items() if tenant in {None, answer.tenant}]:
            del self._under_way[place]
        return self.kept.clear(tenant)

    # -- looking ----------------------------------------------------------------------------------------------------

    def figures(self, tenant: str | None = None) -> ResponseCacheStats:
        """What it holds and did, for a tenant or for all."""
        self.kept.expire()
        counts = [self._counts[tenant]] if tenant is not None else [*self._counts.values()]
        num_hits, num_shared = sum(one.num_hits for one in counts), sum(one.num_shared for one in counts)
        num_misses, num_saved = sum(one.num_misses for one in counts), num_hits + num_shared
        kept = self.kept.held(tenant)
        return ResponseCacheStats(
            num_hits=num_hits,
            num_shared=num_shared,
            num_misses=num_misses,
            num_passed=sum(one.num_passed for one in counts),
            hit_ratio=num_saved / max(1, num_saved + num_misses),
            num_kept=kept.num_entries,
            num_pinned=kept.num_pinned,
            num_bytes=kept.num_bytes,
            max_bytes=self.kept.max_bytes,
            num_evicted=self.kept.num_evicted,
            num_expired=self.kept.num_expired,
        )


def is_determined(request: ChatRequest) -> bool:
    """Whether the same request has the same answer each time. What is behind an image's address may change."""
    sampling = request.sampling
    parts = [part for message in request.messages if isinstance(message.content, list) for part in message.content]
    if any(isinstance(part, ImagePart) and not part.image_url.url.startswith("data:") for part in parts):
        return False
    return sampling.temperature == 0 or sampling.seed is not None or request.beam is not None


def is_keepable(deltas: Sequence[ChatDelta], request: ChatRequest) -> bool:
    """Whether a whole answer is what the first choice of links would say again.

    One by a link that stood in for another is not, nor one filtered, aborted, put together, or invalid.
    """
    if any(delta.attempts or delta.resumed for delta in deltas):
        return False
    indices = {delta.index for delta in deltas}
    answers = [[delta for delta in deltas if delta.index == index] for index in indices]
    return len(answers) == request.n and all(_is_sound(answer, request) for answer in answers)


def _is_sound(deltas: list[ChatDelta], request: ChatRequest) -> bool:
    reason, wanted = deltas[-1].finish_reason, request.response_format
    if reason not in {"stop", "length", "tool_calls"}:
        return False
    if reason == "stop" or any(delta.tool_calls for delta in deltas):
        return not validate_answer(deltas, request)
    return wanted is None or wanted.type == "text"


async def _replay(deltas: Sequence[ChatDelta]) -> AsyncGenerator[ChatDelta, None]:
    for delta in deltas:
        yield _marked(delta, "kept")


def _marked(delta: ChatDelta, how: Literal["kept", "shared"]) -> ChatDelta:
    """The delta, its usage saying that nothing was computed for it."""
    usage = delta.usage
    if usage is None or usage.answer != "computed":
        return delta
    details = PromptTokensDetails(usage.prompt_tokens)
    usage = msgspec.structs.replace(usage, answer=how, prompt_tokens_details=details, timings=None, cache=None)
    return msgspec.structs.replace(delta, usage=usage)
