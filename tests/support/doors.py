"""Doors of nodes on loopback, and a wire between them that keeps what crosses it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

from pyagent.infrastructure.cluster.cluster_file import ClusterFile
from pyagent.infrastructure.cluster.door import Door, Met
from pyagent.infrastructure.cluster.invitation import InvitationFile
from pyagent.infrastructure.cluster.join import Inviter
from pyagent.infrastructure.cluster.keys import NodeKeys, load_or_make_keys
from pyagent.infrastructure.cluster.visitors import DoorLimits

PATIENT = DoorLimits(seconds=60)
"""A busy machine may take long; tests of the deadline set their own."""


@dataclass
class Node:
    """One node's files and door."""

    folder: Path
    name: str
    endpoint: str = "tcp://0.0.0.0:4000"
    limits: DoorLimits = PATIENT
    met: list[Met] = field(default_factory=list[Met])

    def __post_init__(self) -> None:
        self.keys: NodeKeys = load_or_make_keys(self.folder)
        self.cluster = ClusterFile(self.folder)
        self.invitations = InvitationFile(self.folder)
        self.open_door()

    def open_door(self) -> Door:
        """Make the door anew, as a restarted process does."""
        inviter = Inviter(self.keys, self.cluster, self.name, self.invitations)
        self.door = Door(
            self.keys,
            self.cluster,
            lambda: [self.endpoint] if self.endpoint else [],
            self.met.append,
            name=self.name,
            inviter=inviter,
            limits=self.limits,
        )
        return self.door

    async def start(self) -> int:
        return await self.door.start("127.0.0.1", 0)

    async def knock(self, other: Node) -> Met:
        return await self.door.knock("127.0.0.1", other.door.port, timeout=60)


def copy_cluster(one: Node, other: Node) -> None:
    """Let another node know the cluster as `one` does, without having met."""
    state = one.cluster.load()
    other.cluster.file.unlink(missing_ok=True)
    other.cluster.join(type(state)(state.cluster_id, state.name, state.secrets))


def some_id(number: int) -> str:
    """An id that no node has."""
    return "a" * 9 + "".join("abcdefghijklmnopqrstuvwxyz234567"[number >> shift & 31] for shift in (15, 10, 5, 0))


@dataclass
class Wire:
    """What crossed a connection through it, in either direction."""

    port: int = 0
    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)


@contextlib.asynccontextmanager
async def tapped(port: int) -> AsyncGenerator[Wire]:
    """A port that leads to another, and keeps all bytes."""
    wire, tasks = Wire(), set[asyncio.Task[None]]()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                kept += data
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        tasks.add(asyncio.create_task(carry(reader, back, wire.sent)))
        tasks.add(asyncio.create_task(carry(there, writer, wire.received)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        if tasks:
            await asyncio.wait(tasks, timeout=10)
        await server.wait_closed()
