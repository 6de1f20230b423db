"""Membership under any order, duplication and loss of messages, and its messages as bytes."""

from __future__ import annotations

import random
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cluster_sim import Conditions, Simulation

from pyagent.core.cluster.events import (
    Advertise,
    Effect,
    Event,
    Met,
    Reachable,
    Received,
    Send,
    Tick,
    Unreachable,
    WakeAt,
)
from pyagent.core.cluster.member import MAX_ADVERT_BYTES, MAX_INCARNATION, Member
from pyagent.core.cluster.membership import Membership
from pyagent.core.cluster.messages import (
    MAX_MESSAGE_BYTES,
    Advert,
    Alive,
    Dead,
    Digest,
    Entry,
    Gossip,
    Left,
    Message,
    Ping,
    Pull,
    Push,
    Revocation,
    Suspect,
    Sync,
    Update,
)
from pyagent.core.errors import WireError
from pyagent.infrastructure.wire.codec import Codec

CODEC: Codec[Message] = Codec(Message, "a member", MAX_MESSAGE_BYTES)
NUM_NODES = 3
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["deliver", "deliver", "deliver", "wait", "long wait", "cut", "link", "restart"]),
        st.integers(0, 10_000),
        st.integers(0, 10_000),
    ),
    max_size=60,
)


class World:
    """A few memberships and all messages they ever sent, to be delivered in any order, often or never."""

    def __init__(self) -> None:
        self.now = 0.0
        self.boots = 0
        self.sent: list[tuple[int, str, Message]] = []
        self.wakes = [0.0] * NUM_NODES
        self.nodes = [self.boot(n) for n in range(NUM_NODES)]
        self.highest: dict[tuple[int, str], int] = {}
        for n in range(NUM_NODES):
            self.give(n, Tick())
            for other in range(NUM_NODES):
                if other != n:
                    self.give(n, Met(self.nodes[other].me))

    def boot(self, n: int) -> Membership:
        self.boots += 1
        return Membership(Member(f"n{n}", "", f"key {n}", ()), rng=random.Random(self.boots))

    def give(self, n: int, event: Event) -> None:
        for effect in self.nodes[n].handle(self.now, event):
            match effect:
                case Send(peer, message):
                    assert len(CODEC.encode(message)) <= MAX_MESSAGE_BYTES
                    self.sent.append((n, peer, message))
                case WakeAt(time):
                    self.wakes[n] = time
                case _:
                    pass
        for peer, view in self.nodes[n].members().items():
            key = self.nodes[n].me.boot, peer
            assert view.member.incarnation >= self.highest.get(key, 0), "an incarnation went down"
            self.highest[key] = view.member.incarnation

    def step(self, kind: str, a: int, b: int) -> None:
        n, other = a % NUM_NODES, b % NUM_NODES
        if kind == "deliver" and self.sent:
            sender, peer, message = self.sent[-1 - a % min(len(self.sent), 200)]
            self.give(int(peer[1:]), Received(f"n{sender}", message))
        elif kind.endswith("wait"):
            self.now += (a % 100) / (10 if kind == "long wait" else 1000)
            self.tick()
        elif kind == "cut" and n != other:
            self.give(n, Unreachable(f"n{other}"))
        elif kind == "link" and n != other:
            self.give(n, Reachable(f"n{other}"))
        elif kind == "restart" and a % 4 == 0:
            self.nodes[n] = self.boot(n)
            self.give(n, Tick())

    def tick(self) -> None:
        for n in range(NUM_NODES):
            if self.wakes[n] <= self.now:
                self.give(n, Tick())

    def let_flow(self, seconds: float) -> None:
        """Connect all, and deliver everything at once from now on, until all agree."""
        self.sent.clear()
        for n in range(NUM_NODES):
            for other in range(NUM_NODES):
                if other != n:
                    self.give(n, Met(self.nodes[other].me))
                    self.give(n, Reachable(f"n{other}"))
        end = self.now + seconds
        while self.now < end and not self.agree():
            while self.sent:
                sender, peer, message = self.sent.pop(0)
                self.give(int(peer[1:]), Received(f"n{sender}", message))
            self.now = max(self.now + 0.001, min(self.wakes))
            self.tick()

    def agree(self) -> bool:
        tables = [node.members() for node in self.nodes]
        return all(
            set(table) == {f"n{n}" for n in range(NUM_NODES)}
            and all(view.state == "alive" for view in table.values())
            and all(table[node.me.id].member == node.me for node in self.nodes)
            for table in tables
        )


@given(steps=STEPS)
@settings(max_examples=40, deadline=None)
def test_live_nodes_agree_once_messages_flow(steps: list[tuple[str, int, int]]) -> None:
    """After any order, duplication and loss, with breaks and restarts, incarnations only rose and all agree again."""
    world = World()
    for step in steps:
        world.step(*step)
    world.let_flow(30.0)
    assert world.agree()


names = st.text("abcdef", min_size=1, max_size=3)
small = st.integers(0, 3)
claims = st.one_of(
    st.builds(Alive, st.builds(Member, names, names, names, st.just(()), small, names, small)),
    st.builds(Suspect, names, small, names, st.booleans()),
    st.builds(Advert, names, small, small, st.binary(max_size=8)),
)


@given(message=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(message: bytes) -> None:
    """Whatever bytes come, decoding ends in a message or in the wire's error."""
    try:
        decoded = CODEC.decode(message)
    except WireError:
        return
    assert isinstance(decoded, get_args(Message))


@given(updates=st.lists(claims, max_size=20), sender=names, is_push=st.booleans())
def test_any_claims_leave_a_sound_table(updates: list[Alive | Suspect | Advert], sender: str, is_push: bool) -> None:
    """Claims of all kinds about known and unknown nodes, oneself included, never raise nor remove oneself."""
    one = Membership(Member("a", "", "a", ()), rng=random.Random(1))
    one.handle(0.0, Tick())
    message = Push(tuple(updates)) if is_push else Gossip(tuple(updates))
    for n in range(3):
        effects = one.handle(n / 10, Received(sender, message))
        for effect in effects:
            if isinstance(effect, Send):
                CODEC.decode(CODEC.encode(effect.message))
    assert one.members()["a"].state == "alive"
    live = sum(view.is_live for view in one.members().values())
    assert live == one._claims.roster.num_live == 1 + len(one._claims.order)


wide = st.sampled_from(["x", "y" * 13, "\U0001f600" * 64, "z" * 64])
"""Ids as short and as long as a message may have them."""
crowds = st.tuples(wide, st.integers(0, 1_200), st.sampled_from(["alive", "dead", "advert", "revoked", "gone"]))


def _told(prefix: str, number: int, kind: str) -> list[Update]:
    name = f"{number:04}{prefix}"[:64]
    alive = Alive(Member(name, "\U0001f600" * 128, "k" * 64, ("tcp://h:1",), MAX_INCARNATION, "v" * 64, (1 << 62) - 1))
    return {
        "alive": [alive],
        "dead": [alive, Dead(name, MAX_INCARNATION)],
        "advert": [alive, Advert(name, (1 << 62) - 1, (1 << 62) - 1, bytes(MAX_ADVERT_BYTES))],
        "revoked": [alive, Revocation(name, "k" * 64, bytes(64))],
        "gone": [Revocation(name, f"{number % 40}", bytes(64))],
    }[kind]


@given(crowd=st.lists(crowds, min_size=1, max_size=3), stranger=st.booleans())
@settings(max_examples=6, deadline=None)
def test_no_state_makes_a_message_that_others_refuse(crowd: list[tuple[str, int, str]], stranger: bool) -> None:
    """Whatever members told, in ids of any length and number, each message that follows from it can be read."""
    one = Membership(Member("a", "", "a", ()), rng=random.Random(1))
    other = Membership(Member("b", "", "b", ()), rng=random.Random(2))
    one.handle(0.0, Tick())
    other.handle(0.0, Tick())
    one.handle(0.0, Met(other.me))
    for prefix, num_ids, kind in crowd:
        told = [update for number in range(num_ids) for update in _told(prefix, number, kind)]
        for start in range(0, len(told), 6):
            _check_sent(one.handle(0.1, Received("b", Gossip(tuple(told[start : start + 6])))))
    for n in range(3):
        _check_sent(one.handle(1.0 + n, Tick()))
    _check_sent(one.handle(4.5, Reachable("b")))
    shown = _check_sent(one.handle(5.0, Received("x" if stranger else "b", Sync(1))))
    assert any(isinstance(message, Digest) for message in shown)
    for message in shown:
        for answer in _check_sent(other.handle(5.1, Received("a", message))):
            for back in _check_sent(one.handle(5.2, Received("b", answer))):
                _check_sent(other.handle(5.3, Received("a", back)))
    assert other.members().keys() >= {name for name, view in one.members().items() if view.is_live}
    assert other.revoked() <= one.revoked()


def _check_sent(effects: list[Effect]) -> list[Message]:
    sent = [effect.message for effect in effects if isinstance(effect, Send)]
    for message in sent:
        assert CODEC.decode(CODEC.encode(message)) == message
    return sent


def test_message_with_news_of_its_own_takes_no_more_than_it_may() -> None:
    """Where more updates wait than a message may have, one that has something to say besides still can be read."""
    one = Membership(Member("a", "", "a", ()), rng=random.Random(1))
    one.handle(0.0, Tick())
    one.handle(0.0, Met(Member("b", "", "b", ())))
    names = [f"{n}" for n in range(1_100)]
    for start in range(0, 1_100, 550):
        told = [Alive(Member(name, "", name, ())) for name in names[start : start + 550]]
        one.handle(0.1, Received("b", Push(tuple(told))))
        one.handle(0.1, Received("b", Gossip(tuple(Left(name, 0) for name in names[start : start + 550]))))
    [sync] = _check_sent(one.handle(0.1, Reachable("b")))
    assert isinstance(sync, Sync)
    assert len(sync.updates) == 1_024


def test_digest_of_a_liar_is_answered_within_bounds() -> None:
    """A digest as full of strange ids as it can be leads to a question that can be sent."""
    one = Membership(Member("a", "", "a", ()), rng=random.Random(1))
    one.handle(0.0, Tick())
    entries = tuple(Entry(f"{n:x}", 0, 0, 0, 0) for n in range(1_024))
    lie = Digest("", "", entries, tuple(f"r{n:x}" for n in range(1_024)))
    assert len(CODEC.encode(lie)) < MAX_MESSAGE_BYTES
    [pull] = [message for message in _check_sent(one.handle(0.1, Received("liar", lie))) if isinstance(message, Pull)]
    assert len(pull.ids) == 1_024


@pytest.mark.parametrize(
    "message",
    [
        Ping(-1),
        Gossip((Advert("a", 1, 1, bytes(MAX_ADVERT_BYTES + 1)),)),
        Gossip((Alive(Member("a" * 65, "", "", ())),)),
        Gossip((Alive(Member("a", "", "", ("ipc:///tmp/socket",))),)),
        Gossip((Alive(Member("a", "", "", ("tcp://h:1",) * 17)),)),
        Gossip((Suspect("a", 1 << 62, "b"),)),
        Gossip((Suspect("a", 0, "b"),) * 1025),
        Digest("", "", (Entry("a", 0, 4, 0, 0),)),
    ],
)
def test_hostile_sizes_are_refused(message: Message) -> None:
    """What is beyond a bound ends at the decoder."""
    with pytest.raises(WireError):
        CODEC.decode(msgspec.msgpack.encode(message))


def test_large_tables_and_adverts_stay_within_a_message() -> None:
    """A newcomer gets 300 members with long adverts in messages that each are within the bound."""
    longest = 0
    sim = Simulation(2, conditions=Conditions())
    host, newcomer = sim.nodes["node0000"], sim.nodes["node0001"]
    crowd = [Member(f"crowd{n:03}", "x" * 100, "k" * 40, ("tcp://[fd00::1]:7000",) * 8, boot=1) for n in range(300)]
    for member in crowd:
        sim.give(host, Met(member))
    adverts = tuple(Advert(member.id, 1, 1, bytes(MAX_ADVERT_BYTES)) for member in crowd)
    for n in range(0, 300, 6):
        sim.give(host, Received("crowd000", Gossip(adverts[n : n + 6])))
    sim.give(host, Advertise(b"host"))

    def measure(_: object, effect: object) -> None:
        nonlocal longest
        if isinstance(effect, Send):
            longest = max(longest, len(CODEC.encode(effect.message)))

    sim.on_effect = measure
    sim.join(newcomer, host)
    sim.run(0.4)
    views = newcomer.membership.members()
    assert sum(len(view.advert) == MAX_ADVERT_BYTES for view in views.values()) == 300
    assert MAX_MESSAGE_BYTES / 2 < longest <= MAX_MESSAGE_BYTES
