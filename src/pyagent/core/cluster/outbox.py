"""What one event leads to: effects in order. Each message takes along the updates that wait to be passed on."""

from __future__ import annotations

from typing import Final

import msgspec

from pyagent.core.cluster.dissemination import Dissemination
from pyagent.core.cluster.events import Effect, Send
from pyagent.core.cluster.messages import MAX_UPDATES, Carrier, Dead, Gossip, Message, Suspect, Sync, Update
from pyagent.core.cluster.roster import Roster
from pyagent.core.cluster.suspicion import Suspicion
from pyagent.core.cluster.timing import Timing

_GOSSIP_BYTES: Final = 32 << 10
_PROBE_BYTES: Final = 2 << 10
"""A probe stays small; an advert that does not fit goes with the next gossip."""


class Outbox:
    """The effects of the present event."""

    def __init__(
        self, roster: Roster, suspicions: dict[str, Suspicion], dissemination: Dissemination, timing: Timing
    ) -> None:
        self._roster = roster
        self._suspicions = suspicions
        self._dissemination = dissemination
        self._timing = timing
        self.effects: list[Effect] = []

    def send(self, peer: str, message: Carrier, *first: Update) -> None:
        """Send a message with updates: `first`, then what is held against the peer, so that it can contradict."""
        accusation = self._accusation_of(peer)
        if accusation is None:
            max_bytes = _GOSSIP_BYTES if isinstance(message, Gossip | Sync) else _PROBE_BYTES
            num_sends = self._timing.num_sends(self._roster.num_live)
            updates = first + self._dissemination.take(max_bytes, num_sends, MAX_UPDATES - len(first))
        else:  # what waits is for those who will hear it
            updates = (*first, accusation)
        if updates:
            message = msgspec.structs.replace(message, updates=updates)
        self.effects.append(Send(peer, message))

    def send_bare(self, peer: str, message: Message) -> None:
        """Send a message as it is."""
        self.effects.append(Send(peer, message))

    def accuse(self, peer: str) -> None:
        """Tell a peer what is held against it, unless a message of this event does."""
        accusation = self._accusation_of(peer)
        is_told = any(isinstance(effect, Send) and effect.peer == peer for effect in self.effects)
        if accusation is not None and not is_told:
            self.effects.append(Send(peer, Gossip((accusation,))))

    def _accusation_of(self, peer: str) -> Suspect | Dead | None:
        view = self._roster.id_to_view.get(peer)
        if view is None:
            return None
        if view.state == "dead":
            return Dead(peer, view.member.incarnation)
        if view.state == "suspect":
            return Suspect(peer, view.member.incarnation, *self._suspicions[peer].strongest())
        return None
