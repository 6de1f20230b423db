"""The cluster as it is shown."""

from __future__ import annotations

from pyagent.core.cluster.adverts import Offer
from pyagent.core.cluster.member import Member, MemberView
from pyagent.core.cluster.peers import Peer
from pyagent.core.cluster.placement import Holder
from pyagent.core.messages import ModelInfo
from pyagent.infrastructure.cluster.peer_backend import PeerBackend
from pyagent.infrastructure.cluster.status import placement_of, status_of

WILD = "\x1b[2J\r\nfake\u202e"


class Nowhere:
    """A connection that is never used."""

    call = stream = cast = None


def test_words_of_a_member_cannot_write_to_the_terminal() -> None:
    """What a member tells of itself is shown without control characters, a peer or not."""
    view = MemberView(Member("id", WILD, "key", (WILD,), version=WILD), "alive", 0.0)
    peer = Peer(id="id", called="n", backend=PeerBackend("id", Nowhere(), Offer))  # type: ignore[arg-type]
    peer.offer = Offer(models=(ModelInfo(id=WILD),), agents=(WILD,))
    for status in (status_of(view, None, None, 1.0), status_of(view, peer, None, 1.0)):
        words = [status.name, status.version, *status.endpoints, *status.models, *status.agents]
        assert all(word.isprintable() for word in words)
        assert "fake" in status.version


def test_placement_tells_what_is_there_what_comes_and_what_could() -> None:
    """Copies that are there, that load, and nodes that could load one are counted apart."""
    holders = [
        Holder(id="a", loaded=frozenset("m")),
        Holder(id="b", loading=frozenset("m")),
        Holder(id="c", placeable=frozenset("mn")),
    ]
    m, n = placement_of({"n": 2, "m": 3}, holders, {"m"})
    assert (m.model, m.wanted, m.live, m.loading, m.able) == ("m", 3, 1, 1, 1)
    assert (n.model, n.wanted, n.live, n.loading, n.able) == ("n", 2, 0, 0, 1)
    assert (m.is_named, n.is_named) == (True, False)
