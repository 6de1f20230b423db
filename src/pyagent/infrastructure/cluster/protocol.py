"""The messages between nodes, by method: what a call, stream or cast of the transport carries."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

import msgspec

from pyagent.core.cluster.adverts import Load, Offer
from pyagent.core.cluster.cluster_state import EpochSecret
from pyagent.core.cluster.messages import MAX_MESSAGE_BYTES, MAX_REVOKED, Message, Revocation
from pyagent.core.messages import ChatDelta, ChatRequest, EmbedRequest, Hint
from pyagent.infrastructure.cluster.vectors import Embedded
from pyagent.infrastructure.wire.codec import Codec

T = TypeVar("T")
CHAT, EMBED, HINT = "chat", "embed", "hint"
GOSSIP, LOAD, WARM, EPOCH, FORGET, BEGIN = "gossip", "load", "warm", "epoch", "forget", "begin"
TWIN = "twin"
MAX_ASK_BYTES = 64 << 20
"""A conversation of images; larger requests are answered where they arrived."""
MAX_SMALL_BYTES = 1 << 20


class Ask(msgspec.Struct, frozen=True):
    """A chat request, with the headers that tell its trace and the servers it passed.

    For a run of an agent, `run` is what leave to begin is asked with (`effects`).
    """

    request: ChatRequest
    headers: dict[str, str] = {}
    run: Annotated[str, msgspec.Meta(max_length=64)] = ""


_PEER = "a node of the cluster"
ask_codec: Codec[Ask] = Codec(Ask, _PEER, MAX_ASK_BYTES)
delta_codec: Codec[ChatDelta] = Codec(ChatDelta, _PEER, MAX_ASK_BYTES)
embed_codec: Codec[EmbedRequest] = Codec(EmbedRequest, _PEER, MAX_ASK_BYTES)
embedded_codec: Codec[Embedded] = Codec(Embedded, _PEER)
hint_codec: Codec[Hint] = Codec(Hint, _PEER, MAX_SMALL_BYTES)
load_codec: Codec[Load] = Codec(Load, _PEER, MAX_SMALL_BYTES)
offer_codec: Codec[Offer] = Codec(Offer, _PEER, MAX_SMALL_BYTES)


class Epoch(msgspec.Struct, frozen=True):
    """The cluster's secrets, and who is out of it; only ever told over an encrypted link."""

    secrets: tuple[EpochSecret, ...]
    revoked: Annotated[tuple[Revocation, ...], msgspec.Meta(max_length=MAX_REVOKED)]


gossip_codec: Codec[Message] = Codec(Message, _PEER, MAX_MESSAGE_BYTES)
epoch_codec: Codec[Epoch] = Codec(Epoch, _PEER, MAX_SMALL_BYTES)


@asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncGenerator[AsyncIterator[T]]:
    """Close a stream at the end, where it can be: backends of plugins may give plain iterators."""
    try:
        yield stream
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
