"""What becomes of a simulated cluster's members: found, suspected, dead, gone, back, or never let in again."""

from __future__ import annotations

import random
from functools import partial

import pytest
from support.cluster_sim import Conditions, Simulation, full_load

from pyagent.core.cluster.events import (
    Advertise,
    Changed,
    Duplicate,
    Meet,
    Met,
    Moved,
    Reachable,
    Received,
    Rejoin,
    Revoke,
    Revoked,
    Send,
    Tick,
    Unreachable,
    WakeAt,
)
from pyagent.core.cluster.member import MAX_ADVERT_BYTES, MAX_INCARNATION, Member
from pyagent.core.cluster.membership import Membership
from pyagent.core.cluster.messages import (
    MAX_REVOKED,
    Ack,
    Advert,
    Alive,
    Dead,
    Gossip,
    Left,
    Ping,
    Push,
    Revocation,
    Suspect,
    Sync,
)
from pyagent.core.cluster.revoked_list import MAX_UNKNOWN_OF_ONE
from pyagent.core.cluster.timing import Timing
from pyagent.core.errors import ClusterError


def member(name: str, **facts: object) -> Member:
    facts = {"key": f"key of {name}", "endpoints": ("tcp://127.0.0.1:7000",), "boot": 1, **facts}
    return Member(name, name, **facts)  # type: ignore[arg-type]


def membership(name: str = "me", timing: Timing | None = None, **facts: object) -> Membership:
    one = Membership(member(name, **facts), timing, random.Random(1))
    one.handle(0.0, Tick())
    return one


def joined(num_nodes: int, seed: int = 0, conditions: Conditions | None = None) -> Simulation:
    sim = Simulation(num_nodes, seed=seed, conditions=conditions or Conditions())
    sim.join_all()
    sim.until(sim.all_agree, 10)
    sim.run(1 + sim.rng.random())
    return sim


def test_nodes_that_meet_one_seed_all_know_each_other() -> None:
    """Eight nodes that knocked at one door know all others a fifth of a second later."""
    sim = Simulation(8)
    sim.join_all()
    assert sim.until(sim.all_agree, 1) < 0.2
    assert all(len({e.member.id for _, e in node.told if isinstance(e, Meet)}) == 7 for node in sim.running())


@pytest.mark.parametrize("num_nodes", [2, 3, 8])
def test_killed_process_is_agreed_dead_in_under_a_second(num_nodes: int) -> None:
    """When a process ends and its connections break, all others hold it for dead within a second."""
    for seed in range(3):
        sim = joined(num_nodes, seed)
        victim = sim.nodes[f"node{seed % num_nodes:04}"]
        sim.kill(victim)
        assert sim.until(partial(sim.hold, victim.id, "dead"), 1) < 1
        assert not sim.false_deaths


def test_node_without_power_is_agreed_dead() -> None:
    """A machine that falls silent without breaking a connection is found by probes, in seconds."""
    for num_nodes in (3, 8, 30):
        sim = joined(num_nodes)
        sim.kill(sim.nodes["node0002"], power=True)
        assert sim.until(partial(sim.hold, "node0002", "dead"), 10) < 8
        assert not sim.false_deaths


def test_full_load_kills_no_live_node() -> None:
    """On machines that stall for up to one and a half seconds, none is held for dead; one that is killed is, soon."""
    sim = joined(8, conditions=Conditions(stall=full_load, skew=0.01))
    sim.run(60)
    sim.kill(sim.nodes["node0005"])
    assert sim.until(lambda: sim.hold("node0005", "dead"), 4) < 4
    assert not sim.false_deaths


def test_loss_and_delay_kill_no_live_node() -> None:
    """With a tenth of the messages lost and 50 ms each way, all stay members."""
    sim = joined(5, conditions=Conditions(delay=0.05, jitter=0.01, loss=0.1, skew=0.05))
    sim.run(60)
    assert not sim.false_deaths
    assert sim.all_agree()


def test_dropped_connection_is_no_death() -> None:
    """A connection that breaks and comes back, between two nodes or of one to all, costs no member its life."""
    sim = joined(5)
    first, second, *others = sim.nodes.values()
    sim.cut_link(first, second, 5.0)
    sim.run(8)
    assert sim.all_agree()
    for other in (second, *others):
        sim.cut_link(first, other, 0.2)
    sim.run(5)
    assert sim.all_agree()
    assert not sim.false_deaths


def test_partition_heals_without_a_person() -> None:
    """Halves that held each other for dead are one cluster once the network is whole; none blames its own half."""
    sim = joined(8)
    nodes = list(sim.nodes.values())
    sim.part(nodes[:4], nodes[4:])
    halves = [{node.id for node in half} for half in (nodes[:4], nodes[4:])]
    sim.until(lambda: all(node.live() in halves for node in nodes), 30)
    sim.run(30)
    sim.heal()
    assert sim.until(sim.all_agree, 20) < 20
    assert not sim.false_deaths
    assert any(isinstance(effect, Rejoin) for node in nodes for _, effect in node.told)


def test_leaving_node_is_not_dead() -> None:
    """A node that says goodbye has left for all, is never held for dead, and is not tried again."""
    sim = joined(5)
    leaver = sim.nodes["node0001"]
    sim.leave(leaver)
    assert sim.until(lambda: sim.hold(leaver.id, "left"), 1) < 0.5
    sim.run(20)
    effects = [effect for node in sim.running() for _, effect in node.told if sim.now]
    assert not [e for e in effects if isinstance(e, Changed) and e.view.state == "dead"]
    assert sim.hold(leaver.id, "left")


@pytest.mark.parametrize("was_killed", [True, False])
def test_restarted_node_is_taken_at_once(was_killed: bool) -> None:
    """A node that starts again under its id is a member as soon as it has passed a door, dead or left before."""
    sim = joined(4)
    old = sim.nodes["node0002"]
    (sim.kill if was_killed else sim.leave)(old)
    sim.until(lambda: sim.hold(old.id, "dead", "left"), 3)
    sim.run(2)
    sim.join(sim.start(2), sim.nodes["node0000"])
    assert sim.until(sim.all_agree, 2) < 0.5
    assert not sim.duplicates


def test_quick_restart_needs_no_death() -> None:
    """A node back before it was missed replaces its former self, and its former self's advert."""
    sim = joined(4)
    old = sim.nodes["node0002"]
    for n in range(3):
        sim.give(old, Advertise(b"before %d" % n))
    sim.run(0.5)
    sim.kill(old)
    new = sim.start(2)
    sim.join(new, sim.nodes["node0000"])
    sim.give(new, Advertise(b"after"))
    sim.run(3)
    assert sim.all_agree()
    assert {node.membership.members()[new.id].advert for node in sim.running()} == {b"after"}


def test_revoked_node_never_comes_back() -> None:
    """A revoked node is out of every table at once, and no claim of its life is heard again."""
    sim = joined(5)
    revoked = sim.nodes["node0003"]
    sim.give(sim.nodes["node0001"], Revoke(Revocation(revoked.id)))
    others = [node for node in sim.running() if node is not revoked]
    assert sim.until(lambda: all(node.state_of(revoked.id) is None for node in others), 1) < 1
    assert all(Revoked(Revocation(revoked.id)) in [effect for _, effect in node.told] for node in sim.running())
    back = revoked.member.__class__(revoked.id, "back", revoked.member.key, (), incarnation=99)
    sim.give(others[0], Met(back))
    sim.give(others[1], Received(others[2].id, Gossip((Alive(back),))))
    sim.run(5)
    assert all(node.state_of(revoked.id) is None for node in others)
    assert len(sim.running()[0].membership.revoked()) == 1


def test_newcomer_learns_who_is_revoked() -> None:
    """A node that joins after a revocation gets the list with the table."""
    sim = joined(3)
    sim.give(sim.nodes["node0000"], Revoke(Revocation("stranger")))
    sim.run(20)
    newcomer = sim.start(3)
    sim.join(newcomer, sim.nodes["node0001"])
    sim.run(1)
    assert newcomer.membership.revoked() == {"stranger"}


def test_adverts_reach_all_and_the_newest_wins() -> None:
    """The last of a burst of adverts is what all others hold; the node is told by a change without a new state."""
    sim = joined(6, conditions=Conditions(loss=0.2))
    speaker = sim.nodes["node0004"]
    for n in range(20):
        sim.give(speaker, Advertise(b"load %d" % n))
        sim.run(0.05)
    sim.until(lambda: all(n.membership.members()[speaker.id].advert == b"load 19" for n in sim.running()), 30)
    told = [effect for _, effect in sim.nodes["node0000"].told if isinstance(effect, Changed)]
    assert any(change.view.advert == b"load 19" and change.was == "alive" for change in told)


def test_advert_that_is_old_or_too_long_is_refused() -> None:
    """An advert of a lower version, of another start, or beyond the bound changes nothing; an own one raises."""
    one = membership()
    peer = member("peer")
    one.handle(0.1, Met(peer))
    for advert in (Advert("peer", 1, 5, b"new"), Advert("peer", 1, 4, b"old"), Advert("peer", 2, 9, b"other start")):
        one.handle(0.2, Received("peer", Gossip((advert,))))
    one.handle(0.3, Received("peer", Gossip((Advert("peer", 1, 6, bytes(MAX_ADVERT_BYTES + 1)),))))
    assert one.members()["peer"].advert == b"new"
    with pytest.raises(ClusterError, match="8193 bytes"):
        one.handle(0.4, Advertise(bytes(MAX_ADVERT_BYTES + 1)))


def test_two_nodes_with_one_id_are_told() -> None:
    """A copied home folder gives two running nodes one id: both learn it, and stop outbidding each other."""
    nodes = [membership("me", boot=1), membership("me", boot=2)]
    told = [0, 0]
    for n in range(20):
        for one, other in ((0, 1), (1, 0)):
            heard = Received("peer", Gossip((Alive(nodes[other].me),)))
            effects = nodes[one].handle(0.1 * n, heard)
            told[one] += effects.count(Duplicate("me", nodes[other].me.endpoints))
    assert all(told)
    assert max(node.me.incarnation for node in nodes) < 8


def test_restarts_by_turns_are_a_duplicate() -> None:
    """Others tell it too: two starts of one id that contradict by turns cannot be one node."""
    one = membership()
    effects = [one.handle(0.1 * n, Met(member("peer", boot=1 + n % 2, incarnation=n))) for n in range(3)]
    assert Duplicate("peer") not in effects[1]
    assert Duplicate("peer") in effects[2]


def test_id_with_another_key_is_not_taken() -> None:
    """An id belongs to the key it came with first."""
    one = membership()
    one.handle(0.1, Met(member("peer")))
    assert Duplicate("peer") in one.handle(0.2, Met(member("peer", key="another", incarnation=5)))
    assert one.members()["peer"].member.key == "key of peer"


def test_former_start_of_this_node_is_no_duplicate() -> None:
    """What is still told of this node's last start is outbid, once and silently."""
    one = membership()
    effects = one.handle(0.1, Received("peer", Push((Alive(member("me", boot=5, incarnation=8)),))))
    assert one.me.incarnation == 9
    assert Duplicate("me") not in effects


def test_machine_that_slept_blames_no_other() -> None:
    """A laptop that wakes after ten minutes holds all for alive that are, and is back among them."""
    sim = joined(4)
    sleeper = sim.nodes["node0003"]
    sim.stand_still(sleeper, 600)
    sim.run(601)
    sim.until(sim.all_agree, 20)
    assert all(one != sleeper.id for _, one, _ in sim.false_deaths)


def test_node_that_is_always_late_still_goes_on() -> None:
    """Being woken a second late every time makes a node patient, not blind: a silent member is dead in the end."""
    one = membership()
    now = 0.0
    one.handle(now, Met(member("peer")))
    for _ in range(400):
        wakes = [effect.time for effect in one.handle(now, Tick()) if isinstance(effect, WakeAt)]
        now = max(now, wakes[-1]) + 1.0
    assert one.members()["peer"].state == "dead"


def test_late_ack_read_after_standing_still_counts() -> None:
    """A node that stood still reads what waited before it blames the silence on the other."""
    one = membership()
    one.handle(0.0, Met(member("peer")))
    now, ping = 0.0, None
    while ping is None:
        effects = one.handle(now, Tick())
        ping = next((e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Ping)), None)
        now = next(e.time for e in effects if isinstance(e, WakeAt))
    one.handle(now + 5, Tick())
    one.handle(now + 5, Received("peer", Ack(ping.seq)))
    assert one.members()["peer"].state == "alive"


def test_own_death_is_contradicted() -> None:
    """A node that hears it is dead, or suspected, says at once that it lives, by a higher incarnation."""
    one = membership()
    one.handle(0.0, Met(member("peer")))
    effects = one.handle(0.1, Received("peer", Gossip((Dead("me", 3),))))
    assert Rejoin(one.me) in effects
    assert one.me.incarnation == 4
    answers = [e.message for e in effects if isinstance(e, Send) and e.peer == "peer"]
    assert any(Alive(one.me) in getattr(message, "updates", ()) for message in answers)
    effects = one.handle(0.2, Received("peer", Gossip((Suspect("me", 4, "peer"),))))
    assert one.me.incarnation == 5
    assert not any(isinstance(effect, Rejoin) for effect in effects)


def test_death_in_an_old_table_is_checked_first() -> None:
    """A table that comes from behind a partition makes a live member suspect, not dead."""
    one = membership()
    one.handle(0.0, Met(member("peer")))
    one.handle(0.0, Met(member("other")))
    one.handle(0.1, Received("other", Push((Dead("peer", 0),))))
    assert one.members()["peer"].state == "suspect"
    one.handle(0.2, Received("other", Gossip((Dead("peer", 0),))))
    assert one.members()["peer"].state == "dead"


def test_accused_member_is_told_whenever_it_is_spoken_to() -> None:
    """A message to a suspected member, or an answer to one held for dead, says so first."""
    one = membership()
    one.handle(0.0, Met(member("peer")))
    one.handle(0.0, Met(member("other")))
    one.handle(0.1, Received("other", Gossip((Suspect("peer", 0, "other"),))))
    effects = one.handle(0.2, Received("peer", Ping(5)))
    sent = [e.message for e in effects if isinstance(e, Send) and e.peer == "peer"]
    assert sent[0].updates[0] == Suspect("peer", 0, "other")
    one.handle(0.3, Received("other", Gossip((Dead("peer", 0),))))
    effects = one.handle(0.4, Received("peer", Gossip()))
    assert Send("peer", Gossip((Dead("peer", 0),))) in effects


def test_move_reaches_the_others() -> None:
    """A node that changes its address tells all, who connect to it there."""
    sim = joined(3)
    mover = sim.nodes["node0001"]
    sim.give(mover, Moved(("tcp://10.9.9.9:7000",)))
    sim.run(1)
    for node in sim.running():
        assert node.membership.members()[mover.id].member.endpoints == ("tcp://10.9.9.9:7000",)
        moved = [e for _, e in node.told if isinstance(e, Meet) and "10.9.9.9" in e.member.endpoints[0]]
        assert bool(moved) is (node is not mover)


def test_table_is_bounded() -> None:
    """No more members are taken than the bound; those who left longest ago make room."""
    one = membership(timing=Timing(max_members=4))
    for n, name in enumerate("abcdef"):
        one.handle(0.1 + n, Met(member(name)))
    assert set(one.members()) == {"me", "a", "b", "c"}
    one.handle(10, Received("a", Gossip((Left("b", 0),))))
    one.handle(11, Met(member("d")))
    assert set(one.members()) == {"me", "a", "c", "d"}


def test_dead_are_forgotten_after_a_day() -> None:
    """A member that has been gone for long is no longer in the table, nor brought back by another's."""
    one = membership(timing=Timing(forget_seconds=60))
    one.handle(0.1, Met(member("peer")))
    one.handle(0.1, Met(member("other")))
    one.handle(0.2, Received("other", Gossip((Left("peer", 0),))))
    now = 0.2
    while now < 120 and "peer" in one.members():
        now = max([e.time for e in one.handle(now, Tick()) if isinstance(e, WakeAt)])
        one.handle(now, Received("other", Gossip((Alive(member("other", incarnation=int(now * 100))),))))
    assert 60 <= now < 90
    one.handle(now, Received("other", Push((Dead("peer", 0),))))
    assert "peer" not in one.members()


def test_unknown_peers_and_own_id_are_harmless() -> None:
    """Events about nodes that are not members, and messages under the own id, change nothing."""
    one = membership()
    for event in (Unreachable("ghost"), Reachable("me"), Unreachable("me"), Received("me", Ping(1))):
        one.handle(0.1, event)
    effects = one.handle(0.1, Received("ghost", Ping(7)))
    assert [type(e.message).__name__ for e in effects if isinstance(e, Send)] == ["Ack", "Sync"]
    assert set(one.members()) == {"me"}


def test_equal_tables_are_not_exchanged() -> None:
    """Two nodes that hold the same compare one number, and stop."""
    sim = joined(4)
    sim.run(30)
    one, other = sim.nodes["node0000"].membership, sim.nodes["node0001"].membership
    assert one._claims.roster.checksum == other._claims.roster.checksum
    now = sim.now + sim.nodes["node0001"].offset
    effects = other.handle(now, Received("node0000", Sync(one._claims.roster.checksum)))
    assert not [e for e in effects if isinstance(e, Send) and e.peer == "node0000"]


def test_connection_that_never_stood_is_not_held_against_a_member() -> None:
    """A refused first connection, to a node that has not let this one in yet, makes no member suspect."""
    one = membership()
    one.handle(0.0, Met(member("peer")))
    one.handle(0.01, Unreachable("peer"))
    assert one.members()["peer"].state == "alive"
    one.handle(0.02, Reachable("peer"))
    one.handle(0.03, Unreachable("peer"))
    assert one.members()["peer"].state == "suspect"


def test_member_whose_key_is_not_its_own_is_not_taken() -> None:
    """What is told of an id with a key that does not belong to it is neither believed nor a duplicate."""
    one = Membership(member("me"), is_genuine=lambda told: told.key == f"key of {told.id}")
    one.handle(0.0, Tick())
    forged = member("peer", key="forged")
    assert not [e for e in one.handle(0.1, Received("liar", Gossip((Alive(forged),)))) if isinstance(e, Changed)]
    one.handle(0.2, Met(member("peer")))
    assert Duplicate("peer") not in one.handle(0.3, Received("liar", Gossip((Alive(forged),))))
    assert one.members()["peer"].member.key == "key of peer"


def test_revocations_outlast_a_restart() -> None:
    """A node that starts with the list of the revoked takes none of them, and tells others that ask."""
    one = Membership(member("me"), revoked=[Revocation("outcast")])
    one.handle(0.0, Tick())
    one.handle(0.1, Met(member("outcast")))
    assert set(one.members()) == {"me"}
    effects = one.handle(0.2, Received("peer", Sync(1)))
    assert any(isinstance(e, Send) and "outcast" in getattr(e.message, "revoked", ()) for e in effects)


def test_full_list_of_the_revoked_lets_nobody_in_by_hearsay() -> None:
    """With no room to remember, a member that is revoked is out, and no word of others brings it back."""
    listed = [Revocation(f"outcast{n}") for n in range(MAX_REVOKED)]
    one = Membership(member("me"), rng=random.Random(1), revoked=listed)
    one.handle(0.0, Tick())
    for name in ("peer", "other"):
        one.handle(0.1, Met(member(name)))
    effects = one.handle(0.2, Received("other", Gossip((Revocation("peer"),))))
    assert Revoked(Revocation("peer")) in effects
    assert one.handle(0.3, Received("other", Gossip((Revocation("peer"),)))).count(Revoked(Revocation("peer"))) == 0
    for update in (Alive(member("peer", incarnation=9)), Alive(member("outcast7")), Alive(member("stranger"))):
        one.handle(0.4, Received("other", Gossip((update,))))
        one.handle(0.4, Received("other", Push((update,))))
    assert set(one.members()) == {"me", "other"}
    assert len(one.revoked()) == MAX_REVOKED
    one.handle(0.5, Met(member("stranger")))
    assert set(one.members()) == {"me", "other", "stranger"}


def test_invented_revocations_reach_no_other_member() -> None:
    """A member's thousand invented ids take a bounded part of the list; that of members is kept beside them."""
    sim = joined(4)
    liar, target = sim.nodes["node0003"], sim.nodes["node0002"]
    for n in range(0, 1000, 100):
        lies = tuple(Revocation(f"invented{n + m}", "liar") for m in range(100))
        for node in list(sim.nodes.values())[:2]:
            sim.give(node, Received(liar.id, Gossip(lies)))
    sim.give(sim.nodes["node0000"], Revoke(Revocation(target.id, "honest")))
    others = [node for node in sim.running() if node is not target]
    sim.until(lambda: all(target.id in node.membership.revoked() for node in others), 10)
    sim.run(30)
    assert all(len(node.membership.revoked()) == 1 + MAX_UNKNOWN_OF_ONE for node in others)


def test_lies_cost_bounded_memory_and_no_message() -> None:
    """Endless accusers are cut off; a claim at the end of all incarnations makes no message that others refuse."""
    one = membership()
    one.handle(0.0, Met(member("peer")))
    for n in range(1000):
        one.handle(0.1, Received("liar", Gossip((Suspect("peer", 0, f"forged{n}"),))))
    assert one._claims.suspicions["peer"].num_accusers <= 64
    assert len(one._claims.dissemination) < 10
    one.handle(
        0.2,
        Received(
            "liar", Gossip((Dead("me", MAX_INCARNATION), Alive(member("me", boot=9, incarnation=MAX_INCARNATION))))
        ),
    )
    assert one.me.incarnation <= MAX_INCARNATION


def test_slow_node_knows_it() -> None:
    """Standing still, and probes that helpers would have answered, raise a node's own score."""
    one = membership()
    assert one.health == 0
    one.handle(60.0, Tick())
    assert one.health == 1
