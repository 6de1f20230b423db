"""The cluster's KV connector: fetches prompts' KV from the peers that have computed them, and tells which are here.

A peer is asked when the digest of its prompts says that it has more of the prompt than is here, and when a question and
the move, by what was measured of the way to it, are sooner than computing. A `decode` node has prompts computed by a
`prefill` node first, and waits for it no longer than computing takes here, and the move; one that was late is left
alone for a while.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyagent.core.cluster.adverts import Role
from pyagent.core.cluster.kv_index import block_keys, pack
from pyagent.core.cluster.peers import ClusterRouter, Peer
from pyagent.core.errors import PyAgentError, RequestError, WireError
from pyagent.core.resilience.breaker import Permit
from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.core.runners.kv_connector import (
    KvCache,
    KvLayers,
    KvLayout,
    KvMatch,
    KvPages,
    KvPrompt,
    KvRefusedError,
)
from pyagent.infrastructure.cluster.kv_exports import PROBE_BYTES, ComputePrompt, KvExports, OfferedKv
from pyagent.infrastructure.cluster.kv_messages import (
    MATCH,
    MAX_PREFILL_TOKENS,
    PREFILL,
    PROBE,
    READ,
    AskKv,
    FoundKv,
    PrefillKv,
    ReadKv,
    ask_codec,
    found_codec,
    part_codec,
    part_schema,
    prefill_codec,
    read_codec,
)
from pyagent.infrastructure.cluster.protocol import closing
from pyagent.infrastructure.cluster.transport import Transport

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger(__name__)

_MOST_ASKED = 2
_SECONDS = 10.0
_PATIENCE, _DECODE_PATIENCE = 0.1, 2.0
"""Shares of the time that computing takes: twice that is more than computing and a move that is worth it."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a match is: the peer, and the keys of the prompt's blocks."""

    peer: Peer
    keys: Sequence[bytes]


class KvExchange:
    """Moves KV between the nodes of a cluster. One event loop's: requests of others are computed."""

    def __init__(self, router: ClusterRouter, transport: Transport, secret: bytes, role: Role = "both") -> None:
        self._router = router
        self._transport = transport
        self._secret = secret
        self._role: Role = role
        self.patience = _DECODE_PATIENCE if role == "decode" else _PATIENCE
        self._offered: dict[str, OfferedKv] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, compute: ComputePrompt | None) -> KvExports:
        """Answer peers from now on; `compute` computes prompts for them, where an engine here can."""
        self._loop = asyncio.get_running_loop()
        exports = KvExports(self._offered, self._router, compute)
        exports.register(self._transport)
        return exports

    def register(self, model: str, cache: KvCache) -> None:
        """Note a model whose KV can move."""
        self._offered[model] = OfferedKv(cache)

    def forget(self, model: str) -> None:
        """Forget a model that is unloaded."""
        self._offered.pop(model, None)

    def save(self, prompt: KvPrompt) -> None:
        """Note that a prompt is computed here."""
        if (offered := self._offered.get(prompt.model)) is not None:
            keys = self._keys(prompt, offered.cache.layout)
            offered.index.note(keys, prompt.tokens, prompt.key)

    async def close(self) -> None:
        """Forget all models."""
        self._offered.clear()
        self._loop = None

    def _keys(self, prompt: KvPrompt, layout: KvLayout) -> list[bytes]:
        return block_keys(prompt.tokens, prompt.key, layout.weights, self._secret)

    # -- asking -------------------------------------------------------------------------------------------------------

    async def matched_tokens(self, prompt: KvPrompt) -> KvMatch | None:
        """Return what a peer has of a prompt beyond what is here. Raises `KvRefusedError` when its KV is not alike."""
        offered = self._offered.get(prompt.model)
        if offered is None or asyncio.get_running_loop() is not self._loop:
            return None
        peers = await self._holders(prompt, offered.cache.layout)
        if not peers:
            return None
        layout = offered.cache.layout
        keys = self._keys(prompt, layout)
        ask = ask_codec.encode(AskKv(prompt.model, layout, pack(keys)))
        asked = await asyncio.gather(*(self._ask(peer, ask) for peer in peers))
        found = [(peer, answer) for peer, answer in zip(peers, asked, strict=True) if answer is not None]
        best = max(found, key=lambda one: one[1].num_tokens, default=None)
        if best is None or best[1].num_tokens <= prompt.num_local:
            if refused := [f"{peer.name}: {answer.refusal}" for peer, answer in found if answer.refusal]:
                raise KvRefusedError(refused[0])
            return None
        peer, answer = best
        num_tokens = min(answer.num_tokens, len(prompt.tokens)) // BLOCK_TOKENS * BLOCK_TOKENS
        seconds = await self._seconds(peer, layout, num_tokens - prompt.num_local)
        return KvMatch(num_tokens, seconds, answer.token_seconds, _Source(peer, keys[: num_tokens // BLOCK_TOKENS]))

    async def _holders(self, prompt: KvPrompt, layout: KvLayout) -> list[Peer]:
        """Return the peers to ask, after one of them has computed the prompt where this node does not."""
        if self._role == "decode" and (peer := await self._have_computed(prompt, layout)) is not None:
            return [peer]
        holders = self._router.holders(prompt.request)
        return [peer for peer, share in holders if _may_be_worth(prompt, peer, layout, share)][:_MOST_ASKED]

    def _prefill_node(self, prompt: KvPrompt, layout: KvLayout) -> tuple[Peer, Permit] | None:
        """Return the node that computes prompts for others and has the fewest tokens to compute, with leave to ask it.

        One that was late is left out for a while, and then while one request asks it.
        """
        peers = [peer for peer in self._router if peer.is_up and not peer.load.is_draining]
        able = [peer for peer in peers if peer.offer.role == "prefill" and peer.has(prompt.model)]
        asked = [peer for peer in able if _may_be_worth(prompt, peer, layout, 1.0)]
        for peer in sorted(asked, key=lambda peer: peer.load.num_prompt_tokens_left + peer.num_sent_tokens):
            if (permit := peer.kv.prefill.acquire()) is not None:
                return peer, permit
        return None

    async def _have_computed(self, prompt: KvPrompt, layout: KvLayout) -> Peer | None:
        """Have a node compute a prompt, and return it; None where there is none. Raises where it is late or fails.

        It is then not asked for a while, and after that by one request; what it says of a prompt is no fault of it.
        """
        if len(prompt.tokens) > MAX_PREFILL_TOKENS:
            return None
        tokens = array("I", prompt.tokens).tobytes()
        ask = PrefillKv(prompt.model, layout, tokens, prompt.key.tenant, prompt.request.priority)
        message = prefill_codec.encode(ask)  # what cannot be sent is no fault of a node
        if (found := self._prefill_node(prompt, layout)) is None:
            return None
        peer, permit = found
        peer.send((), prompt.num_missing)  # a burst goes to several, before any of them has told its load
        num_bytes = prompt.num_missing * _token_bytes(layout)
        seconds = peer.kv.prefill_seconds(prompt.compute_seconds, num_bytes, peer.round_trip_seconds)
        try:
            await self._transport.call(peer.id, PREFILL, message, timeout=seconds)
            peer.kv.prefill.succeed(permit)
        except PyAgentError as error:
            if not isinstance(error, RequestError):
                peer.kv.prefill.fail(permit, str(error))
            raise
        finally:
            peer.kv.prefill.release(permit)
        return peer

    async def _ask(self, peer: Peer, ask: bytes) -> FoundKv | None:
        try:
            reply = await self._transport.call(peer.id, MATCH, ask, timeout=_SECONDS)
            return found_codec.decode(reply.payload)
        except PyAgentError as error:
            logger.info("node %s does not say which KV it has: %s", peer.name, error)
            return None

    async def _seconds(self, peer: Peer, layout: KvLayout, num_tokens: int) -> float:
        """Return what moving so many tokens takes, by the moves of late, or else by a probe."""
        num_bytes = num_tokens * _token_bytes(layout)
        if (seconds := peer.kv.move_seconds(num_bytes)) is None:
            await self._transport.call(peer.id, PROBE, b"", timeout=_SECONDS)  # opens the connection for long messages
            await self._measure(peer)
            seconds = peer.kv.move_seconds(num_bytes)
            assert seconds is not None, "it was measured"
        return peer.round_trip_seconds + seconds

    async def _measure(self, peer: Peer) -> None:
        started = time.perf_counter()
        reply = await self._transport.call(peer.id, PROBE, b"", timeout=_SECONDS)
        num_bytes = sum(memoryview(buffer).nbytes for buffer in reply.buffers)
        peer.kv.note_move(min(max(num_bytes, 1), PROBE_BYTES), time.perf_counter() - started)

    # -- fetching -----------------------------------------------------------------------------------------------------

    async def load(self, prompt: KvPrompt, match: KvMatch, pages: KvPages) -> AsyncGenerator[KvLayers, None]:
        """Yield the layers of a prompt's KV as a peer sends them. Raises `WireError` for what was not asked for."""
        source, layout = match.source, self._offered[prompt.model].cache.layout
        assert isinstance(source, _Source)
        wanted = array("I", pages.wanted).tobytes()
        ask = ReadKv(prompt.model, layout, pack(source.keys), pages.num_pages, wanted)
        kv = source.peer.kv
        kv.num_loading += 1
        started, num_bytes = time.perf_counter(), 0
        try:
            async with closing(self._transport.stream(source.peer.id, READ, read_codec.encode(ask))) as replies:
                async for reply in replies:
                    layers = _checked(reply.payload, reply.buffers, source, layout)
                    yield layers
                    num_bytes += memoryview(layers.data).nbytes
            kv.num_loads += 1
        finally:  # one that is broken off, too: it was late
            kv.num_loading -= 1
            kv.loaded_bytes += num_bytes
            kv.note_move(num_bytes, time.perf_counter() - started)


def _checked(payload: bytes, buffers: Sequence[Buffer], source: _Source, layout: KvLayout) -> KvLayers:
    """Return a part of the prompt that was asked for; whether it is the next one is checked where it is written."""
    part = part_codec.decode(payload)
    if part.key != source.keys[-1]:
        raise WireError("KV of another prompt came than was asked for", peer=source.peer.id)
    num_bytes = [memoryview(buffer).nbytes for buffer in buffers]
    sizes = part_schema(layout.shape.layer_bytes).check([part.tensor], num_bytes)
    return KvLayers(part.first_layer, sizes["layers"], buffers[0], part.first_page)


def _may_be_worth(prompt: KvPrompt, peer: Peer, layout: KvLayout, share: float) -> bool:
    """Return whether to ask a peer that has a share of a prompt, or computes it, by what was measured of the way."""
    num_more = share * len(prompt.tokens) - prompt.num_local
    if num_more < BLOCK_TOKENS:
        return False
    saved = None if prompt.compute_seconds is None else prompt.compute_seconds * num_more / prompt.num_missing
    return peer.kv.is_worth_asking(saved, num_more * _token_bytes(layout), peer.round_trip_seconds)


def _token_bytes(layout: KvLayout) -> float:
    shape = layout.shape
    pages_per_block = sum(pages for _, _, pages in shape.groups)
    return pages_per_block * shape.layers_per_page * shape.layer_bytes / shape.block_tokens
