"""The door against bytes that nobody should send: it hangs up and goes on, whatever they are."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.doors import Node, copy_cluster, tapped

from pyagent.core.errors import ClusterError, WireError
from pyagent.infrastructure.cluster.door import _OPENINGS
from pyagent.infrastructure.cluster.handshake import ANSWERS, HELLOS, PROOFS
from pyagent.infrastructure.cluster.join import _ANSWERS, _HANDOVERS, _NEWCOMERS, _SEALED
from pyagent.infrastructure.cluster.visitors import DoorLimits

CODECS = (HELLOS, _OPENINGS, ANSWERS, PROOFS, _ANSWERS, _SEALED, _NEWCOMERS, _HANDOVERS)


@given(st.binary(max_size=200))
def test_messages_of_the_door_are_read_or_refused(frame: bytes) -> None:
    """Any frame is a message or a `WireError`, in every place of the protocol."""
    for codec in CODECS:
        with contextlib.suppress(WireError):
            codec.decode(frame)


async def _visit(port: int, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(OSError):
        writer.write(sent)
        writer.write_eof()
        await reader.read()
    writer.close()


def test_door_goes_on_after_changed_conversations(tmp_path: Path) -> None:
    """A recorded knock, cut or with any byte changed, lets nobody in, and a member is let in after all of them."""
    asyncio.run(_fuzz(tmp_path))


async def _fuzz(folder: Path) -> None:
    limits = DoorLimits(seconds=60, per_second=1e6)
    one, two = Node(folder / "one", "desk", limits=limits), Node(folder / "two", "laptop")
    one.cluster.init("home")
    copy_cluster(one, two)
    await one.start()
    async with tapped(one.door.port) as wire:
        await two.door.knock("127.0.0.1", wire.port, timeout=60)
    sent = bytes(wire.sent)
    for batch in _changed(sent, 60):
        await asyncio.gather(*(_visit(one.door.port, changed) for changed in batch))
    assert len(one.met) == 1
    await two.knock(one)
    assert len(one.met) == 2
    await one.door.stop()
    await two.door.stop()


def _changed(sent: bytes, count: int) -> list[list[bytes]]:
    """So many variants of what was sent, a few at a time: one byte changed, or cut there."""
    step = max(1, len(sent) // count)
    variants: list[bytes] = []
    for at in range(0, len(sent), step):
        variants.append(sent[:at] + bytes([sent[at] ^ 0x41]) + sent[at + 1 :])
        variants.append(sent[:at])
    return [variants[start : start + 10] for start in range(0, len(variants), 10)]


def test_knock_ends_in_an_error_whatever_the_door_answers(tmp_path: Path) -> None:
    """A door whose answer is cut or changed in any byte is not met, and the knock ends in a `ClusterError`."""
    asyncio.run(_knock_at_changed_doors(tmp_path))


async def _knock_at_changed_doors(folder: Path) -> None:
    limits = DoorLimits(seconds=60, per_second=1e6)
    one, two = Node(folder / "one", "desk", limits=limits), Node(folder / "two", "laptop")
    one.cluster.init("home")
    copy_cluster(one, two)
    await one.start()
    async with tapped(one.door.port) as wire:
        await two.door.knock("127.0.0.1", wire.port, timeout=60)
    at = [0]
    is_changing = [True]

    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.get_running_loop().create_task(change(reader, writer)))

    async def change(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", one.door.port)
        forth = asyncio.create_task(_carry(reader, back, None))
        await _carry(there, writer, at[0] if is_changing[0] else None)
        await forth

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for at[0] in [*range(20), *range(20, len(wire.received), 9), len(wire.received) - 1]:
        with pytest.raises(ClusterError):
            await two.door.knock("127.0.0.1", port, timeout=60)
    is_changing[0] = False
    assert (await two.door.knock("127.0.0.1", port, timeout=60)).node_id == one.keys.node_id
    server.close()
    await one.door.stop()
    await asyncio.wait(tasks)
    await server.wait_closed()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, at: int | None) -> None:
    """Carry bytes, the one at a position changed; a length that grew so far is not waited for."""
    num = 0
    with contextlib.suppress(OSError):
        while data := bytearray(await reader.read(65_536)):
            if at is not None and num <= at < num + len(data):
                data[at - num] ^= 0x41
            num += len(data)
            writer.write(data)
            if at is not None and num > at:
                writer.write_eof()
    writer.close()
