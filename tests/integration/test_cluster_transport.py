"""Two nodes on loopback call, stream and tell each other things, encrypted, and survive each other's end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path

import pytest
import zmq
from support.cluster_transports import Node, nodes, until

from pyagent.core.errors import CapacityError, ClusterError, DeadlineError, RequestError
from pyagent.infrastructure.cluster.transport import Limits, Reply


def run(test: Coroutine[None, None, None]) -> None:
    """Run a test's coroutine; one that hangs is ended."""
    asyncio.run(asyncio.wait_for(test, 60))


async def echo(peer_id: str, payload: bytes, buffers: Sequence[memoryview]) -> Reply:
    return Reply(peer_id.encode() + b":" + payload, buffers)


def test_call_returns_what_the_peer_s_handler_answers_and_names_the_caller() -> None:
    """A handler sees the caller's id, payload and buffers, and its answer comes back."""

    async def test() -> None:
        async with nodes() as (one, two):
            two.transport.handle("echo", echo)
            reply = await one.transport.call(two.id, "echo", b"hello", buffers=[b"ab", bytearray(b"")], timeout=30)
            assert (reply.payload, [bytes(one) for one in reply.buffers]) == (b"node0:hello", [b"ab", b""])
            assert one.transport.stats()[two.id].messages_sent >= 2
            await until(lambda: one.transport.stats()[two.id].round_trip_seconds is not None)

    run(test())


def test_call_carries_long_messages_in_chunks_beside_small_ones() -> None:
    """Buffers of many chunks arrive whole, in both directions, and small calls pass them."""

    async def test() -> None:
        limits = Limits(chunk_bytes=10_000, inline_bytes=1_000, window_bytes=30_000, first_pause_seconds=0.01)
        async with nodes(limits=limits) as (one, two):
            two.transport.handle("echo", echo)
            tensor = bytes(range(256)) * 4000
            buffers = [tensor, b"", b"x", tensor[:10_000]]
            long = asyncio.create_task(one.transport.call(two.id, "echo", b"p" * 2000, buffers=buffers, timeout=50))
            order = list[str]()
            long.add_done_callback(lambda _: order.append("long"))
            await one.transport.call(two.id, "echo", b"", timeout=50)
            order.append("small")
            reply = await long
            assert reply.payload == b"node0:" + b"p" * 2000
            assert [bytes(one) for one in reply.buffers] == buffers
            assert order == ["small", "long"]

    run(test())


def test_errors_of_a_handler_are_the_caller_s_with_their_facts() -> None:
    """An error of `core.errors` arrives as itself; a foreign one, and a method that is not there, say who failed."""

    async def refuse(_peer: str, _payload: bytes, _buffers: Sequence[memoryview]) -> Reply:
        raise RequestError("no such thing", param="model")

    async def crash(_peer: str, _payload: bytes, _buffers: Sequence[memoryview]) -> Reply:
        raise KeyError("x" * 300_000)

    async def test() -> None:
        async with nodes() as (one, two):
            two.transport.handle("refuse", refuse)
            two.transport.handle("crash", crash)
            with pytest.raises(RequestError, match="no such thing") as caught:
                await one.transport.call(two.id, "refuse", b"", timeout=30)
            assert caught.value.param == "model"
            with pytest.raises(Exception, match="node1 failed: KeyError"):
                await one.transport.call(two.id, "crash", b"", timeout=30)
            with pytest.raises(ClusterError, match="node node1 has no method 'nothing'"):
                await one.transport.call(two.id, "nothing", b"", timeout=30)
            with pytest.raises(ClusterError, match="has no method 'nothing'"):
                await one.transport.call(two.id, "nothing", bytes(100_000), timeout=30)
            with pytest.raises(ClusterError, match="node far is not a peer"):
                await one.transport.call("far", "echo", b"", timeout=30)

    run(test())


class Slow:
    """A handler that never answers, and counts how often it began and was cancelled."""

    num_begun = num_cancelled = 0

    async def __call__(self, _peer: str, _payload: bytes, _buffers: Sequence[memoryview]) -> Reply:
        self.num_begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.num_cancelled += 1
        return Reply()


def test_deadline_and_cancellation_of_a_call_reach_its_handler() -> None:
    """A caller that gives up, by its deadline or because it is cancelled, cancels the handler."""

    async def test() -> None:
        async with nodes() as (one, two):
            slow = Slow()
            two.transport.handle("slow", slow)
            with pytest.raises(DeadlineError, match="node1 did not answer 'slow' within 0"):
                await one.transport.call(two.id, "slow", b"", timeout=0.05)
            call = asyncio.create_task(one.transport.call(two.id, "slow", b"", timeout=30))
            await until(lambda: slow.num_begun == 2)
            call.cancel()
            await until(lambda: slow.num_cancelled == 2)
            await until(lambda: two.transport.stats()[one.id].serving == 0)

    run(test())


def test_peer_takes_so_many_calls_at_a_time() -> None:
    """One call too many is refused with a time to try again, and serves nothing else worse."""

    async def test() -> None:
        async with nodes(limits=Limits(max_in_flight=3)) as (one, two):
            slow = Slow()
            two.transport.handle("slow", slow)
            calls = [asyncio.create_task(one.transport.call(two.id, "slow", b"", timeout=30)) for _ in range(3)]
            await until(lambda: slow.num_begun == 3)
            with pytest.raises(CapacityError, match="serves 3 calls"):
                await one.transport.call(two.id, "slow", b"", timeout=30)
            for call in calls:
                call.cancel()

    run(test())


def test_disconnecting_fails_what_waits() -> None:
    """What waits for a peer that this node gives up, a dead one perhaps, fails at once."""

    async def test() -> None:
        async with nodes() as (one, two):
            slow = Slow()
            two.transport.handle("slow", slow)
            call = asyncio.create_task(one.transport.call(two.id, "slow", b"", timeout=50))
            await until(lambda: slow.num_begun == 1)
            one.transport.disconnect(two.id)
            with pytest.raises(ClusterError, match="was lost"):
                await call
            await until(lambda: slow.num_cancelled == 1)

    run(test())


class Counting:
    """A handler that yields numbers without end, and counts them."""

    num_yielded = 0
    is_closed = False

    async def items(self, _peer: str, payload: bytes, _buffers: Sequence[memoryview]) -> AsyncIterator[Reply]:
        try:
            for number in range(int(payload)):
                self.num_yielded += 1
                yield Reply(b"%d" % number)
        finally:
            self.is_closed = True


def test_stream_yields_in_order_and_ends() -> None:
    """A stream longer than its window arrives whole and in order, long items too."""

    async def bulky(_peer: str, _payload: bytes, _buffers: Sequence[memoryview]) -> AsyncIterator[Reply]:
        for number in range(4):
            yield Reply(b"%d" % number, [bytes([number]) * 100_000])

    async def test() -> None:
        async with nodes() as (one, two):
            two.transport.handle("count", Counting().items)
            two.transport.handle("bulky", bulky)
            items = [int(item.payload) async for item in one.transport.stream(two.id, "count", b"200", timeout=30)]
            assert items == list(range(200))
            sizes = [
                (item.payload, len(bytes(item.buffers[0]))) async for item in one.transport.stream(two.id, "bulky", b"")
            ]
            assert sizes == [(b"%d" % number, 100_000) for number in range(4)]

    run(test())


def test_slow_reader_holds_up_its_own_stream_only() -> None:
    """A handler goes no further than the window beyond its reader, other calls pass, and closing cancels it."""

    async def test() -> None:
        async with nodes(limits=Limits(stream_window=4)) as (one, two):
            counting = Counting()
            two.transport.handle("count", counting.items)
            two.transport.handle("echo", echo)
            stream = one.transport.stream(two.id, "count", b"1000000")
            assert (await anext(stream)).payload == b"0"
            await until(lambda: counting.num_yielded == 5)
            await one.transport.call(two.id, "echo", b"", timeout=30)
            assert counting.num_yielded == 5
            await stream.aclose()
            await until(lambda: counting.is_closed)

    run(test())


def test_cast_arrives_or_says_that_it_cannot() -> None:
    """A cast is told without an answer; False when the peer is not connected."""

    async def test() -> None:
        async with nodes() as (one, two):
            told = list[tuple[str, bytes]]()
            two.transport.handle("tell", lambda peer_id, payload, _buffers: told.append((peer_id, payload)))
            assert one.transport.cast(two.id, "tell", b"x")
            await until(lambda: told == [("node0", b"x")])
            assert not one.transport.cast("far", "tell", b"x")
            await two.transport.stop()
            await until(lambda: (two.id, "down") in one.links)
            assert not one.transport.cast(two.id, "tell", b"x")

    run(test())


def test_lost_peer_fails_what_waits_for_it_and_is_found_again() -> None:
    """Calls and streams fail at once when the peer's connection drops; it is refused, then up again."""

    async def test() -> None:
        async with nodes() as (one, two):
            two.transport.handle("slow", Slow())
            call = asyncio.create_task(one.transport.call(two.id, "slow", b"", timeout=50))
            await until(lambda: one.transport.stats()[two.id].in_flight == 1)
            await two.transport.stop()
            with pytest.raises(ClusterError, match="connection with node node1 was lost"):
                await call
            await until(lambda: one.links[-1] == (two.id, "refused"))
            with pytest.raises(ClusterError, match="node1 is not connected"):
                await one.transport.call(two.id, "slow", b"", timeout=50)
            again = Node("node1")
            again.transport, again.public = type(two.transport)("node1", two.public, two.secret), two.public
            again.transport.handle("echo", echo)
            again.transport.allow(one.id, one.public)
            await again.transport.start(two.endpoints)
            try:
                await until(lambda: one.links[-1] == (two.id, "up"))
                assert (await one.transport.call(two.id, "echo", b"", timeout=30)).payload == b"node0:"
            finally:
                await again.transport.stop()

    run(test())


def test_caller_that_ends_cancels_its_handlers() -> None:
    """A node cancels what it does for a peer whose connection has ended."""

    async def test() -> None:
        async with nodes() as (one, two):
            slow = Slow()
            two.transport.handle("slow", slow)
            call = asyncio.create_task(one.transport.call(two.id, "slow", b"", timeout=50))
            await until(lambda: slow.num_begun == 1)
            await one.transport.stop()
            await until(lambda: slow.num_cancelled == 1)
            with pytest.raises(ClusterError):
                await call

    run(test())


def test_node_behind_a_firewall_is_called_on_the_connection_it_made() -> None:
    """A peer that cannot be connected to is called, and answers, over its own connection."""

    async def test() -> None:
        one, two = Node("inside"), Node("outside")
        try:
            await one.start()
            await two.start()
            two.transport.allow(one.id, one.public)
            one.meet(two)
            one.transport.handle("echo", echo)
            await until(lambda: (one.id, "up") in two.links)
            reply = await two.transport.call(one.id, "echo", b"x", buffers=[bytes(3_000_000)], timeout=30)
            assert len(bytes(reply.buffers[0])) == 3_000_000
        finally:
            await one.transport.stop()
            await two.transport.stop()

    run(test())


def test_address_that_the_machine_lacks_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """A node listens at the addresses that there are and tells of the others; without any it does not start."""
    missing = "tcp://192.0.2.55:0"

    async def test() -> None:
        node = Node("node0")
        try:
            await node.start([missing, "tcp://127.0.0.1:0"])
            [endpoint] = node.endpoints
            assert endpoint.startswith("tcp://127.0.0.1:")
        finally:
            await node.transport.stop()
        with pytest.raises(ClusterError, match="cannot listen at tcp://192"):
            await Node("node1").start([missing])

    run(test())
    assert f"cannot listen at {missing}" in caplog.text


def test_stop_leaves_nothing_behind() -> None:
    """Stopping twice, and being cancelled while stopping, ends every connection and thread of the transport."""

    async def test() -> None:
        one = Node("one")
        await one.start(["tcp://127.0.0.1:0", "tcp://[::1]:0"])
        assert one.endpoints[1].startswith("tcp://[::1]:")
        stopping = asyncio.create_task(one.transport.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        await one.transport.stop()

    run(test())


def test_connections_come_and_go_without_a_leak() -> None:
    """A peer that leaves and comes back costs no file descriptor."""

    async def come_and_go(num_times: int) -> None:
        async with nodes() as (one, two):
            two.transport.handle("echo", echo)
            for _ in range(num_times):
                one.transport.disconnect(two.id)
                one.meet(two)
                await one.transport.call(two.id, "echo", bytes(100_000), timeout=30)

    run(come_and_go(1))
    before = num_descriptors()
    run(come_and_go(12))
    assert num_descriptors() <= before


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


def test_last_words_of_a_connection_are_taken_while_others_are_read(caplog: pytest.LogCaptureFixture) -> None:
    """A connection that ends while its messages are being read: all of them count, and none begins a new connection."""

    async def work() -> None:
        async with nodes() as (one, two):
            heard: list[bytes] = []
            logged: list[str] = []  # until the last one: a ping after that, as nothing has ended, says no hello

            def hear(_peer_id: str, payload: bytes, _buffers: object) -> None:
                heard.append(payload)
                logged.append(caplog.text)
                if len(heard) == 1:
                    time.sleep(0.2)  # the others have arrived, and wait in the same queue
                    for fd in list(two.transport._listener._fd_to_route):
                        two.transport._listener._note_incoming(zmq.EVENT_DISCONNECTED, fd)

            two.transport.handle("tell", hear)
            routes = set(two.transport._listener.routes)
            for number in range(3):
                assert one.transport.cast(two.id, "tell", b"%d" % number)
            await until(lambda: len(heard) == 3)
            await until(lambda: not routes & set(two.transport._listener.routes))
            assert "no hello" not in logged[-1]

    run(work())
