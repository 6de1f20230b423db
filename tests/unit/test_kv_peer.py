"""What is known of moving KV with a peer: measured values hold for a while, and waiting for it is bounded by them."""

from __future__ import annotations

from support.waiting import Clock

from pyagent.core.backends import Backend
from pyagent.core.cluster.kv_peer import RATE_SECONDS, UNMEASURED_SECONDS, KvPeer
from pyagent.core.cluster.peers import Peer
from pyagent.testing import EchoBackend


def test_rate_holds_for_a_while() -> None:
    """Moves take what the last ones took, the newest most, and each other's time; later nothing is known any more."""
    clock = Clock()
    peer = KvPeer(clock)
    assert peer.move_seconds(1000) is None
    peer.note_move(1000, 1.0)
    assert peer.move_seconds(500) == 0.5
    peer.num_loading = 1
    assert peer.move_seconds(500) == 1.0
    peer.num_loading = 0
    peer.note_move(1000, 11.0)
    assert peer.move_seconds(500) == 2.0
    clock.now += RATE_SECONDS - 1
    assert peer.move_seconds(500) == 2.0
    peer.note_move(1000, 4.0)
    clock.now += RATE_SECONDS - 1
    assert peer.move_seconds(500) == 2.0
    clock.now += 1
    assert peer.move_seconds(500) is None
    peer.note_move(1000, 1.0)
    assert peer.move_seconds(500) == 0.5, "what was measured long ago has no part in it"


def test_move_that_brings_nothing_tells_how_long_it_was_waited_for() -> None:
    """A peer that sent nothing for long is slow; of one that was broken off at once nothing is learnt."""
    peer = KvPeer(Clock())
    peer.note_move(0, 0.5)
    assert peer.move_seconds(1) is None
    peer.note_move(0, 5.0)
    assert peer.move_seconds(1) == 5.0
    assert not peer.is_worth_asking(60.0, 100, 0.0)


def test_waiting_for_a_prefill_node_is_bounded_by_computing_and_the_move() -> None:
    """A prompt is waited for as long as computing it here takes, and its move; unmeasured, a few seconds."""
    peer = KvPeer(Clock())
    assert peer.prefill_seconds(None, 1000, 9.0) == UNMEASURED_SECONDS
    assert peer.prefill_seconds(8.0, 1000, 0.5) == 9.0
    peer.note_move(1000, 2.0)
    assert peer.prefill_seconds(8.0, 1000, 0.5) == 11.0
    assert peer.is_worth_asking(3.1, 1000, 0.5)
    assert not peer.is_worth_asking(2.9, 1000, 0.5)
    assert peer.is_worth_asking(None, 1000, 9.0)


def test_peer_that_starts_anew_is_measured_anew() -> None:
    """What it was late with before its connection stood says nothing of it."""
    backend: Backend = EchoBackend()
    peer = Peer(id="id", called="n", backend=backend)
    peer.kv.note_move(1, 100.0)
    permit = peer.kv.prefill.acquire()
    assert permit is not None
    peer.kv.prefill.fail(permit, "late")
    peer.kv.prefill.release(permit)
    assert peer.kv.prefill.acquire() is None
    peer.connected()
    assert peer.kv.move_seconds(1) is None
    assert peer.kv.prefill.acquire() is not None
