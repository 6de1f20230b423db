"""A peer as a backend: its models and agents answer here as if they were links of this node's chain.

The peer answers with its own links alone, so that no request goes in a circle. What goes wrong on the way is the
link's failure: the chain goes on with another node from the text already delivered.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import msgspec

from pyagent.core.backends import AGENT_PREFIX
from pyagent.core.capabilities import Capabilities
from pyagent.core.chain.failures import NOT_TRANSFERABLE
from pyagent.core.cluster.adverts import NOTHING, Offer
from pyagent.core.cluster.names import SCHEME
from pyagent.core.cluster.peers import Peer
from pyagent.core.errors import BackendError, ClusterError, PyAgentError, RequestError, WireError
from pyagent.core.hops import hop_headers
from pyagent.core.messages import ChatDelta, ChatRequest, EmbedRequest, EmbedResult, Health, Hint, ModelInfo
from pyagent.core.trace_context import trace_headers
from pyagent.infrastructure.cluster.effects import AskedRuns
from pyagent.infrastructure.cluster.protocol import (
    CHAT,
    EMBED,
    HINT,
    Ask,
    ask_codec,
    closing,
    delta_codec,
    embed_codec,
    embedded_codec,
    hint_codec,
)
from pyagent.infrastructure.cluster.transport import Reply
from pyagent.infrastructure.cluster.vectors import unpack
from pyagent.infrastructure.wire.codec import Codec

_M = TypeVar("_M")
_EMBED_SECONDS = 60.0


class Connection(Protocol):
    """What a backend needs of the transport."""

    async def call(self, peer_id: str, method: str, payload: bytes, *, timeout: float) -> Reply:  # noqa: ASYNC109 - it travels with the call
        """Return the peer's answer to one call."""
        ...

    def stream(self, peer_id: str, method: str, payload: bytes) -> AsyncIterator[Reply]:
        """Return the peer's answers to one call; closing the iterator cancels it."""
        ...

    def cast(self, peer_id: str, method: str, payload: bytes) -> bool:
        """Send without an answer; False where it cannot be sent."""
        ...


class PeerBackend:
    """A peer's models and agents. `peer` is what is known of it, None once it is gone; the router sets the `name`."""

    def __init__(
        self,
        peer_id: str,
        connection: Connection,
        peer: Callable[[], Peer | None],
        runs: AskedRuns | None = None,
    ) -> None:
        self._runs = runs or AskedRuns()
        self.identity = self.name = f"{SCHEME}:{peer_id}"
        self._peer_id = peer_id
        self._connection = connection
        self._peer = peer

    def absence(self) -> str:
        """Return why the peer takes no requests now; empty when it does."""
        peer = self._peer()
        return "it is gone" if peer is None else peer.absence()

    async def prepare(self) -> None:
        """Do nothing: there is nothing to make before it is asked."""

    def _offer(self) -> Offer:
        peer = self._peer()
        return NOTHING if peer is None else peer.offer

    @property
    def capabilities(self) -> Capabilities:
        """What the peer's own links can do."""
        offer = self._offer()
        return Capabilities(
            abilities=frozenset(offer.abilities),
            gives_several=offer.gives_several,
            assistant_prefix="continued" if offer.continues else "ignored",
            hint=self._hint,
        )

    async def models(self) -> list[ModelInfo]:
        """Return the peer's models, and its agents as `agent:NAME`."""
        offer = self._offer()
        agents = [ModelInfo(id=f"agent:{name}") for name in offer.agents]
        return [msgspec.structs.replace(model, backend=self.name) for model in (*offer.models, *agents)]

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Answer on the peer; closing the iterator aborts the request there."""
        is_run = request.model.startswith(AGENT_PREFIX)
        async with closing(self._run(request) if is_run else self._answer(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def _run(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Run an agent, which has effects: what fails once the peer had leave to begin is told as such."""
        with self._runs.waiting(self._peer_id) as run:
            try:
                async with closing(self._deltas(request, run.id)) as deltas:
                    async for delta in deltas:
                        yield delta
            except (ClusterError, WireError) as error:
                known = "; the run may have had its effects, so no other node is asked" if run.has_begun else ""
                failed = BackendError(f"{self.name}: {error}{known}", backend=self.name, retryable=not run.has_begun)
                failed.has_begun = run.has_begun
                raise failed from error
            except PyAgentError as error:
                error.has_begun = run.has_begun
                raise

    async def _answer(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        with self._own_failures():
            async with closing(self._deltas(request)) as deltas:
                async for delta in deltas:
                    yield delta

    async def _deltas(self, request: ChatRequest, run: str = "") -> AsyncGenerator[ChatDelta, None]:
        ask = self._encoded(ask_codec, Ask(request, {**trace_headers(), **hop_headers()}, run), "messages")
        async with closing(self._connection.stream(self._peer_id, CHAT, ask)) as replies:
            async for reply in replies:
                yield msgspec.structs.replace(delta_codec.decode(reply.payload), backend=self.name)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Embed on the peer."""
        payload = self._encoded(embed_codec, request, "input")
        with self._own_failures():
            reply = await self._connection.call(self._peer_id, EMBED, payload, timeout=_EMBED_SECONDS)
            return await unpack(embedded_codec.decode(reply.payload), reply.buffers, self.name)

    async def health(self) -> Health:
        """Ready when it offers something: a peer that does not answer is no link."""
        models = [model.id for model in self._offer().models]
        return Health(is_ready=bool(models), detail="" if models else "it offers no models", models=models)

    async def close(self) -> None:
        """Do nothing: the connection is the node's."""

    def _hint(self, hint: Hint) -> None:
        self._connection.cast(self._peer_id, HINT, hint_codec.encode(hint))

    def _encoded(self, codec: Codec[_M], message: _M, param: str) -> bytes:
        """Return a request as it is sent; one that cannot be is the request's fault, and no peer's."""
        try:
            return codec.encode(message)
        except WireError as error:
            text = f"{self.name} cannot be sent this request: {error}"
            raise RequestError(text, param=param, code=NOT_TRANSFERABLE) from error

    @contextmanager
    def _own_failures(self) -> Generator[None]:
        """Make what goes wrong between the nodes this link's failure; what the peer's links said stays as it is."""
        try:
            yield
        except (ClusterError, WireError) as error:
            raise BackendError(f"{self.name}: {error}", backend=self.name) from error
