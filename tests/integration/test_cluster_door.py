"""The door of a node: who is let in, who is not, and what an outsider costs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import struct
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from support.doors import PATIENT, Node, copy_cluster, some_id, tapped
from support.waiting import until

from pyagent.core.cluster.cluster_state import EpochSecret
from pyagent.core.cluster.messages import MAX_REVOKED, Revocation
from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster.cluster_file import ClusterFile
from pyagent.infrastructure.cluster.door import Door, is_door
from pyagent.infrastructure.cluster.handshake import HELLO, HELLOS
from pyagent.infrastructure.cluster.keys import NodeKeys
from pyagent.infrastructure.cluster.revocations import revocation_by
from pyagent.infrastructure.cluster.visitors import DoorLimits, Visitors
from pyagent.infrastructure.wire.codec import with_length

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextlib.asynccontextmanager
async def two_nodes(folder: Path, **options: object) -> AsyncGenerator[tuple[Node, Node]]:
    """Two nodes of one cluster; both doors are open."""
    one, two = Node(folder / "one", "desk", **options), Node(folder / "two", "laptop")  # type: ignore[arg-type]
    one.cluster.init("home")
    copy_cluster(one, two)
    await one.start()
    await two.start()
    try:
        yield one, two
    finally:
        await one.door.stop()
        await two.door.stop()


async def test_door_lets_members_meet(tmp_path: Path) -> None:
    """Two nodes that know the secret learn each other's id, key, name and endpoints, as seen from there."""
    async with two_nodes(tmp_path) as (one, two):
        one.endpoint = "tcp://0.0.0.0:5001"
        two.endpoint = "tcp://[::1]:5002"
        met = await two.knock(one)
        assert (met.node_id, met.public, met.name) == (one.keys.node_id, one.keys.public, "desk")
        assert met.endpoints == ("tcp://127.0.0.1:5001",)
        assert met.door == ("127.0.0.1", one.door.port)
        (seen,) = one.met
        assert (seen.node_id, seen.public, seen.name) == (two.keys.node_id, two.keys.public, "laptop")
        assert seen.endpoints == ("tcp://[::1]:5002",)
        assert seen.door == ("127.0.0.1", two.door.port)
        assert not met.is_behind
        assert not seen.is_behind
        assert one.cluster.load().is_member(two.keys.node_id, two.keys.public)
        assert two.cluster.load().is_member(one.keys.node_id, one.keys.public)


async def test_door_listens_on_what_there_is(tmp_path: Path) -> None:
    """A host that the machine lacks is left out where another can be listened on; a taken port is named."""
    node = Node(tmp_path / "one", "desk")
    port = await node.door.start(["192.0.2.1", "127.0.0.1"], 0)
    other = Node(tmp_path / "two", "laptop")
    with pytest.raises(ClusterError, match=f"port {port}, where other nodes knock, is in use"):
        await other.door.start("127.0.0.1", port)
    await node.door.stop()
    await node.door.stop()


async def test_door_is_told_from_other_programs(tmp_path: Path) -> None:
    """A door is known by its hello; a port where nothing listens, or another program, is none."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        writer.close()

    async with two_nodes(tmp_path) as (one, _):
        assert await is_door("127.0.0.1", one.door.port, timeout=60)
    other = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    assert not await is_door("127.0.0.1", port, timeout=60)
    other.close()
    await other.wait_closed()
    assert not await is_door("127.0.0.1", port, timeout=60)


async def test_door_refuses_another_secret(tmp_path: Path) -> None:
    """A node of the cluster's name that does not know its secret is refused, whichever epoch it claims."""
    async with two_nodes(tmp_path) as (one, two):
        state = two.cluster.load()
        wrong = msgspec.structs.replace(state, secrets=(EpochSecret(1, secrets.token_bytes(32)),))
        two.cluster.file.unlink()
        two.cluster.join(wrong)
        with pytest.raises(ClusterError, match=r"refused this node.*secret that it knows is not the cluster's"):
            await two.knock(one)
        assert one.met == []
        assert one.cluster.load().members == {}


async def test_door_refuses_a_claimed_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that overheard an epoch's name, and so is answered, fails at the proof, as does a door that claims it."""
    async with two_nodes(tmp_path) as (one, two):
        overheard = one.cluster.load().current.tag
        state = two.cluster.load()
        wrong = msgspec.structs.replace(state, secrets=(EpochSecret(1, b"wrong" + bytes(27)),))
        two.cluster.file.unlink()
        two.cluster.join(wrong)
        monkeypatch.setattr(EpochSecret, "tag", property(lambda _: overheard))
        with pytest.raises(ClusterError, match="refused this node"):
            await two.knock(one)
        with pytest.raises(ClusterError, match="refused this node"):
            await one.knock(two)
        assert (one.met, two.met) == ([], [])


async def test_door_of_another_cluster_is_named(tmp_path: Path) -> None:
    """Knocking at another cluster's door says so; it learns no more than that cluster's public tag."""
    async with two_nodes(tmp_path) as (one, two):
        two.cluster.file.unlink()
        two.cluster.init("office")
        async with tapped(one.door.port) as wire:
            with pytest.raises(ClusterError, match="is the door of another cluster than 'office'"):
                await two.door.knock("127.0.0.1", wire.port, timeout=60)
        assert one.keys.node_id.encode() not in wire.received
        assert one.keys.public.encode() not in wire.received


async def test_door_of_another_version_is_named(tmp_path: Path) -> None:
    """Two releases that do not understand each other both say which versions they speak."""
    async with two_nodes(tmp_path) as (one, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", one.door.port)
        writer.write(with_length(HELLOS.encode(type(HELLO)("pyagent-door", "99"))))
        (length,) = struct.unpack("!I", await reader.readexactly(4))
        assert HELLOS.decode(await reader.readexactly(length)) == HELLO
        assert await reader.read() == b""
        writer.close()


async def test_knock_names_what_is_no_door(tmp_path: Path) -> None:
    """A closed port, a program that is not PyAgent and one that never answers each end in an error that says so."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    node = Node(tmp_path, "desk")
    node.cluster.init("home")
    silent = socket.create_server(("127.0.0.1", 0))
    port = silent.getsockname()[1]
    with pytest.raises(ClusterError, match=r"did not answer within 0\.05 s"):
        await node.door.knock("127.0.0.1", port, timeout=0.05)
    silent.close()
    with pytest.raises(ClusterError, match="cannot be reached"):
        await node.door.knock("127.0.0.1", port, timeout=60)
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    with pytest.raises(ClusterError, match="is no door that this node understands"):
        await node.door.knock("127.0.0.1", server.sockets[0].getsockname()[1], timeout=60)
    server.close()
    await server.wait_closed()


async def test_knock_at_the_own_door_is_told(tmp_path: Path) -> None:
    """A node that finds its own door is told by its own id, and meets nobody."""
    async with two_nodes(tmp_path) as (one, _):
        with pytest.raises(ClusterError, match="own door") as caught:
            await one.knock(one)
        assert caught.value.peer == one.keys.node_id
        assert one.met == []


async def test_door_notices_its_own_keys_elsewhere(tmp_path: Path) -> None:
    """A cloned disk, whose node has the same keys, is told apart from the node itself; both agree on which changes."""
    told: dict[str, list[bool]] = {"one": [], "clone": []}
    one = Node(tmp_path / "one", "desk")
    one.cluster.init("home")
    endpoints = ["tcp://127.0.0.1:1"]
    here = Door(one.keys, one.cluster, lambda: endpoints, one.met.append, on_twin=told["one"].append, limits=PATIENT)
    clone = Door(one.keys, one.cluster, lambda: endpoints, one.met.append, on_twin=told["clone"].append)
    port = await here.start("127.0.0.1", 0)
    with pytest.raises(ClusterError, match="has this node's own keys"):
        await clone.knock("127.0.0.1", port, timeout=60)
    await until(lambda: bool(told["one"]))
    await here.stop()
    assert sorted(told["one"] + told["clone"]) == [False, True]
    assert one.met == []


async def test_door_is_no_twin_without_the_key(tmp_path: Path) -> None:
    """Who only claims a node's key has it take no new one: neither by knocking there nor by being knocked at."""
    told: list[bool] = []
    async with two_nodes(tmp_path) as (one, two):
        await one.door.stop()
        endpoints = ["tcp://127.0.0.1:1"]
        one.door = Door(one.keys, one.cluster, lambda: endpoints, one.met.append, on_twin=told.append, limits=PATIENT)
        claimed = NodeKeys(one.keys.node_id, one.keys.public, two.keys.secret)
        liar = Door(claimed, two.cluster, lambda: endpoints, two.met.append, limits=PATIENT)
        with pytest.raises(ClusterError):
            await liar.knock("127.0.0.1", await one.start(), timeout=60)
        with pytest.raises(ClusterError):
            await one.door.knock("127.0.0.1", await liar.start("127.0.0.1", 0), timeout=60)
        await liar.stop()
    assert told == []


async def test_door_refuses_the_revoked(tmp_path: Path) -> None:
    """A revoked node is refused as soon as the command line has written it, and a new key does not help it."""
    async with two_nodes(tmp_path) as (one, two):
        await two.knock(one)
        told = revocation_by(one.keys, one.cluster.load().cluster_id, two.keys.node_id)
        ClusterFile(one.folder).revoke(told)  # another process
        with pytest.raises(ClusterError, match=f"this node was revoked, by node {one.keys.node_id}"):
            await two.knock(one)
        assert ClusterFile(two.folder).load().own_revocation == told
        with pytest.raises(ClusterError, match="is revoked; it is not let in"):
            await one.knock(two)
        (two.folder / "node.json").unlink()
        two.keys = NodeKeys.make()
        await two.door.stop()
        two.open_door()
        with pytest.raises(ClusterError, match="refused this node"):
            await two.knock(one)
        assert len(one.met) == 1


async def test_door_refuses_the_revoked_that_knows_the_secret(tmp_path: Path) -> None:
    """A node that is revoked and not yet without the current secret, as gossip tells of it first, is refused too."""
    async with two_nodes(tmp_path) as (one, two):
        await two.knock(one)
        one.cluster.merge(revoked=[Revocation(two.keys.node_id, one.keys.public, b"of another word")])
        assert one.cluster.load().current == two.cluster.load().current
        with pytest.raises(ClusterError, match="refused this node: it is revoked"):
            await two.knock(one)
        assert two.cluster.load().own_revocation is None  # nobody signed it
        with pytest.raises(ClusterError, match="is revoked; it is not let in"):
            await one.knock(two)
        assert len(one.met) == 1


async def test_door_lets_in_a_member_that_was_away(tmp_path: Path) -> None:
    """A member that missed new epochs is let in by its known key and the old secret, and is said to be behind."""
    async with two_nodes(tmp_path) as (one, two):
        await two.knock(one)
        one.cluster.rotate()
        one.cluster.rotate()
        met = await two.knock(one)
        assert not met.is_behind
        assert one.met[-1].is_behind
        assert (await one.knock(two)).is_behind
        two.cluster.merge(one.cluster.load().secrets)
        await two.knock(one)
        assert not one.met[-1].is_behind


async def test_door_of_a_full_list_takes_no_old_secret(tmp_path: Path) -> None:
    """Where the list cannot remember who is revoked, only who knows the current secret comes in: nobody slips back."""
    async with two_nodes(tmp_path) as (one, two):
        await two.knock(one)
        state = one.cluster.load()
        full = {name: Revocation(name, one.keys.public) for name in map(some_id, range(MAX_REVOKED))}
        one.cluster.file.unlink()
        one.cluster.join(msgspec.structs.replace(state, revoked=full))
        assert len((await two.knock(one)).node_id) == 13
        one.cluster.revoke(revocation_by(one.keys, state.cluster_id, two.keys.node_id))
        assert one.cluster.load().epoch == 2
        with pytest.raises(ClusterError, match="refused this node"):
            await two.knock(one)
        one.cluster.add_member(two.keys.node_id, two.keys.public, "by hearsay")
        with pytest.raises(ClusterError, match="refused this node"):
            await two.knock(one)
        two.cluster.merge(one.cluster.load().secrets)
        await two.knock(one)


async def test_door_refuses_a_stolen_old_secret(tmp_path: Path) -> None:
    """An old secret alone opens nothing: the key must be a member's, and who claims a member's key must have it."""
    async with two_nodes(tmp_path) as (one, two):
        await two.knock(one)
        thief = Node(tmp_path / "thief", "thief")
        copy_cluster(one, thief)
        one.cluster.rotate()
        with pytest.raises(ClusterError, match="refused this node"):
            await thief.knock(one)
        claimed = NodeKeys(two.keys.node_id, two.keys.public, thief.keys.secret)
        impostor = Door(claimed, thief.cluster, lambda: ["tcp://127.0.0.1:1"], thief.met.append)
        with pytest.raises(ClusterError, match="refused this node"):
            await impostor.knock("127.0.0.1", one.door.port, timeout=60)
        assert len(one.met) == 1


async def test_door_refuses_a_replay(tmp_path: Path) -> None:
    """What a member said once opens the door to nobody else: the door's nonce is another each time."""
    async with two_nodes(tmp_path) as (one, two):
        async with tapped(one.door.port) as wire:
            await two.door.knock("127.0.0.1", wire.port, timeout=60)
        reader, writer = await asyncio.open_connection("127.0.0.1", one.door.port)
        writer.write(bytes(wire.sent))
        answer = await reader.read()
        assert b"Refused" in answer
        assert b"Proof" not in answer
        assert len(one.met) == 1
        writer.close()


async def test_door_tells_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the wire nor the log holds the cluster's secret or a node's secret key, whole or in part."""
    caplog.set_level(logging.DEBUG)
    async with two_nodes(tmp_path) as (one, two):
        async with tapped(one.door.port) as wire:
            await two.door.knock("127.0.0.1", wire.port, timeout=60)
            with contextlib.suppress(ClusterError):
                one.cluster.revoke(Revocation(two.keys.node_id))
                await two.door.knock("127.0.0.1", wire.port, timeout=60)
        hidden = [one.cluster.load().current.secret, two.cluster.load().current.secret]
        hidden += [one.keys.secret.encode(), two.keys.secret.encode()]
        said = bytes(wire.sent + wire.received) + caplog.text.encode()
        for secret in hidden:
            assert not any(secret[i : i + 8] in said for i in range(len(secret) - 8))


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff\xff\xff",
        struct.pack("!I", 4097) + bytes(4097),
        struct.pack("!I", 0),
        struct.pack("!I", 20) + b"\xdd\xff\xff\xff\xff" + bytes(15),
        b"GET / HTTP/1.1\r\n\r\n",
        with_length(HELLOS.encode(HELLO)) + with_length(b"\x80"),
        with_length(HELLOS.encode(HELLO)) + struct.pack("!I", 5000),
    ],
)
async def test_door_hangs_up_on_what_it_cannot_read(tmp_path: Path, sent: bytes) -> None:
    """Frames that are too long or no messages end the connection at once, and the door goes on."""
    async with two_nodes(tmp_path) as (one, two):
        reader, writer = await asyncio.open_connection("127.0.0.1", one.door.port)
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        await two.knock(one)


async def test_door_hangs_up_on_the_slow(tmp_path: Path) -> None:
    """A visitor that dribbles bytes is hung up on when the handshake as a whole takes too long."""
    async with two_nodes(tmp_path, limits=DoorLimits(seconds=0.05)) as (one, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", one.door.port)
        writer.write(with_length(HELLOS.encode(HELLO))[:5])
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("turns", range(5))
async def test_door_that_stops_drops_whom_it_just_accepted(tmp_path: Path, turns: int) -> None:
    """A connection that comes while the door stops is closed, whatever part of it the event loop had done."""
    node = Node(tmp_path / "one", "desk")
    node.cluster.init("home")
    await node.start()
    with socket.create_connection(("127.0.0.1", node.door.port)) as knocking:
        for _ in range(turns):
            await asyncio.sleep(0)
        await node.door.stop()
        knocking.setblocking(False)
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                assert not await asyncio.get_running_loop().sock_recv(knocking, 1)


async def test_door_is_open_beside_idle_connections(tmp_path: Path) -> None:
    """Two hundred connections that say nothing keep no node out, and the door holds a few of them only."""
    limits = DoorLimits(seconds=60, num_open=32, num_open_per_address=16, per_second=1000)
    async with two_nodes(tmp_path, limits=limits) as (one, two):
        idle = [await asyncio.open_connection("127.0.0.1", one.door.port) for _ in range(100)]
        for number in range(100):
            source = (f"127.0.1.{number % 50 + 1}", 0)
            idle.append(await asyncio.open_connection("127.0.0.1", one.door.port, local_addr=source))
        await two.knock(one)
        assert len(one.met) == 1
        for _, writer in idle:
            writer.transport.abort()


def test_visitors_are_bounded_in_all_and_for_each_address() -> None:
    """The door holds so many connections; the oldest of the address that holds most gives way."""
    left: list[str] = []
    visitors = Visitors(DoorLimits(num_open=4, num_open_per_address=3, per_second=100))

    def enter(host: str, name: str) -> bool:
        return visitors.enter(host, lambda: left.append(name), 0.0) is not None

    assert all([enter("192.0.2.1", "a1"), enter("192.0.2.1", "a2"), enter("192.0.2.1", "a3")])
    assert enter("192.0.2.1", "a4")
    assert left == ["a1"]
    assert enter("2001:db8::1", "b1")
    assert enter("2001:db8::2", "b2")
    assert left == ["a1", "a2"]
    assert len(visitors) == 4


def test_visitors_that_come_too_often_are_turned_away() -> None:
    """An address has so many connections a second, a /64 of IPv6 counting as one, and gets more as time passes."""
    visitors = Visitors(DoorLimits(num_open=100, num_open_per_address=100, per_second=2))

    def enter(host: str, now: float) -> bool:
        return visitors.enter(host, lambda: None, now) is not None

    assert [enter("2001:db8::1", 0), enter("2001:db8::2", 0), enter("2001:db8::3", 0)] == [True, True, False]
    assert enter("2001:db8:0:1::1", 0)
    assert enter("::ffff:192.0.2.1", 0)
    assert enter("192.0.2.1", 0)
    assert not enter("192.0.2.1", 0)
    assert enter("2001:db8::4", 0.6)
