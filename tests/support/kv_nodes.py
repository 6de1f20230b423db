"""Two nodes with tiny engines that can move KV, and ways to ask one of them alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from support.native import options
from support.nodes import join, running_node
from support.waiting import until

from pyagent.core.backends import Answer, collect
from pyagent.core.cluster.adverts import Role
from pyagent.core.cluster.peers import Peer, answer_for_peer
from pyagent.core.messages import ChatRequest, Message, Origin, SamplingParams
from pyagent.core.runners.factory import KvDtype
from pyagent.infrastructure.cluster.node import Node
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.models.loaded_model import LoadedModel
from pyagent.infrastructure.engine.stats import KvMoveStats

SLOW = 10.0
"""Seconds a prompt's token takes to compute, as the engine is told it has measured: moving is always sooner."""


def prompt(number: int = 0, *, tenant: str = "", **more: object) -> ChatRequest:
    """A greedy request of about 330 tokens, another one for each number."""
    text = f"{number} the user is at ease, and the system is on and {number} " * 6
    sampling: dict[str, object] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    sampling |= {key: more.pop(key) for key in ("seed", "temperature") if key in more}
    return ChatRequest(
        model="tiny",
        messages=[Message("user", text)],
        origin=Origin(tenant=tenant),
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )


class KvNode:
    """A node whose only link is an engine with the model `tiny`."""

    def __init__(self, node: Node, link: NativeBackend) -> None:
        self.node = node
        self.link = link

    @property
    def engine(self) -> LocalEngine:
        assert isinstance(self.link.engine, LocalEngine)
        return self.link.engine

    @property
    def moved(self) -> KvMoveStats:
        return self.engine.kv.stats()["tiny"]

    @property
    def model(self) -> LoadedModel:
        return self.engine.models.loaded()["tiny"]

    async def answer(self, request: ChatRequest) -> Answer:
        """Answer with the node's own engine, whoever else could."""

        async def own() -> Answer:
            answer_for_peer()
            return await collect(self.node.chain.chat(request))

        return await asyncio.create_task(own())

    async def ready(self) -> None:
        """Load the model; then its KV can move. Prompts seem to take long, however quickly they are computed."""
        await self.link.load()
        await until(lambda: "tiny" in self.engine.kv.stats())
        self.model.engine.scheduler.costs.note = lambda *_: None  # type: ignore[method-assign]
        self.seem(SLOW)

    def seem(self, token_seconds: float | None) -> None:
        """Have the engine believe that computing a prompt's token takes so long, or that it has computed none."""
        self.model.engine.scheduler.costs.prompt_token_seconds = token_seconds

    async def knows(self, other: KvNode, request: ChatRequest) -> None:
        """Wait until the other node is known to have computed a prompt."""
        await until(lambda: any(peer.name == other.node.name for peer, _ in self.node.router.holders(request)))

    def peer(self, other: KvNode) -> Peer:
        """What this node knows of the other one."""
        peer = self.node.router.get(other.node.keys.node_id)
        assert peer is not None
        return peer

    async def is_idle(self) -> None:
        """No page is held by anybody."""
        pool = self.model.runner.pool
        await until(lambda: not self.model.engine.scheduler.has_work and pool.stats().active == 0)
        pool.check()


@asynccontextmanager
async def two_nodes(
    folder: Path,
    path: Path,
    other: Path | None = None,
    *,
    kv_types: tuple[KvDtype, KvDtype] = ("bf16", "bf16"),
    roles: tuple[Role, Role] = ("both", "both"),
) -> AsyncIterator[tuple[KvNode, KvNode]]:
    """Start nodes `a` and `b`, whose KV can move: `a` with the model of a file, `b` with the same or another."""
    async with kv_nodes(folder, [path, other or path], kv_types, roles) as (a, b):
        yield a, b


@asynccontextmanager
async def kv_nodes(
    folder: Path, models: Sequence[Path], kv_types: Sequence[KvDtype], roles: Sequence[Role]
) -> AsyncIterator[list[KvNode]]:
    """Start nodes `a`, `b` and so on, whose KV can move, each with the model of a file."""
    async with AsyncExitStack() as stack:
        nodes: list[KvNode] = []
        for name, model, kv_type, role in zip("abcd", models, kv_types, roles, strict=False):
            link = NativeBackend.of("tiny", lambda model=model: model, options(kv_type=kv_type))
            stack.push_async_callback(link.close)
            join(folder / name, nodes[0].node if nodes else None)
            seeds = [f"127.0.0.1:{nodes[0].node.door_port}"] if nodes else []
            node = await stack.enter_async_context(running_node(folder / name, [link], seeds=seeds, role=role))
            nodes.append(KvNode(node, link))
        await until(lambda: all(len(one.node.router) == len(nodes) - 1 for one in nodes))
        await until(lambda: all(peer.is_up and peer.offer.models for one in nodes for peer in one.node.router))
        for one in nodes:
            await one.ready()
        yield nodes
