"""Transports of several nodes in one process, on loopback, which know each other's keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import zmq

from pyagent.infrastructure.cluster.transport import Limits, LinkChange, Transport

QUICK = Limits(first_pause_seconds=0.01, longest_pause_seconds=0.05, ping_seconds=0.05)
"""Pauses so short that a test need not wait for them."""


class Node:
    """A transport, where it listens, and what it was told of its links."""

    def __init__(self, node_id: str, limits: Limits = QUICK) -> None:
        public, secret = zmq.curve_keypair()
        self.id, self.public, self.secret, self.limits = node_id, public.decode(), secret.decode(), limits
        self.transport = Transport(node_id, self.public, self.secret, limits=limits)
        self.endpoints = list[str]()
        self.links = list[tuple[str, LinkChange]]()
        self.transport.on_link(lambda peer_id, change: self.links.append((peer_id, change)))

    async def start(self, bind: Sequence[str] = ("tcp://127.0.0.1:0",)) -> None:
        """Listen."""
        self.endpoints = await self.transport.start(bind)

    def meet(self, other: Node) -> None:
        """Let another node in, and connect with it."""
        self.transport.allow(other.id, other.public)
        self.transport.connect(other.id, other.public, other.endpoints)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so; a test that waits for ever is ended from outside."""
    while not condition():  # noqa: ASYNC110 - conditions of many kinds
        await asyncio.sleep(0.002)


@asynccontextmanager
async def nodes(num_nodes: int = 2, limits: Limits = QUICK) -> AsyncIterator[list[Node]]:
    """Nodes that are connected with each other; stopped afterwards."""
    started = [Node(f"node{index}", limits) for index in range(num_nodes)]
    try:
        for node in started:
            await node.start()
        pairs = [(one, other) for one in started for other in started if one is not other]
        for one, other in pairs:
            one.meet(other)
        await until(lambda: all((other.id, "up") in one.links for one, other in pairs))
        yield started
    finally:
        for node in started:
            await node.transport.stop()
