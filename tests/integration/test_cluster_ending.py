"""Ending a node, or a command of the cluster, at any moment: nothing stays open, nothing hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
from support import doors
from support.cluster_transports import nodes
from support.command_line import fresh_environment, started
from support.nodes import running_node
from support.server import Model
from support.waiting import until

from pyagent.cli.event_loop import run_to_end
from pyagent.core.chain import Chain
from pyagent.core.cluster.join_code import code_from, written
from pyagent.core.errors import ClusterError
from pyagent.core.settings import Cluster
from pyagent.infrastructure.cluster.cluster_file import ClusterFile, cluster_folder
from pyagent.infrastructure.cluster.invitation import InvitationFile
from pyagent.infrastructure.cluster.node import Node

LIMIT_SECONDS = 90.0


def num_sockets() -> int:
    """How many sockets, and queues of events, this process has open."""
    num_open = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            num_open += os.readlink(f"/proc/self/fd/{fd}").startswith(("socket:", "anon_inode:"))
    return num_open


def test_node_that_is_ended_while_it_starts_leaves_nothing_open(tmp_path: Path) -> None:
    """Cancelled after any number of turns of its loop, a start closes all sockets and tasks, and can be made again."""

    async def work() -> None:
        door = doors.Node(tmp_path / "a", "a")
        state = door.cluster.init("home")
        ClusterFile(tmp_path / "b").join(state)
        seeds = [f"127.0.0.1:{await door.start()}"]
        settings = Cluster(bind=["127.0.0.1"], port=0, seeds=seeds, multicast=False, name="b")
        num_before, num_tasks = num_sockets(), len(asyncio.all_tasks())
        for num_turns in (0, 1, 2, 4, 8, 16, 32, 64, 128):
            node = Node(tmp_path / "b", settings, Chain([Model([])]))
            starting = asyncio.create_task(node.start())
            for _ in range(num_turns):
                await asyncio.sleep(0)
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            await node.stop()
            await until(lambda: len(asyncio.all_tasks()) <= num_tasks and num_sockets() <= num_before)
        async with running_node(tmp_path / "b", [Model([])], seeds=seeds) as b:
            await until(lambda: [met.node_id for met in door.met][-1:] == [b.keys.node_id])
        await door.door.stop()

    asyncio.run(work())


def test_node_that_is_ended_in_a_transfer_leaves_nothing_open() -> None:
    """In the middle of a long message, a stop ends the call with an error and closes what it used."""

    async def work() -> None:
        async with nodes() as (one, two):
            two.transport.handle("keep", lambda *_: None)
            tensor = [bytes(256 << 20)]
            call = asyncio.create_task(one.transport.call(two.id, "keep", b"", buffers=tensor, timeout=3600))
            await until(lambda: one.transport.stats()[two.id].bytes_sent > 1 << 20)
            await two.transport.stop()
            with pytest.raises(ClusterError, match="lost"):
                await call

    asyncio.run(work())  # pyzmq keeps a context of its own for buffers that it sends without a copy
    num_before = num_sockets()
    asyncio.run(work())
    assert num_sockets() <= num_before


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_join_is_ended_by_a_signal_in_the_exchange(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    """While the other end says nothing, Ctrl+C and SIGTERM end the command at once, each with its code."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        silent.settimeout(LIMIT_SECONDS)
        code_and_place = written(code_from(bytes(10))), "--at", f"127.0.0.1:{silent.getsockname()[1]}"
        process = started("cluster", "join", *code_and_place, env=fresh_environment(tmp_path))
        with silent.accept()[0] as connection:
            connection.settimeout(LIMIT_SECONDS)
            assert connection.recv(1)
            process.send_signal(sent)
            _, told = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == code
    assert "Traceback" not in told


def test_invitation_is_withdrawn_at_sigterm(tmp_path: Path) -> None:
    """A code of a command that was told to end opens no door later."""
    env = fresh_environment(tmp_path) | {"PYAGENT_CLUSTER__MULTICAST": "false", "PYAGENT_CLUSTER__PORT": "0"}
    folder = cluster_folder(tmp_path / "data")
    ClusterFile(folder).init("home")
    process = started("cluster", "invite", env=env)
    assert process.stdout
    while InvitationFile(folder).outcome() != "open":
        assert process.stdout.readline(), process.communicate()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 143
    assert InvitationFile(folder).outcome() == "none"


def test_node_s_loop_is_one_that_watches_sockets() -> None:
    """Whatever the policy makes, as Windows' makes a loop that watches none, a node's command runs on a selector."""

    class Proactor(asyncio.SelectorEventLoop):
        """What stands for Windows' loop."""

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            return Proactor()

    async def loop() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    asyncio.set_event_loop_policy(Policy())
    try:
        assert run_to_end(loop()) is Proactor
        assert run_to_end(loop(), watches_sockets=True) is asyncio.SelectorEventLoop
    finally:
        asyncio.set_event_loop_policy(None)


def test_sigterm_cancels_the_work_and_is_put_back() -> None:
    """What a command opened is closed before it ends with 143; afterwards the signal is the process's own again."""
    closed = threading.Event()

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(LIMIT_SECONDS)
        finally:
            closed.set()

    with pytest.raises(SystemExit) as ended:
        run_to_end(work())
    assert ended.value.code == 143
    assert closed.is_set()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
