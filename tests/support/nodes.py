"""Nodes of a cluster on loopback, in one event loop: real doors, real CURVE, no multicast."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType

from support.server import Model, words
from support.waiting import until

from pyagent.core.backends import Answer, Backend, collect
from pyagent.core.chain import Chain
from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatDelta, ChatRequest, Message
from pyagent.core.settings import Cluster
from pyagent.infrastructure.cluster.cluster_file import ClusterFile
from pyagent.infrastructure.cluster.node import Node
from pyagent.infrastructure.engine.client import EngineState
from pyagent.infrastructure.observability.answer_spans import PeerTracer


class Own(Model):
    """A link that computes on its node: model `name`, which says where it is."""

    def __init__(self, name: str, *script: ChatDelta | float | Exception) -> None:
        super().__init__(self._said, [name])
        self.name = f"native:{name}"
        self._script = list(script) or words(f"from {name}")

    def _said(self, request: ChatRequest) -> list[ChatDelta | float | Exception]:
        if request.model in {"", *self.model_ids}:
            return self._script
        return [RequestError(f"there is no model {request.model!r}", param="model", code="model_not_found")]

    async def engine_state(self) -> EngineState:
        return EngineState(state="running", num_running=self.num_running)


def ask(model: str, **more: object) -> ChatRequest:
    return ChatRequest(model=model, messages=[Message("user", "hello")], **more)  # type: ignore[arg-type]


async def answer(node: Node, request: ChatRequest) -> Answer:
    return await collect(node.chain.chat(request))


def is_connected(node: Node, others: int) -> bool:
    """Whether a node has so many peers, each connected, known by its offer, and not draining."""
    return sum(peer.is_usable for peer in node.router) == others


async def kill(node: Node) -> None:
    """End a node without a goodbye, as a crash does: the others find out by themselves."""
    node._members.fall_silent()
    await node.stop()


@asynccontextmanager
async def running_node(
    folder: Path,
    links: Sequence[Backend],
    *,
    seeds: Sequence[str] = (),
    agents: Backend | None = None,
    tracer: PeerTracer | None = None,
    **more: object,
) -> AsyncIterator[Node]:
    """Start a node of the cluster whose file is in the folder; the chain is `node.chain`."""
    fields = {"bind": ["127.0.0.1"], "port": 0, "seeds": list(seeds), "multicast": False, "name": folder.name, **more}
    chain = Chain(list(links), name=folder.name)
    node = Node(folder, Cluster(**fields), chain, agents=agents, tracer=tracer)  # type: ignore[arg-type]
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


@asynccontextmanager
async def cluster_of(
    folder: Path,
    settings: Mapping[str, object] = MappingProxyType({}),
    drained: Collection[str] = (),
    **name_to_links: Sequence[Backend],
) -> AsyncIterator[list[Node]]:
    """Start a node for each name and its links, those of `drained` taking nothing; all are connected with all."""
    first: Node | None = None
    async with AsyncExitStack() as stack:
        nodes: list[Node] = []
        for name, links in name_to_links.items():
            own = folder / name
            join(own, first)
            seeds = [] if first is None else [f"127.0.0.1:{first.door_port}"]
            node = await stack.enter_async_context(running_node(own, links, seeds=seeds, **settings))
            if name in drained:
                await node.drain(0.0)
            nodes.append(node)
            first = first or node
        await until(lambda: all(sum(peer.is_up for peer in node.router) == len(nodes) - 1 for node in nodes))
        await until(lambda: all(peer.is_usable or peer.load.is_draining for node in nodes for peer in node.router))
        yield nodes


def join(folder: Path, member: Node | None) -> None:
    """Give a folder the cluster of a member, or a new one."""
    folder.mkdir(parents=True, exist_ok=True)
    if member is None:
        ClusterFile(folder).init("test")
    else:
        state = member.cluster.load()
        ClusterFile(folder).join(type(state)(state.cluster_id, state.name, state.secrets[:1]))
