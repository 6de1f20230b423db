"""What outsiders and members that break the protocol can do to a node: cost it little, and nothing to its peers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import socket
from collections.abc import Coroutine, Sequence

import msgspec
import pytest
import zmq
from support.cluster_transports import QUICK, Node, nodes, until

from pyagent.core.errors import ClusterError, WireError
from pyagent.infrastructure.cluster import frames
from pyagent.infrastructure.cluster.frames import HELLO, Begin, Call, Cancel, Cast, Chunk, Credit, Item, Open, Ping
from pyagent.infrastructure.cluster.peer import Path, Peer
from pyagent.infrastructure.cluster.sockets import Connection
from pyagent.infrastructure.cluster.transport import Limits, Reply
from pyagent.infrastructure.wire.hello import Hello

encode = msgspec.msgpack.encode


def run(test: Coroutine[None, None, None]) -> None:
    """Run a test's coroutine; one that hangs is ended."""
    asyncio.run(asyncio.wait_for(test, 60))


async def echo(peer_id: str, payload: bytes, buffers: Sequence[memoryview]) -> Reply:
    return Reply(peer_id.encode() + b":" + payload, buffers)


def quick(**changes: float) -> Limits:
    """Return the tests' limits with changes."""
    return dataclasses.replace(QUICK, **changes)


class Client:
    """A ZMQ client of a node that sends what it likes."""

    def __init__(self, node: Node, public: str = "", secret: str = "", server_key: str = "") -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        if public:
            self.socket.curve_publickey, self.socket.curve_secretkey = public.encode(), secret.encode()
            self.socket.curve_serverkey = (server_key or node.public).encode()
        self.events = self.socket.get_monitor_socket()
        self.socket.connect(node.endpoints[0])

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.disable_monitor()
        self.socket.close(0)
        self.events.close(0)
        self.context.term()

    def send(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts, zmq.NOBLOCK)

    def hello(self, channel: frames.Channel = "calls") -> None:
        self.send(encode(HELLO))
        self.send(encode(Open(channel)))

    async def receive(self) -> bytes:
        """Return the next message."""
        await until(lambda: bool(self.socket.poll(0)))
        return self.socket.recv_multipart()[0]

    async def refusal(self) -> str:
        """Return why the node gives up the connection."""
        while True:
            message = msgspec.msgpack.decode(await self.receive())
            if message["type"] == "Refused":
                return str(message["reason"])

    async def event(self, *events: int) -> None:
        """Wait for one of these events of the connection."""
        while True:
            await until(lambda: bool(self.events.poll(0)))
            if int.from_bytes(self.events.recv_multipart()[0][:2], "little") in events:
                return


def member_of(node: Node, member_id: str = "member") -> Client:
    """Return the client of a member that a node lets in."""
    public, secret = zmq.curve_keypair()
    node.transport.allow(member_id, public.decode())
    return Client(node, public.decode(), secret.decode())


def test_outsider_is_not_heard() -> None:
    """Without an allowed key, the node's right key or any encryption, no message reaches a handler."""

    async def test() -> None:
        async with nodes() as (one, two):
            heard = list[bytes]()
            one.transport.handle("tell", lambda _peer, payload, _buffers: heard.append(payload))
            public, secret = (key.decode() for key in zmq.curve_keypair())
            failed = (
                zmq.EVENT_HANDSHAKE_FAILED_AUTH,
                zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
                zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
                zmq.EVENT_DISCONNECTED,
            )
            for keys in [(public, secret), (two.public, secret), (two.public, two.secret, public), ()]:
                with Client(one, *keys) as client:
                    client.hello()
                    client.send(encode(Cast("tell", b"outsider")))
                    await client.event(*failed)
            assert two.transport.cast(one.id, "tell", b"insider")
            await until(lambda: bool(heard))
            assert heard == [b"insider"]

    run(test())


def test_bytes_of_any_kind_leave_the_node_running() -> None:
    """Raw TCP with noise, half a greeting or an enormous length costs a connection, which the node closes."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)
    noise = random.Random(7)
    attacks = [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        greeting + b"\x06" + b"\xff" * 8,
        greeting + b"\x04\xc8\x05HELLO" + bytes(194),
        greeting.replace(b"CURVE", b"NULL\x00") + b"\x04\x1a\x05READY" + bytes(20),
        *[greeting[: noise.randrange(65)] + noise.randbytes(noise.randrange(2000)) for _ in range(20)],
    ]

    async def test() -> None:
        async with nodes(limits=quick(handshake_seconds=0.3)) as (one, two):
            one.transport.handle("echo", echo)
            port = int(one.endpoints[0].rpartition(":")[2])
            for attack in attacks:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(attack)
                with contextlib.suppress(ConnectionError):
                    while await reader.read(1000):
                        pass
                writer.close()
            assert (await two.transport.call(one.id, "echo", b"x", timeout=30)).payload == b"node1:x"

    run(test())


def test_idle_connections_are_bounded_and_let_a_peer_in() -> None:
    """Of 300 connections that say nothing the node keeps a few, and a peer that comes among them is connected."""

    async def test() -> None:
        one, two = Node("node0", Limits(max_guests=20)), Node("node1")
        idle = list[socket.socket]()
        try:
            await one.start()
            await two.start()
            port = int(one.endpoints[0].rpartition(":")[2])
            for number in range(300):
                connection = socket.create_connection(("127.0.0.1", port))
                connection.setblocking(False)
                idle.append(connection)
                if number == 150:
                    one.transport.allow(two.id, two.public)
                    two.meet(one)
            await until(lambda: (one.id, "up") in two.links)
            await until(lambda: sum(map(is_open, idle)) <= 20)
        finally:
            for connection in idle:
                connection.close()
            await one.transport.stop()
            await two.transport.stop()

    run(test())


def is_open(connection: socket.socket) -> bool:
    """Return whether the other end holds a connection."""
    try:
        while data := connection.recv(1000):
            assert data
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


LONG = encode(Call(1, "echo", 5.0))
ATTACKS = {
    "no message": [(b"\xc1",)],
    "no hello": [],
    "second hello": [(encode(HELLO),)],
    "deep nesting": [(b"\x91" * 100_000,)],
    "unknown message": [(encode({"type": "Evil\n\x1b[2J" * 100}),)],
    "wrong types": [(encode({"type": "Call", "id": "x", "method": 3, "seconds": []}),)],
    "long header": [(encode(Cast("echo", bytes(300_000))),)],
    "many buffers": [(encode(Cast("echo")), *[b""] * 80)],
    "same id": [(encode(Call(5, "slow", 9.0)),), (encode(Call(5, "slow", 9.0)),)],
    "older id": [(encode(Call(5, "echo", 9.0)),), (encode(Call(4, "echo", 9.0)),)],
    "negative credit": [(encode(Credit(1, -5)),)],
    "short cast announced": [(encode(Begin(1, encode(Cast("echo")), (1 << 20,))),)],
    "no sizes": [(encode(Begin(1, LONG, ())),)],
    "negative size": [(encode(Begin(1, LONG, (-1, 5))),)],
    "many sizes": [(encode(Begin(1, LONG, (1,) * 80)),)],
    "same transfer": [(encode(Begin(1, LONG, (5,))),), (encode(Begin(1, LONG, (5,))),)],
    "many transfers": [(encode(Begin(number, LONG, (5,))),) for number in range(100)],
    "chunk out of order": [(encode(Begin(1, LONG, (50,))),), (encode(Chunk(1, 7)), b"x")],
    "chunk twice": [(encode(Begin(1, LONG, (50,))),), (encode(Chunk(1, 0)), b"x"), (encode(Chunk(1, 0)), b"x")],
    "empty chunk": [(encode(Begin(1, LONG, (50,))),), (encode(Chunk(1, 0)), b"")],
    "chunk too long": [(encode(Begin(1, LONG, (9, 9))),), (encode(Chunk(1, 0)), b"x" * 10)],
    "chunk without data": [(encode(Chunk(1, 0)),)],
}


@pytest.mark.parametrize("name", ATTACKS)
def test_member_that_breaks_the_protocol_is_dropped_with_a_reason(name: str) -> None:
    """Each violation ends the connection it came on, with a reason; other peers notice nothing."""

    async def test() -> None:
        async with nodes(1) as (one,):
            one.transport.handle("echo", echo)
            one.transport.handle("slow", lambda *_: asyncio.sleep(30, Reply()))
            with member_of(one) as bad, member_of(one, "other") as good:
                good.hello()
                if name == "no hello":
                    bad.send(encode(Call(1, "echo", 5.0)))
                else:
                    bad.hello()
                for parts in ATTACKS[name]:
                    bad.send(*parts)
                reason = await bad.refusal()
                assert reason.isprintable()
                assert len(reason) <= 500
                await bad.event(zmq.EVENT_DISCONNECTED)
                good.send(encode(Call(1, "echo", 30.0, b"x")))
                while b"other:x" not in await good.receive():
                    pass

    run(test())


def test_harmless_oddities_of_a_member_are_passed_over() -> None:
    """What may be late or meant for something that is over ends nothing."""

    async def test() -> None:
        async with nodes(1) as (one,):
            one.transport.handle("echo", echo)
            with member_of(one) as member:
                member.hello()
                for message in [Cancel(7), Item(9, b"x"), Chunk(3, 0), Cast("nothing"), Ping(-1), Credit(4, 1)]:
                    member.send(encode(message), *[b"data"] * isinstance(message, Chunk))
                member.send(encode(Call(1, "echo", float("nan"), b"x")))
                while b"member:x" not in await member.receive():
                    pass

    run(test())


def test_refused_casts_are_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A member that sends casts which cannot be read is told of once, without a traceback, however many come."""

    async def test() -> None:
        async with nodes() as (one, two):
            heard = list[bytes]()

            def refuse(_peer_id: str, payload: bytes, _buffers: object) -> None:
                heard.append(payload)
                raise WireError("what is no load", peer="")

            two.transport.handle("load", refuse)
            for number in range(50):
                assert one.transport.cast(two.id, "load", b"%d" % number)
            await until(lambda: len(heard) == 50)
            [record] = [one for one in caplog.records if one.name.endswith("serving")]
            assert "node0" in record.getMessage()
            assert "what is no load" in record.getMessage()
            assert record.exc_info is None

    run(test())


def test_oversized_message_is_refused_before_it_is_sent() -> None:
    """A message longer than the receiver takes is refused by its announcement, and the connection stays."""

    async def test() -> None:
        async with nodes(limits=quick(max_message_bytes=1 << 20)) as (one, two):
            two.transport.handle("echo", echo)
            with pytest.raises(ClusterError, match="node1 refuses a message: it has 2000000 bytes"):
                await one.transport.call(two.id, "echo", b"", buffers=[bytes(2_000_000)], timeout=30)
            assert (await one.transport.call(two.id, "echo", b"x", timeout=30)).payload == b"node0:x"
            assert one.links[-1] == (two.id, "up")

    run(test())


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells how much a connection has received")
def test_message_without_end_is_noticed() -> None:
    """More bytes on a connection than one message can have, and no message: that is a message without an end."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as sender, listener.accept()[0] as receiver:
        path = Path(Peer("member", QUICK), lambda _: True, lambda *_: None, is_incoming=True)
        path.connection = Connection(receiver.fileno())

        def is_endless() -> bool:
            assert path.connection
            num_read = path.connection.num_read()
            assert num_read is not None
            return path.is_endless(num_read, 10_000)

        assert not is_endless()
        sender.sendall(bytes(12_000))
        receiver.recv(1, socket.MSG_PEEK)
        assert not is_endless(), "what ZMQ has not read yet may be of many messages"
        receiver.recv(12_000, socket.MSG_WAITALL)
        assert is_endless()
        path.num_messages += 1
        assert not is_endless()
        assert not is_endless()


def test_message_of_too_many_frames_is_cut_off() -> None:
    """A member that sends a message of thousands of frames is dropped, on the way or at its end."""

    async def test() -> None:
        async with nodes(1) as (one,):
            with member_of(one) as member:
                member.hello()
                member.send(*[bytes(10_000)] * 2_000)
                await member.event(zmq.EVENT_DISCONNECTED)

    run(test())


def test_revoked_node_is_out_at_once() -> None:
    """Its connections are closed, what it sends is not heard, and it is not let in again."""

    async def test() -> None:
        async with nodes() as (one, two):
            heard = list[str]()
            one.transport.handle("tell", lambda peer, _payload, _buffers: heard.append(peer))
            call = asyncio.create_task(one.transport.call(two.id, "none", b"", timeout=30))
            one.transport.revoke(two.id)
            two.transport.cast(one.id, "tell", b"x")
            with pytest.raises(ClusterError):
                await call
            assert one.links[-1] == (two.id, "down")
            await until(lambda: two.links[-1] == (one.id, "refused"))
            assert not two.transport.cast(one.id, "tell", b"x")
            with pytest.raises(ClusterError, match="node node0 "):
                await two.transport.call(one.id, "tell", b"x", timeout=30)
            assert heard == []

    run(test())


@pytest.mark.parametrize(
    "hello", [Hello("pyagent-cluster", "7-9"), Hello("pyagent-cluster", "x"), Hello("other", "1-1")]
)
def test_other_version_is_a_clear_error_at_both_ends(
    hello: Hello, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node of another version is refused with the versions that both understand, and its callers read them.

    Each log tells it once, however often it is tried again.
    """

    async def test() -> None:
        one, two = Node("one"), Node("two")
        try:
            await one.start()
            await two.start()
            two.transport.allow(one.id, one.public)
            monkeypatch.setattr("pyagent.infrastructure.cluster.dialer.HELLO", hello)
            one.meet(two)
            await until(lambda: one.links.count((two.id, "refused")) >= 2)
            with pytest.raises(ClusterError, match=r"expected|understands versions 7 to 9") as caught:
                await one.transport.call(two.id, "x", b"", timeout=30)
            assert "node two is not connected: " in str(caught.value)
            assert one.transport.stats()[two.id].failure in str(caught.value)
            for told in ("node two gives up the connection", "gives up a connection with node one"):
                assert sum(told in record.getMessage() for record in caplog.records) == 1
        finally:
            await one.transport.stop()
            await two.transport.stop()

    run(test())


def test_capture_shows_no_plain_text_and_cannot_be_replayed() -> None:
    """Bytes between two nodes hold neither payload nor method; sent again they reach no handler."""

    async def test() -> None:
        one, two = Node("one"), Node("two")
        captured, tasks = list[bytes](), set[asyncio.Task[None]]()
        heard = list[bytes]()

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65536):
                    captured.append(data)
                    writer.write(data)
            writer.close()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            tasks.add(asyncio.create_task(pass_on(far_reader, writer)))
            await pass_on(reader, far_writer)

        try:
            await one.start()
            await two.start()
            port = int(two.endpoints[0].rpartition(":")[2])
            two.transport.handle("method-of-mine", lambda _peer, payload, _buffers: heard.append(payload))
            two.transport.allow(one.id, one.public)
            async with await asyncio.start_server(accept, "127.0.0.1", 0) as proxy:
                endpoint = f"tcp://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
                one.transport.connect(two.id, two.public, [endpoint])
                await until(lambda: (two.id, "up") in one.links)
                assert one.transport.cast(two.id, "method-of-mine", b"a secret of the user" * 3)
                await until(lambda: bool(heard))
                await one.transport.stop()
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                for data in captured:
                    writer.write(data)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                writer.close()
            capture = b"".join(captured)
            for text in (b"a secret of", b"method-of-mine", one.secret.encode()):
                assert text not in capture
            assert len(capture) > 500
            await asyncio.gather(*tasks)
            assert len(heard) == 1
        finally:
            await one.transport.stop()
            await two.transport.stop()

    run(test())
