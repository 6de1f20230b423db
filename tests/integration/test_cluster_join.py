"""Joining by a short code: what each end learns, and what ends a code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from rich.pretty import pretty_repr
from support.doors import Node, Wire, tapped
from support.waiting import until

from pyagent.core.cluster.join_code import ALPHABET, code_from, read_code, written
from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster import join_search
from pyagent.infrastructure.cluster.cluster_file import leave
from pyagent.infrastructure.cluster.discovery import Discovery
from pyagent.infrastructure.cluster.handshake import HELLO, HELLOS
from pyagent.infrastructure.cluster.invitation import MAX_TRIES, VALID_SECONDS, InvitationFile
from pyagent.infrastructure.cluster.join import (
    _NEWCOMERS,
    _OPENINGS,
    Handover,
    JoinOpening,
    Newcomer,
    RevokedKeyError,
    ask_to_join,
)
from pyagent.infrastructure.cluster.keys import NodeKeys, load_or_make_keys
from pyagent.infrastructure.cluster.revocations import revocation_by
from pyagent.infrastructure.wire.codec import with_length

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextlib.asynccontextmanager
async def inviting(folder: Path) -> AsyncGenerator[tuple[Node, Node, str]]:
    """A node with an open invitation, one that is in no cluster, and the code."""
    one, two = Node(folder / "one", "desk"), Node(folder / "two", "laptop")
    one.cluster.init("home")
    code = one.invitations.make().code
    await one.start()
    try:
        yield one, two, code
    finally:
        await one.door.stop()


async def ask(one: Node, two: Node, code: str, wire: Wire | None = None) -> Handover | None:
    me = Newcomer(two.keys.public, two.name)
    return await ask_to_join("127.0.0.1", wire.port if wire else one.door.port, code, me, timeout=60)


def another(code: str) -> str:
    """A code that begins like this one, and is not it."""
    last = ALPHABET[(ALPHABET.index(code[-1]) + 1) % len(ALPHABET)]
    return code[:-1] + last


@pytest.mark.parametrize("typed", ["K7Q-F92-4XNM", "k7qf924xnm", " k7q f92 4xnm ", "K7QF-924X-NM"])
def test_code_is_read_as_people_type_it(typed: str) -> None:
    """Case, dashes and spaces do not matter."""
    assert read_code(typed) == "K7QF924XNM"
    assert written("K7QF924XNM") == "K7Q-F92-4XNM"


def test_code_has_no_look_alikes() -> None:
    """Letters that look like digits are read as those."""
    assert read_code("oil-OIL-0000") == "0110110000"
    for typed in ("", "K7Q-F92", "K7Q-F92-4XNU", "K7Q-F92-4XNMM", "ⅠⅠⅠ-ⅠⅠⅠ-ⅠⅠⅠⅠ"):
        with pytest.raises(ClusterError, match="expected a join code"):
            read_code(typed)
    assert code_from(bytes(range(250, 260 - 4)) + bytes(4)) != code_from(bytes(10))


async def test_join_hands_over_the_cluster(tmp_path: Path) -> None:
    """With the code a node gets the cluster's secret, and then passes the door as any member."""
    async with inviting(tmp_path) as (one, two, code):
        handover = await ask(one, two, code)
        assert handover is not None
        two.cluster.join(handover.state())
        assert two.cluster.load().current == one.cluster.load().current
        assert two.cluster.load().is_member(one.keys.node_id, one.keys.public)
        assert one.cluster.load().is_member(two.keys.node_id, two.keys.public)
        assert (await two.knock(one)).node_id == one.keys.node_id
        assert one.invitations.outcome() == "used"


async def test_join_code_is_used_once(tmp_path: Path) -> None:
    """A used code opens nothing, and a new one replaces it."""
    async with inviting(tmp_path) as (one, two, code):
        assert await ask(one, two, code)
        assert await ask(one, two, code) is None
        assert await ask(one, two, one.invitations.make().code)


async def test_join_code_ends_after_three_wrong_tries(tmp_path: Path) -> None:
    """Three wrong tries end a code, at once or one after another: the right one then opens nothing."""
    async with inviting(tmp_path) as (one, two, code):
        for _ in range(MAX_TRIES):
            with pytest.raises(ClusterError, match="join code is wrong"):
                await ask(one, two, another(code))
        assert one.invitations.outcome() == "tried out"
        assert await ask(one, two, code) is None
        assert one.cluster.load().members == {}


async def test_join_tries_at_once_count_each(tmp_path: Path) -> None:
    """Many connections at once give no more tries than three."""
    async with inviting(tmp_path) as (one, two, code):
        wrong = [ask(one, two, another(code)) for _ in range(8)]
        results = await asyncio.gather(*wrong, return_exceptions=True)
        assert not any(isinstance(result, Handover) for result in results)
        invitation = one.invitations.find()
        assert invitation is not None
        assert invitation.num_tries <= MAX_TRIES


async def test_join_code_expires(tmp_path: Path) -> None:
    """After ten minutes a code opens nothing, nor when the clock was set back."""
    async with inviting(tmp_path) as (one, two, _):
        now = [1_000.0]
        one.invitations = InvitationFile(one.folder, clock=lambda: now[0])
        code = one.invitations.make().code
        assert one.invitations.outcome() == "open"
        now[0] += VALID_SECONDS
        assert one.invitations.outcome() == "expired"
        now[0] = 999.0
        assert one.invitations.outcome() == "expired"
        # The door's own clock is the system's, for which the code is from 1970.
        assert await ask(one, two, code) is None


async def test_join_with_another_hint_costs_no_try(tmp_path: Path) -> None:
    """A code for another node's invitation is answered without counting as a try: doors are asked one after another."""
    async with inviting(tmp_path) as (one, two, code):
        other = ALPHABET[(ALPHABET.index(code[0]) + 1) % len(ALPHABET)] + code[1:]
        assert await ask(one, two, other) is None
        invitation = one.invitations.find()
        assert invitation is not None
        assert invitation.num_tries == 0


async def test_join_tells_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the wire nor the log holds the code, the cluster's secret or its id."""
    caplog.set_level(logging.DEBUG)
    async with inviting(tmp_path) as (one, two, code):
        async with tapped(one.door.port) as wire:
            assert await ask(one, two, code, wire)
        said = bytes(wire.sent + wire.received) + caplog.text.encode()
        state = one.cluster.load()
        for secret in (code.encode(), state.current.secret, state.cluster_id.encode(), two.keys.public.encode()):
            assert secret not in said
        assert not any(state.current.secret[i : i + 8] in said for i in range(24))
        assert code not in repr(one.invitations.find())
        assert code not in pretty_repr(one.invitations.find())


async def test_join_refuses_a_door_that_does_not_know_the_code(tmp_path: Path) -> None:
    """A door that pretends to have the invitation learns nothing of the code, and hands over nothing."""
    async with inviting(tmp_path) as (_, two, code):
        pretender = Node(tmp_path / "pretender", "trap")
        pretender.cluster.init("trap")
        invitation = pretender.invitations.make()
        (pretender.folder / "invitation.json").write_bytes(
            (pretender.folder / "invitation.json")
            .read_bytes()
            .replace(invitation.code.encode(), another(code).encode())
        )
        await pretender.start()
        with pytest.raises(ClusterError, match="join code is wrong"):
            await ask(pretender, two, code)
        assert not two.cluster.exists()
        await pretender.door.stop()


async def test_join_refuses_a_changed_message(tmp_path: Path) -> None:
    """A middle that changes any byte of the exchange ends it: nothing is handed over."""
    async with inviting(tmp_path) as (one, two, code):

        async def change(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, at: int) -> None:
            num = 0
            with contextlib.suppress(OSError):
                while data := bytearray(await reader.read(65_536)):
                    if num <= at < num + len(data):
                        data[at - num] ^= 1
                    num += len(data)
                    writer.write(data)
            writer.close()

        for at in (60, 100):  # in the SPAKE2 message, in the proof

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, at: int = at) -> None:
                there, back = await asyncio.open_connection("127.0.0.1", one.door.port)
                await asyncio.gather(change(reader, back, at), change(there, writer, -1))

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            with pytest.raises(ClusterError):
                await ask(one, two, code, Wire(port=server.sockets[0].getsockname()[1]))
            server.close()
            await server.wait_closed()
        assert one.cluster.load().members == {}


async def test_join_exchange_that_is_broken_off_counts(tmp_path: Path) -> None:
    """A visitor that hangs up in the middle has used a try all the same: it can make the node compute three times."""
    async with inviting(tmp_path) as (one, two, code):
        for _ in range(MAX_TRIES):
            reader, writer = await asyncio.open_connection("127.0.0.1", one.door.port)
            message = HELLOS.encode(HELLO), _OPENINGS.encode(JoinOpening(code[:2], b"A" + bytes(32)))
            writer.write(b"".join(map(with_length, message)))
            await reader.read()
            writer.close()
        assert one.invitations.outcome() == "tried out"
        assert await ask(one, two, code) is None


async def test_join_of_a_revoked_node_is_refused(tmp_path: Path) -> None:
    """A revoked node is told so before its code is tried; by a new key, the same code lets it in."""
    async with inviting(tmp_path) as (one, two, code):
        one.cluster.add_member(two.keys.node_id, two.keys.public, "laptop")
        one.cluster.revoke(revocation_by(one.keys, one.cluster.load().cluster_id, two.keys.node_id))
        for _ in range(MAX_TRIES + 1):
            with pytest.raises(RevokedKeyError, match=r"revoked there.*pyagent cluster leave"):
                await ask(one, two, code)
        invitation = one.invitations.find_open()
        assert invitation is not None
        assert invitation.num_tries == 0
        assert leave(two.folder)
        two.keys = load_or_make_keys(two.folder)
        assert await ask(one, two, code)


async def test_join_that_hides_a_revoked_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revoked node that claims to be another until its code was tried gets nothing for it."""
    async with inviting(tmp_path) as (one, two, code):
        one.cluster.add_member(two.keys.node_id, two.keys.public, "laptop")
        one.cluster.revoke(revocation_by(one.keys, one.cluster.load().cluster_id, two.keys.node_id))
        me = Newcomer(NodeKeys.make().public, "laptop")
        said = msgspec.msgpack.encode(Newcomer(two.keys.public, "laptop"))
        monkeypatch.setattr(_NEWCOMERS, "encode", lambda _: said)
        with pytest.raises(ClusterError, match="ended the exchange"):
            await ask_to_join("127.0.0.1", one.door.port, code, me, timeout=60)
        assert one.invitations.outcome() == "open"


async def test_join_at_the_port_for_clients_says_which_port_is_meant() -> None:
    """Whoever names the HTTP port instead of the door's is told so, not of a message of 1,213,486,160 bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    me = Newcomer(NodeKeys.make().public, "laptop")
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ClusterError, match=r"it answers HTTP: that port is for clients; .* at 8322"):
            await ask_to_join("127.0.0.1", port, "K7QF924XNM", me, timeout=60)


async def test_join_where_nothing_listens_says_so_in_the_systems_words() -> None:
    """A refused connection is called that, without its address a second time."""
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
    me = Newcomer(NodeKeys.make().public, "laptop")
    with pytest.raises(ClusterError, match=rf"^127\.0\.0\.1:{port} cannot be reached: Connection refused$"):
        await ask_to_join("127.0.0.1", port, "K7QF924XNM", me, timeout=60)


async def test_join_with_a_text_that_is_no_key_is_refused(tmp_path: Path) -> None:
    """Whoever has the code cannot leave a member in the file whose key no transport takes."""
    async with inviting(tmp_path) as (one, _, code):
        me = Newcomer(NodeKeys.make().public, "laptop")
        msgspec.structs.force_setattr(me, "public", " " * 40)
        with pytest.raises(ClusterError, match="ended the exchange"):
            await ask_to_join("127.0.0.1", one.door.port, code, me, timeout=60)
        assert one.cluster.load().members == {}


async def test_search_tells_where_it_looks_and_what_else_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join that finds no door with its code tells, again and again, which were asked, and then of `--at`."""
    monkeypatch.setattr(join_search, "_TELL_SECONDS", 0.01)
    told: list[str] = []
    async with inviting(tmp_path) as (one, two, code):
        discovery = Discovery(None, None, 0, seeds=[f"127.0.0.1:{one.door.port}"], multicast=False)
        me, first = Newcomer(two.keys.public, two.name), ALPHABET[(ALPHABET.index(code[0]) + 1) % len(ALPHABET)]
        search = join_search.find_and_join(discovery, first + code[1:], me, 600, told.append)
        asking = asyncio.ensure_future(search)
        await until(lambda: any("--at HOST" in one for one in told) and len(told) > 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert f"asked 127.0.0.1:{one.door.port}: no open invitation for this code" in told
        assert len(told) == len(set(told))
    assert code not in " ".join(told)
