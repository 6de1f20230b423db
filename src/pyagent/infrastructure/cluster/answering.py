"""What peers may ask of this node, and how it is answered: by its own links, within the same bounds as over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.backends import AGENT_PREFIX, Backend, pass_hint
from pyagent.core.chain import Chain
from pyagent.core.cluster import prefixes
from pyagent.core.cluster.peers import ClusterRouter, answer_for_peer
from pyagent.core.errors import BackendError, CapacityError, RequestError
from pyagent.core.hops import HEADER, enter
from pyagent.core.messages import ChatRequest
from pyagent.core.trace_context import continue_trace
from pyagent.infrastructure.cluster.effects import ask_leave
from pyagent.infrastructure.cluster.protocol import (
    CHAT,
    EMBED,
    HINT,
    WARM,
    ask_codec,
    closing,
    delta_codec,
    embed_codec,
    embedded_codec,
    hint_codec,
)
from pyagent.infrastructure.cluster.transport import Reply, Transport
from pyagent.infrastructure.cluster.vectors import pack
from pyagent.infrastructure.server.bounds import check_request, check_texts

if TYPE_CHECKING:
    from pyagent.infrastructure.observability.answer_spans import AnswerTrace, PeerTracer

_RETRY_SECONDS = 2.0
_LONG_BYTES = 1 << 20
"""Longer requests are decoded beside the event loop."""


class Answering:
    """The handlers of peers' requests. While `is_draining`, new ones are refused with a time to come back."""

    def __init__(
        self,
        node_id: str,
        chain: Chain,
        agents: Backend | None,
        router: ClusterRouter,
        tracer: PeerTracer | None = None,
    ) -> None:
        """`agents` are those that peers may use."""
        self._tracer = tracer
        self._node_id = node_id
        self._chain = chain
        self._agents = agents
        self._router = router
        self.is_draining = False
        self.num_running = 0
        self.num_answered = 0
        self._chats: dict[asyncio.Task[object], str] = {}
        self._broken_off: set[asyncio.Task[object]] = set()

    def register(self, transport: Transport) -> None:
        """Have the transport hand peers' requests on."""
        self._ask_leave = partial(ask_leave, transport)
        transport.handle(CHAT, self.chat)
        transport.handle(EMBED, self.embed)
        transport.handle(HINT, self.hint)
        transport.handle(WARM, self.warm)

    async def chat(self, peer_id: str, payload: bytes, _buffers: Sequence[memoryview]) -> AsyncGenerator[Reply, None]:
        """Answer a chat request as a stream of deltas."""
        self._admit()
        is_long = len(payload) > _LONG_BYTES
        ask = await asyncio.to_thread(ask_codec.decode, payload) if is_long else ask_codec.decode(payload)
        enter(ask.headers.get(HEADER, ""), self._node_id)
        continue_trace(ask.headers)
        check_request(ask.request)
        answer_for_peer()
        self.num_answered += 1
        request = _from_peer(ask.request, peer_id)
        with self._counted(request.model):
            backend = await self._backend(request.model)
            if backend is not self._chain:
                await self._ask_leave(peer_id, ask.run)
            with self._traced(request, peer_id) as trace:
                async with closing(backend.chat(request)) as deltas:
                    async for delta in deltas:
                        if trace is not None:
                            trace.saw(delta)
                        yield Reply(delta_codec.encode(delta))

    async def prefill(self, peer_id: str, request: ChatRequest) -> None:
        """Compute a peer's prompt for its KV: admitted, queued and refused as the peer's chats are."""
        self._admit()
        check_request(request)
        answer_for_peer()
        self.num_answered += 1
        request = _from_peer(request, peer_id)
        with self._counted(request.model):
            async with closing(self._chain.chat(request)) as deltas:
                async for _ in deltas:
                    pass

    @contextmanager
    def _counted(self, model: str) -> Generator[None]:
        """Count an answer while it runs; being broken off is told as an error after which another node goes on."""
        task = asyncio.current_task()
        assert task is not None, "handlers run in tasks"
        self._chats[task] = model
        self.num_running += 1
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):  # the latter where it waits for its reader
            if task not in self._broken_off:
                raise  # the peer left
            task.uncancel()
            raise BackendError("the node stops; another one goes on", backend=self._node_id) from None
        finally:
            self._broken_off.discard(task)
            del self._chats[task]
            self.num_running -= 1

    def _traced(self, request: ChatRequest, peer_id: str) -> AbstractContextManager[AnswerTrace | None]:
        return nullcontext() if self._tracer is None else self._tracer.answering(request, peer_id, self._node_id)

    def break_off(self, *, with_agents: bool) -> int:
        """End the answers that run; their nodes go on elsewhere from the text. Return how many there were.

        An agent's run has effects, so that none goes on elsewhere: `with_agents` ends those too.
        """
        ended = [task for task, model in self._chats.items() if with_agents or not model.startswith(AGENT_PREFIX)]
        for task in ended:
            self._broken_off.add(task)
            task.cancel()
        return len(ended)

    async def embed(self, _peer_id: str, payload: bytes, _buffers: Sequence[memoryview]) -> Reply:
        """Embed texts."""
        self._admit()
        is_long = len(payload) > _LONG_BYTES
        request = await asyncio.to_thread(embed_codec.decode, payload) if is_long else embed_codec.decode(payload)
        check_texts(request.input)
        answer_for_peer()
        self.num_running += 1
        try:
            told, numbers = await pack(await self._chain.embed(request))
            return Reply(embedded_codec.encode(told), (numbers,))
        finally:
            self.num_running -= 1

    def hint(self, _peer_id: str, payload: bytes, _buffers: Sequence[memoryview]) -> None:
        """Pass a hint on to this node's links."""
        hint = hint_codec.decode(payload)
        for link in self._chain.links:
            if link.name in self._router.offered_names:
                pass_hint(link, hint)

    async def warm(self, _peer_id: str, _payload: bytes, _buffers: Sequence[memoryview]) -> Reply:
        """Return the keys of all prompts computed lately."""
        return Reply(prefixes.pack(list(self._router.own.warm)[-prefixes.MAX_KEYS :]))

    def is_idle(self) -> bool:
        """Return whether no answer runs."""
        return not self.num_running

    def _admit(self) -> None:
        if self.is_draining:
            raise CapacityError("the node is draining; ask another", retry_after_seconds=_RETRY_SECONDS)

    async def _backend(self, model: str) -> Backend:
        if not model.startswith(AGENT_PREFIX):
            return self._chain
        if self._agents is None or all(model != agent.id for agent in await self._agents.models()):
            raise RequestError(f"this node has no {model[:200]!r}", param="model", code="model_not_found")
        return self._agents


def _from_peer(request: ChatRequest, peer_id: str) -> ChatRequest:
    """Return a request that says which node asked; what it said of that itself is not looked at."""
    return msgspec.structs.replace(request, origin=msgspec.structs.replace(request.origin, node=peer_id))
