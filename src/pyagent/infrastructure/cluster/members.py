"""Runs membership: hands it what happens, does what it asks, and keeps the peers that it says there are.

Who is a member is membership's to say; how one is met is told from outside. One event loop runs it all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from pyagent.core.cluster.adverts import NOTHING
from pyagent.core.cluster.cluster_state import clean_name
from pyagent.core.cluster.events import (
    Changed,
    Duplicate,
    Effect,
    Event,
    Leave,
    Meet,
    Reachable,
    Received,
    Rejoin,
    Revoked,
    Send,
    Tick,
    Unreachable,
    WakeAt,
)
from pyagent.core.cluster.member import Member, MemberView
from pyagent.core.cluster.membership import Membership
from pyagent.core.cluster.messages import Revocation
from pyagent.core.cluster.names import shown
from pyagent.core.cluster.peers import ClusterRouter, Peer
from pyagent.core.errors import ClusterError, WireError
from pyagent.infrastructure.cluster.advertising import Advertising
from pyagent.infrastructure.cluster.cluster_file import ClusterFile
from pyagent.infrastructure.cluster.effects import AskedRuns
from pyagent.infrastructure.cluster.introductions import Introductions
from pyagent.infrastructure.cluster.keys import NodeKeys, node_id_of
from pyagent.infrastructure.cluster.peer_backend import PeerBackend
from pyagent.infrastructure.cluster.protocol import GOSSIP, gossip_codec, offer_codec
from pyagent.infrastructure.cluster.revocations import is_valid
from pyagent.infrastructure.cluster.tasks import Tasks
from pyagent.infrastructure.cluster.transport import LinkChange, Transport
from pyagent.infrastructure.cluster.twins import Twins

logger = logging.getLogger(__name__)

_GONE = {"left": "has stopped", "dead": "is gone: it ended, or cannot be reached any more"}


class Members:
    """Membership of one node, and what follows from it for transport, router and introductions."""

    def __init__(  # noqa: PLR0913, PLR0917 - each is a part of its own
        self,
        keys: NodeKeys,
        cluster: ClusterFile,
        transport: Transport,
        router: ClusterRouter,
        introductions: Introductions,
        advertising: Advertising,
        twins: Twins,
        runs: AskedRuns,
        tasks: Tasks,
        door_port: Callable[[], int],
        tell: Callable[[str], None],
    ) -> None:
        """`door_port` is where others of these settings are knocked at; `tell` is told who comes and goes."""
        self._keys = keys
        self._cluster = cluster
        self._transport = transport
        self._router = router
        self._introductions = introductions
        self._advertising = advertising
        self._twins = twins
        self._runs = runs
        self._tasks = tasks
        self._door_port = door_port
        self._tell = tell
        self._membership: Membership | None = None
        self._timer: asyncio.TimerHandle | None = None

    def register(self) -> None:
        """Have the transport hand gossip on, and tell of connections."""
        self._transport.handle(GOSSIP, self._take_gossip)
        self._transport.on_link(self._note_link)

    def start(self, me: Member) -> None:
        """Be a member from now on, and let the others in that the cluster's file names."""
        state = self._cluster.load()
        self._membership = Membership(me, is_genuine=self._is_genuine, revoked=state.revoked.values())
        for node_id, member in state.members.items():
            self._transport.allow(node_id, member.public)

    def views(self) -> Mapping[str, MemberView]:
        """Return the members that are known, by id, this node's own view included."""
        return {} if self._membership is None else self._membership.members()

    def fall_silent(self) -> None:
        """Be no member any more, without a goodbye."""
        self._membership = None
        if self._timer is not None:
            self._timer.cancel()

    def leave(self) -> bool:
        """Say goodbye, and be no member any more; return whether there was anybody to hear it."""
        membership, self._membership = self._membership, None
        if membership is not None:
            self._perform(membership.handle(time.monotonic(), Leave()))
        self.fall_silent()
        return membership is not None and len(self._router) > 0

    def happen(self, *events: Event) -> None:
        """Hand events to membership, and do what it asks."""
        for event in events:
            if self._membership is not None:
                try:
                    self._perform(self._membership.handle(time.monotonic(), event))
                except ClusterError as error:
                    logger.warning("membership: %s", error)

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            try:
                self._carry_out(effect)
            except (ClusterError, WireError) as error:  # about one member: the rest goes on
                logger.warning("membership: %s", error)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(peer, message):
                self._transport.cast(peer, GOSSIP, gossip_codec.encode(message))
            case WakeAt(at):
                self._wake_at(at)
            case Changed(view):
                self._changed(view)
            case Meet(member):
                self._meet(member)
            case Revoked(told):
                self._put_out(told)
            case Rejoin():
                logger.info("the others took this node for dead; it has contradicted")
            case Duplicate(node_id, endpoints):
                told = "two nodes run with the id %s, as cloned disks do; one takes new keys as soon as they meet"
                logger.warning(told, node_id)
                if node_id == self._keys.node_id:
                    self._tasks.begin(self._introductions.knock_at_twin(endpoints, self._door_port()))

    def _meet(self, member: Member) -> None:
        """Connect to a member that others told of, and keep its key: it may be away when the secret changes."""
        self._transport.allow(member.id, member.key)
        self._transport.connect(member.id, member.key, member.endpoints)
        if not self._cluster.load().is_member(member.id, member.key):
            self._tasks.begin(self._introductions.keep(member))

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        seconds = max(0.0, at - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(seconds, self.happen, Tick())

    def _take_gossip(self, peer_id: str, payload: bytes, _buffers: object) -> None:
        try:
            message = gossip_codec.decode(payload)
        except WireError as error:
            logger.warning("node %s: %s", peer_id, error)
        else:
            self.happen(Received(peer_id, message))

    # -- the peers that it says there are ------------------------------------------------------------------------------

    def _note_link(self, peer_id: str, change: LinkChange) -> None:
        is_up = change == "up"
        if (peer := self._router.get(peer_id)) is not None:
            peer.is_up = is_up
            if is_up:
                peer.connected()
                self._tasks.begin(self._advertising.greet(peer_id))
        if is_up:
            self._twins.tell(peer_id)
        self.happen(Reachable(peer_id) if is_up else Unreachable(peer_id))

    def _changed(self, view: MemberView) -> None:
        member = view.member
        if member.id == self._keys.node_id:
            return
        if not view.is_live:
            if self._router.get(member.id) is not None:
                self._tell(f"{shown(member.id, clean_name(member.name))} {_GONE.get(view.state, view.state)}")
            is_revoked = self._membership is not None and member.id in self._membership.revoked()
            self._router.remove(member.id, may_return=not is_revoked)
            self._transport.disconnect(member.id)  # what waits for an answer of it waits no more
            return
        peer = self._router.get(member.id) or self._add_peer(member)
        if peer.called != clean_name(member.name):
            peer.called = clean_name(member.name)
            self._router.tell_apart()
        if member.boot != peer.boot:
            if peer.boot:
                peer.backend = self._backend_of(member.id)
                self._router.tell_apart()
            peer.boot = member.boot
            if peer.is_up:  # started anew before the old connection broke
                peer.connected()
        try:
            peer.offer = offer_codec.decode(view.advert).bounded() if view.advert else NOTHING
        except WireError as error:
            logger.warning("node %s offers what cannot be read: %s", member.name, error)

    def _add_peer(self, member: Member) -> Peer:
        backend = self._backend_of(member.id)
        is_up = (stats := self._transport.stats().get(member.id)) is not None and stats.is_up
        peer = Peer(id=member.id, called=clean_name(member.name), backend=backend, is_up=is_up)
        self._router.add(peer)
        self._tell(f"{shown(member.id, peer.called)} is here")
        if peer.name != peer.called:
            told = "node %s gives itself the name %r, as another does; it goes by its id. Name it otherwise with --name"
            logger.warning(told, member.id, peer.called)
        if is_up:
            self._tasks.begin(self._advertising.greet(member.id))
        return peer

    def _backend_of(self, peer_id: str) -> PeerBackend:
        return PeerBackend(peer_id, self._transport, lambda: self._router.get(peer_id), self._runs)

    def _put_out(self, told: Revocation) -> None:
        if told.id == self._keys.node_id:
            self._tasks.begin(self._introductions.keep_own_revocation(told))
            return  # it begins no epoch and gives no secret to others
        self._router.remove(told.id, may_return=False)
        self._transport.revoke(told.id)
        self._tasks.begin(self._introductions.keep_revoked(told))

    def _is_genuine(self, told: Member | Revocation) -> bool:
        """Return whether a member that others tell of owns its id, and a revocation is the word of a member."""
        if isinstance(told, Member):
            return told.id == node_id_of(told.key)
        return is_valid(told, self._cluster.load(), self.views())
