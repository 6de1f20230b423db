"""A dialer goes on trying, whatever an attempt ends with."""

from __future__ import annotations

import asyncio
import errno

import zmq
from support.waiting import until

from pyagent.infrastructure.cluster.dialer import Dialer
from pyagent.infrastructure.cluster.frames import Channel, Limits
from pyagent.infrastructure.cluster.peer import Path, Peer

ENDPOINTS = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]


def test_node_without_descriptors_tries_again_until_it_has_some() -> None:
    """No socket can be opened for a while: that is an attempt that failed, of each endpoint, and is told as such."""
    told = list[tuple[Path | None, str]]()
    num_opened = 0

    def open_socket(_peer: Peer, _channel: Channel) -> zmq.Socket[bytes]:
        nonlocal num_opened
        num_opened += 1
        raise zmq.ZMQError(errno.EMFILE)

    async def work() -> None:
        peer = Peer("node1", Limits(first_pause_seconds=0.01, longest_pause_seconds=0.02))
        dialer = Dialer(
            peer, "calls", open_socket, lambda _path, _frames: None, lambda _, path, why: told.append((path, why))
        )
        dialer.dial(ENDPOINTS)
        await asyncio.wait_for(dialer.first_outcome(), 5)
        await until(lambda: num_opened >= 6)
        dialer.close()
        after = num_opened
        await asyncio.sleep(0.1)
        assert num_opened == after

    asyncio.run(work())
    assert len(told) >= 3
    assert all(path is None and "this node cannot open a socket" in why for path, why in told)
