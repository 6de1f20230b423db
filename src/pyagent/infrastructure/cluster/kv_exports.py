"""KV that peers take from this node: only of prompts whose keys they name, and of models like theirs.

Read beside the engine's loop, a few layers at a time, while a sequence of the block pool keeps it in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, runtime_checkable

from pyagent.core.cluster.kv_index import KEY_BYTES, KvIndex, unpack
from pyagent.core.cluster.peers import ClusterRouter
from pyagent.core.cluster.tensors import Tensor
from pyagent.core.errors import CapacityError, RequestError
from pyagent.core.messages import ChatRequest, Origin, SamplingParams
from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.core.runners.kv_connector import HeldKv, KvCache, KvConnector, KvLayout
from pyagent.infrastructure.cluster.kv_messages import (
    MATCH,
    PREFILL,
    PROBE,
    READ,
    FoundKv,
    KvPart,
    ReadKv,
    ask_codec,
    found_codec,
    part_codec,
    prefill_codec,
    read_codec,
)
from pyagent.infrastructure.cluster.transport import Reply, Transport

MAX_EXPORTS = 4
"""Moves that peers may have under way from this node: more of them share the same network and memory."""
PROBE_BYTES = 1 << 20
_LONGEST_SECONDS = 60.0
"""A move that takes longer ends: a peer that does not read holds memory, and the place of another."""
_PART_BYTES = 4 << 20
"""A message has no more: of many pages, some layers, or a layer of some of them."""
_RETRY_SECONDS = 1.0
ComputePrompt = Callable[[str, ChatRequest], Awaitable[None]]
"""Computes the prompt of a peer, by its id: as any request of it is admitted, and refused."""


@runtime_checkable
class KvLink(Protocol):
    """A link whose engine moves KV."""

    def connect_kv(self, connector: KvConnector) -> bool:
        """Have KV moved by a connector; whether it is."""
        ...

    def disconnect_kv(self, connector: KvConnector) -> None:
        """Have it moved no more."""
        ...


@dataclass(slots=True, eq=False)
class OfferedKv:
    """A model's KV, and which prompts it is of."""

    cache: KvCache
    index: KvIndex = field(default_factory=KvIndex)


class KvExports:
    """Answers peers that want KV. `offered` are this node's models by name."""

    def __init__(self, offered: dict[str, OfferedKv], router: ClusterRouter, compute: ComputePrompt | None) -> None:
        """`compute` computes the prompts that peers want computed here; None where no engine can."""
        self._offered = offered
        self._router = router
        self._compute = compute
        self._running: set[object] = set()

    def register(self, transport: Transport) -> None:
        """Have the transport hand peers' calls on."""
        transport.handle(MATCH, self.match)
        transport.handle(READ, self.read)
        transport.handle(PROBE, self.probe)
        transport.handle(PREFILL, self.prefill)

    async def match(self, _peer_id: str, payload: bytes, _buffers: Sequence[memoryview]) -> Reply:
        """Return how much of a prompt's KV there is."""
        ask = ask_codec.decode(payload)
        offered, refusal = self._like(ask.model, ask.layout)
        if offered is None:
            return Reply(found_codec.encode(FoundKv(refusal=refusal)))
        tokens, key = offered.index.match(unpack(ask.keys))
        num_tokens = await asyncio.to_thread(offered.cache.num_cached, tokens, key) if tokens else 0
        return Reply(found_codec.encode(FoundKv(num_tokens, token_seconds=offered.cache.token_seconds)))

    async def read(self, peer_id: str, payload: bytes, _buffers: Sequence[memoryview]) -> AsyncGenerator[Reply, None]:
        """Yield the layers of a prompt's KV."""
        ask = read_codec.decode(payload)
        offered, refusal = self._like(ask.model, ask.layout)
        if offered is None:
            raise RequestError(refusal or f"there is no KV of {ask.model!r} here", param="layout")
        keys = unpack(ask.keys)
        tokens, key = offered.index.match(keys)
        held = offered.cache.hold(tokens, key)
        with self._one_more() as move:
            late = asyncio.get_running_loop().call_later(_LONGEST_SECONDS, self._end, move, held)
            try:
                await asyncio.to_thread(held.open)
                if not keys or held.num_tokens != len(keys) * BLOCK_TOKENS:
                    text = (
                        f"{held.num_tokens} tokens of this prompt are here, {len(keys) * BLOCK_TOKENS} were asked for"
                    )
                    raise RequestError(text, param="keys")
                async for reply in self._parts(ask, held):
                    self._count(peer_id, reply)
                    yield reply
            finally:
                late.cancel()
                await asyncio.shield(asyncio.to_thread(held.close))  # cancelled, it would stay held

    def _count(self, peer_id: str, reply: Reply) -> None:
        if (peer := self._router.get(peer_id)) is not None:
            peer.kv.sent_bytes += sum(memoryview(buffer).nbytes for buffer in reply.buffers)

    def _end(self, move: object, held: HeldKv) -> None:
        self._running.discard(move)
        asyncio.get_running_loop().run_in_executor(None, held.close)

    async def _parts(self, ask: ReadKv, held: HeldKv) -> AsyncGenerator[Reply, None]:
        wanted = array("I", ask.wanted[: len(ask.wanted) // 4 * 4]).tolist()
        is_rising = all(one < later for one, later in pairwise(wanted))  # a page asked for often would fill the memory
        if not wanted or not is_rising or held.num_pages != ask.num_pages or wanted[-1] >= held.num_pages:
            text = f"{len(wanted)} of {ask.num_pages} pages were asked for, there are {held.num_pages}, in rising order"
            raise RequestError(text, param="wanted")
        shape = ask.layout.shape
        for layers, places in parts_of(shape.layers_per_page, len(wanted), shape.layer_bytes, _PART_BYTES):
            data = await asyncio.to_thread(held.read, wanted[places.start : places.stop], layers.start, len(layers))
            tensor = Tensor("kv", "uint8", (len(places), len(layers), shape.layer_bytes))
            part = KvPart(ask.keys[-KEY_BYTES:], layers.start, tensor, places.start)
            yield Reply(part_codec.encode(part), [data])

    async def probe(self, _peer_id: str, _payload: bytes, _buffers: Sequence[memoryview]) -> Reply:
        """Return bytes by which a peer measures how quickly they come."""
        with self._one_more():
            return Reply(b"", [bytes(PROBE_BYTES)])

    async def prefill(self, peer_id: str, payload: bytes, _buffers: Sequence[memoryview]) -> Reply:
        """Compute a prompt, so that its KV can be read afterwards."""
        ask = prefill_codec.decode(payload)
        offered, refusal = self._like(ask.model, ask.layout)
        if offered is None and refusal:
            raise RequestError(refusal, param="layout")
        if self._compute is None:
            text = f"this node does not compute prompts of {ask.model[:200]!r}: no engine here moves KV"
            raise RequestError(text, param="model", code="model_not_found")
        tokens = tuple(array("I", ask.tokens[: len(ask.tokens) // 4 * 4]).tolist())
        request = ChatRequest(
            model=ask.model,
            prompt_token_ids=tokens,
            sampling=SamplingParams(max_tokens=1, temperature=1),  # an answer that is greedy may be cached
            origin=Origin(tenant=ask.tenant),
            priority=ask.priority,
        )
        await self._compute(peer_id, request)
        if self._like(ask.model, ask.layout)[0] is None:  # it was not loaded before, or its weights are not known
            text = f"KV of {ask.model[:200]!r} cannot be read here yet"
            raise CapacityError(text, retry_after_seconds=_RETRY_SECONDS)
        return Reply(b"")

    def _like(self, model: str, layout: KvLayout) -> tuple[OfferedKv | None, str]:
        """Return the model with this layout, whatever it is called, or what is different in the one of its name."""
        named = self._offered.get(model)
        for offered in (named, *self._offered.values()) if named else self._offered.values():
            if not offered.cache.layout.difference(layout):
                return offered, ""
        if named is None:
            return None, ""
        return None, f"KV of {model[:200]!r} is not alike: {named.cache.layout.difference(layout)}"

    @contextlib.contextmanager
    def _one_more(self) -> Generator[object]:
        if len(self._running) >= MAX_EXPORTS:
            text = f"{len(self._running)} moves of KV from here are under way; compute the prompt, or try again later"
            raise CapacityError(text, retry_after_seconds=_RETRY_SECONDS)
        move = object()
        self._running.add(move)
        try:
            yield move
        finally:
            self._running.discard(move)


def parts_of(num_layers: int, num_pages: int, layer_bytes: int, most_bytes: int) -> Iterator[tuple[range, range]]:
    """Yield which layers of which pages each message has, in the order of `KvConnector.load`: all layers, or one.

    Messages have `most_bytes` at most, or a layer of a page.
    """
    step = max(1, most_bytes // (num_pages * layer_bytes))
    num_at_once = min(num_pages, max(1, most_bytes // layer_bytes))
    for first in range(0, num_layers, step):
        for page in range(0, num_pages, num_at_once):
            yield range(first, min(first + step, num_layers)), range(page, min(page + num_at_once, num_pages))
