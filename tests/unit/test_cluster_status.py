"""The cluster as it is shown."""

from __future__ import annotations

from pyagent.core.cluster.adverts import Offer
from pyagent.core.cluster.member import Member, MemberView
from pyagent.core.cluster.peers import Peer
from pyagent.core.messages import ModelInfo
from pyagent.infrastructure.cluster.peer_backend import PeerBackend
from pyagent.infrastructure.cluster.status import status_of

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
