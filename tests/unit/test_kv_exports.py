"""What a node tells peers of the KV it has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from pyagent.core.cluster.kv_index import block_keys, pack
from pyagent.core.cluster.peers import ClusterRouter
from pyagent.core.cluster.routing import Balancer
from pyagent.core.errors import CapacityError, RequestError
from pyagent.core.messages import ChatRequest
from pyagent.core.runners.batch import PLAIN_KEY, PrefixKey
from pyagent.core.runners.kv_connector import HeldKv, KvLayout, KvShape
from pyagent.infrastructure.cluster.kv_exports import ComputePrompt, KvExports, OfferedKv
from pyagent.infrastructure.cluster.kv_messages import AskKv, PrefillKv, ask_codec, found_codec, prefill_codec

SHAPE = KvShape(
    kv_dtype="bf16",
    num_kv_heads=1,
    head_dim=8,
    rope="none",
    block_tokens=16,
    groups=(),
    layers_per_page=1,
    layer_bytes=64,
)
LAYOUT = KvLayout(weights="w", shape=SHAPE)
TOKENS = list(range(64))
KEYS = block_keys(TOKENS, PLAIN_KEY, "w", b"secret")


class Cached:
    """A model's KV: of any prompt that is known so many tokens."""

    def __init__(self, num_tokens: int, layout: KvLayout = LAYOUT) -> None:
        self.layout = layout
        self.token_seconds = 0.25
        self._num_tokens = num_tokens

    def num_cached(self, tokens: Sequence[int], key: PrefixKey) -> int:
        return min(self._num_tokens, len(tokens))

    def hold(self, tokens: Sequence[int], key: PrefixKey) -> HeldKv:
        raise NotImplementedError


def exports(compute: ComputePrompt | None = None, **cached: Cached) -> KvExports:
    offered = {name: OfferedKv(cache) for name, cache in cached.items()}
    for one in offered.values():
        one.index.note(KEYS, TOKENS, PLAIN_KEY)
    return KvExports(offered, ClusterRouter(Balancer("prefix")), compute)


def found(of: KvExports, model: str, layout: KvLayout = LAYOUT) -> tuple[int, str]:
    reply = asyncio.run(of.match("peer", ask_codec.encode(AskKv(model, layout, pack(KEYS))), []))
    told = found_codec.decode(reply.payload)
    return told.num_tokens, told.refusal


def test_model_that_is_named_is_asked_before_others_of_its_weights() -> None:
    """Of two names for the same weights the one that is asked for answers; by another name any does, unlike none."""
    both = exports(a=Cached(16), b=Cached(48))
    assert [found(both, name) for name in "abc"] == [(16, ""), (48, ""), (16, "")]
    other = KvLayout(weights="v", shape=msgspec.structs.replace(SHAPE, kv_dtype="f32"))
    assert found(both, "b", other) == (0, "KV of 'b' is not alike: kv_dtype is bf16 here and f32 there")
    assert found(both, "c", other) == (0, "")


def test_prompt_is_computed_in_the_name_of_its_peer() -> None:
    """Whoever computes is told which peer asked, for which tenant, and with which priority; unlike ones are refused."""
    asked: list[tuple[str, ChatRequest]] = []

    async def compute(peer_id: str, request: ChatRequest) -> None:
        asked.append((peer_id, request))

    tokens = b"".join(token.to_bytes(4, "little") for token in (7, 8, 9))
    ask = PrefillKv("a", LAYOUT, tokens + b"\x01", "tenant", -3)
    of = exports(compute, a=Cached(0))
    asyncio.run(of.prefill("peer", prefill_codec.encode(ask), []))
    [(peer_id, request)] = asked
    assert (peer_id, request.prompt_token_ids) == ("peer", (7, 8, 9))
    assert (request.model, request.origin.tenant, request.priority) == ("a", "tenant", -3)
    assert request.sampling.max_tokens == 1
    other = msgspec.structs.replace(ask, layout=KvLayout(weights="v", shape=SHAPE))
    with pytest.raises(RequestError, match="weights is w here and v there"):
        asyncio.run(of.prefill("peer", prefill_codec.encode(other), []))
    with pytest.raises(RequestError, match="no engine here moves KV"):
        asyncio.run(exports(a=Cached(0)).prefill("peer", prefill_codec.encode(ask), []))
    assert len(asked) == 1
    with pytest.raises(CapacityError, match="KV of 'a' cannot be read here yet"):
        asyncio.run(exports(compute).prefill("peer", prefill_codec.encode(ask), []))
    assert len(asked) == 2, "it is loaded by that"
