"""Nodes that are looked for and not met: `pyagent cluster status` and the log say why, once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

import pytest
from support.doors import Node as Doors
from support.nodes import Own, is_connected, join, running_node
from support.waiting import until

from pyagent.cli.cluster_members import write_status
from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster.frame_stream import MAX_FRAME_BYTES, FrameStream
from pyagent.infrastructure.cluster.handshake import HELLO, HELLOS
from pyagent.infrastructure.cluster.interface_check import check_door
from pyagent.infrastructure.cluster.invitation import MAX_TRIES
from pyagent.infrastructure.cluster.join import Newcomer, ask_to_join
from pyagent.infrastructure.cluster.keys import NodeKeys
from pyagent.infrastructure.cluster.told_once import ToldOnce
from pyagent.infrastructure.wire.codec import with_length
from pyagent.infrastructure.wire.hello import Hello

OLD = with_length(HELLOS.encode(Hello(HELLO.protocol, "0")))


@contextlib.asynccontextmanager
async def saying(words: bytes, port: int = 0) -> AsyncGenerator[int]:
    """A server that says some bytes to whoever comes; its port."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(words)
                await writer.drain()
                await reader.read()
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(talk, "127.0.0.1", port) as server:
        yield server.sockets[0].getsockname()[1]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_node_of_another_release_is_named_by_status_and_once_by_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever updated one machine of two reads on both what to do, however often the nodes try again."""

    async def work() -> None:
        async with saying(OLD) as port:
            join(tmp_path / "a", None)
            async with running_node(tmp_path / "a", [Own("one")], seeds=[f"127.0.0.1:{port}"]) as node:
                await until(lambda: bool(node.status().unmet))
                node._discovery.renew()  # type: ignore[union-attr] - as when the network changes: the next try comes at once
                await until(lambda: sum("another release" in one.getMessage() for one in caplog.records) >= 2)
                write_status(node.status())
        assert f"not met: 127.0.0.1:{port} runs another release of PyAgent (its door" in capsys.readouterr().out
        assert sum("run the same release on both" in one for one in told(caplog)) == 1

    caplog.set_level(logging.INFO)
    asyncio.run(work())


def test_seed_that_leads_nowhere_is_told_until_its_node_is_met(tmp_path: Path) -> None:
    """A mistyped seed is no silence: status names it, by name or address; a node that came is not among them."""

    async def work() -> None:
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
        join(tmp_path / "a", None)
        seeds = [f"127.0.0.1:{port}", "no-such-node.invalid"]
        async with running_node(tmp_path / "a", [Own("one")], seeds=seeds) as a:
            await until(lambda: len(a.status().unmet) == 2)
            assert f"127.0.0.1:{port} cannot be reached: Connection refused" in a.status().unmet
            assert any(line.startswith("no-such-node.invalid has no address now") for line in a.status().unmet)
            async with saying(OLD, port):
                a._discovery.renew()  # type: ignore[union-attr] - the next try comes at once
                await until(lambda: any("another release" in line for line in a.status().unmet))
            join(tmp_path / "b", a)
            async with running_node(tmp_path / "b", [Own("two")], port=port):
                a._discovery.renew()  # type: ignore[union-attr] - the next try comes at once
                await until(lambda: is_connected(a, 1) and len(a.status().unmet) == 1)
            await until(lambda: is_connected(a, 0))
            assert len(a.status().unmet) == 1

    asyncio.run(work())


def test_visitor_of_another_release_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The node that is knocked at says so too: the other one may be the older, which does not know how to."""

    async def work() -> None:
        node = Doors(tmp_path, "desk")
        node.cluster.init("home")
        await node.start()
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.door.port, limit=MAX_FRAME_BYTES)
            writer.write(OLD)
            assert await FrameStream(reader, writer, "desk").receive(HELLOS) == HELLO
            assert await reader.read() == b""
            writer.close()
        await node.door.stop()

    asyncio.run(work())
    assert sum("runs another release of PyAgent" in one for one in told(caplog)) == 1


@pytest.mark.parametrize("words", [b"SSH-2.0-OpenSSH_9.6\r\n", bytes(64), b"\0\0\0\1x"])
def test_port_of_another_program_is_told_as_one(words: bytes) -> None:
    """Whoever names a wrong port reads what to name, not how long an odd message is: to join, and by doctor."""

    async def work() -> None:
        async with saying(words) as port:
            me = Newcomer(NodeKeys.make().public, "laptop")
            with pytest.raises(ClusterError, match="what answers there is no node; other nodes knock at 8322"):
                await ask_to_join("127.0.0.1", port, "K7QF924XNM", me, timeout=60)
            found = await check_door("desk", "127.0.0.1", port)
            assert found.found == f"127.0.0.1:{port}: what answers there is no node"
            assert "8322" in found.advice

    asyncio.run(work())


def test_doctor_names_a_door_of_another_release() -> None:
    """An open door is not well where this node does not understand it."""

    async def work() -> None:
        async with saying(OLD) as port:
            found = await check_door("laptop", "127.0.0.1", port)
            assert (found.found, found.advice) == (
                f"127.0.0.1:{port} runs another release of PyAgent",
                "run the same release on both",
            )

    asyncio.run(work())


def test_same_is_told_again_only_later_and_little_is_held() -> None:
    """What goes on is told each ten minutes; ever new texts of a peer push the oldest out."""
    now = [0.0]
    once = ToldOnce(lambda: now[0])
    assert [once.is_new("a"), once.is_new("a"), once.is_new("b")] == [True, False, True]
    now[0] = 600.0
    assert once.is_new("a")
    for number in range(1000):
        assert once.is_new(number)
    assert once.is_new("a")
    assert len(once._told_at) <= 256


@contextlib.contextmanager
def unlockable(folder: Path) -> Generator[None]:
    """A folder in which no file can be changed."""
    (folder / ".lock").unlink()
    (folder / ".lock").mkdir()
    yield
    (folder / ".lock").rmdir()


@contextlib.contextmanager
def nearly_full(_: Path) -> Generator[None]:
    """A disk that has room for an invitation, and not for a cluster's file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("fault", [unlockable, nearly_full])
def test_inviting_node_with_a_fault_says_so_and_the_code_counts_on(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[Path], contextlib.AbstractContextManager[None]],
) -> None:
    """Where the inviting node cannot write, who joins is told to look there, its log says why, and no code is lost."""

    async def work() -> None:
        desk = Doors(tmp_path, "desk")
        desk.cluster.init("home")
        code = desk.invitations.make().code
        await desk.start()
        me = Newcomer(NodeKeys.make().public, "laptop")
        with fault(tmp_path):
            for _ in range(MAX_TRIES + 1):
                with pytest.raises(ClusterError, match="has a fault that its log names"):
                    await ask_to_join("127.0.0.1", desk.door.port, code, me, timeout=60)
        assert await ask_to_join("127.0.0.1", desk.door.port, code, me, timeout=60)
        await desk.door.stop()

    asyncio.run(work())
    assert sum("cannot be written" in one for one in told(caplog)) == 1


def test_node_whose_file_is_put_back_goes_on_to_knock(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cluster's file that was away for a moment is told, and ends no search for other nodes."""

    async def work() -> None:
        async with saying(OLD) as port:
            join(tmp_path / "a", None)
            async with running_node(tmp_path / "a", [Own("one")], seeds=[f"127.0.0.1:{port}"]) as a:
                file, kept = a.cluster.file, a.cluster.file.read_bytes()
                await until(lambda: bool(a.status().unmet))
                file.unlink()
                a._discovery.renew()  # type: ignore[union-attr] - the next try comes at once
                await until(lambda: any("this node is in no cluster" in one for one in told(caplog)))
                file.write_bytes(kept)
                file.chmod(0o600)
                join(tmp_path / "b", a)
                seeds = [f"127.0.0.1:{a.door_port}"]
                async with running_node(tmp_path / "b", [Own("two")], seeds=seeds):
                    await until(lambda: is_connected(a, 1))
                num_knocks = len(caplog.records)
                a._discovery.renew()  # type: ignore[union-attr] - the next try comes at once
                await until(lambda: any("another release" in one.getMessage() for one in caplog.records[num_knocks:]))

    caplog.set_level(logging.INFO)
    asyncio.run(work())
    assert "a task of the node failed" not in caplog.text
