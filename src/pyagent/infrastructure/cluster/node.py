"""A node of a cluster: the door, the transport, membership, and the peers as links of this node's chain.

Knows what each layer tells and what the others must be told; decides nothing itself. Who is a member is membership's
to say, which peer answers is the router's. One event loop runs it all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyagent import __version__
from pyagent.core.backends import Backend
from pyagent.core.chain import Chain
from pyagent.core.cluster.cluster_state import clean_name
from pyagent.core.cluster.events import (
    Advertise,
    Forget,
    Moved,
    Revoke,
    Tick,
)
from pyagent.core.cluster.events import Met as MetMember
from pyagent.core.cluster.member import Member
from pyagent.core.cluster.names import resolve, shown
from pyagent.core.cluster.peers import ClusterRouter
from pyagent.core.cluster.routing import Balancer
from pyagent.core.errors import ClusterError
from pyagent.core.settings import Cluster
from pyagent.infrastructure.cluster.advertising import AGENTS, Advertising, EngineLink, unknown_offers
from pyagent.infrastructure.cluster.answering import Answering
from pyagent.infrastructure.cluster.begun_loads import BegunLoads
from pyagent.infrastructure.cluster.cluster_file import ClusterFile
from pyagent.infrastructure.cluster.discovery import Discovery
from pyagent.infrastructure.cluster.door import Door, Met
from pyagent.infrastructure.cluster.effects import AskedRuns
from pyagent.infrastructure.cluster.endpoints import bind_endpoints, reachable_endpoints
from pyagent.infrastructure.cluster.introductions import Introductions
from pyagent.infrastructure.cluster.invitation import InvitationFile
from pyagent.infrastructure.cluster.join import Inviter
from pyagent.infrastructure.cluster.keys import load_or_make_keys, take_new_keys
from pyagent.infrastructure.cluster.kv_exchange import KvExchange
from pyagent.infrastructure.cluster.kv_exports import KvLink
from pyagent.infrastructure.cluster.leaving import hand_over
from pyagent.infrastructure.cluster.members import Members
from pyagent.infrastructure.cluster.private_file import NODE_LOCK, locked
from pyagent.infrastructure.cluster.protocol import (
    FORGET,
)
from pyagent.infrastructure.cluster.revocations import revocation_by
from pyagent.infrastructure.cluster.status import ClusterStatus, status_of
from pyagent.infrastructure.cluster.tasks import Tasks
from pyagent.infrastructure.cluster.transport import Transport
from pyagent.infrastructure.cluster.twins import Twins

if TYPE_CHECKING:
    from pyagent.infrastructure.observability.answer_spans import PeerTracer

_FAREWELL_SECONDS = 0.3
logger = logging.getLogger(__name__)

_NOTHING_MOVES = (
    'cluster.role is "%s", but no engine here moves KV: that takes a native link, engine.process = false, and '
    'engine.kv_connector = "auto"'
)


class Node:
    """One node. `start` opens the door and joins whom it finds; `stop` says goodbye."""

    def __init__(  # noqa: PLR0913 - each is a part of its own
        self,
        folder: Path,
        settings: Cluster,
        chain: Chain,
        *,
        agents: Backend | None = None,
        tracer: PeerTracer | None = None,
        tell: Callable[[str], None] = logger.info,
    ) -> None:
        """`folder` has the keys and the cluster's file; `agents` are this node's, offered as the settings say.

        `tell` is told in a line which other nodes come and go.
        """
        self._make_again = lambda: Node.__init__(self, folder, settings, chain, agents=agents, tracer=tracer, tell=tell)
        self.cluster = ClusterFile(folder)
        self._settings = settings
        self.chain = chain
        state = self.cluster.standing()
        self.keys = load_or_make_keys(folder)
        self.name = clean_name(settings.name or socket.gethostname())
        self.router = ClusterRouter(
            Balancer(settings.routing),
            own_name=self.name,
            secret=state.cluster_id.encode(),
            engine_names=[link.name for link in chain.links if isinstance(link, EngineLink)],
            own_id=self.keys.node_id,
        )
        self._transport = Transport(self.keys.node_id, self.keys.public, self.keys.secret)
        offered = agents if settings.offer is None or AGENTS in settings.offer else None
        self._runs = AskedRuns()
        self._answering = Answering(self.keys.node_id, chain, offered, self.router, tracer)
        self._kv = KvExchange(self.router, self._transport, state.cluster_id.encode(), settings.role)
        self._tasks = Tasks()
        self._advertising = Advertising(
            chain,
            settings,
            offered,
            self.router,
            self._answering,
            self._transport,
            lambda told: self._members.happen(Advertise(told)),
            self._tasks,
            BegunLoads(folder),
        )
        self._door = Door(
            self.keys,
            self.cluster,
            lambda: self._endpoints,
            self._met,
            name=self.name,
            inviter=Inviter(self.keys, self.cluster, self.name, InvitationFile(folder)),
            on_twin=self._met_twin,
        )
        self._twins = Twins(self.keys, self._door.boot, self._transport, self._met_twin)
        self._introductions = Introductions(
            self.keys.node_id, self.cluster, self._door, self._transport, self.router, self._met, self._tasks
        )
        self._members = Members(
            self.keys,
            self.cluster,
            self._transport,
            self.router,
            self._introductions,
            self._advertising,
            self._twins,
            self._runs,
            self._tasks,
            lambda: settings.port or self.door_port,
            tell,
        )
        self._discovery: Discovery | None = None
        self._lock = contextlib.ExitStack()
        self._bound: list[str] = []
        self._endpoints: list[str] = []
        self._changing_keys: asyncio.Task[None] | None = None
        self._num_resumed = 0
        self._keeps_kv = False

    @property
    def door_port(self) -> int:
        """Where others knock."""
        return self._door.port

    def told(self) -> str:
        """Return in a line which node this is, and where others knock."""
        state = self.cluster.load()
        others = "status` shows them" if state.members else "invite` prints a code for one"
        me = f"node {shown(self.keys.node_id, self.name)} of cluster {state.name}"
        return f"{me}; other nodes knock at port {self.door_port}, `pyagent cluster {others}"

    async def start(self) -> None:
        """Listen, look for the others, and become a link of their chains. Raises `ClusterError`, nothing left open."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        transport = self._transport
        folder = self.cluster.folder
        refusal = f"another `pyagent node` runs on {folder}; stop it, or set paths.data"
        self._lock.enter_context(locked(folder, NODE_LOCK, refusal=refusal))
        self._answering.register(transport)
        self._runs.register(transport)
        self._members.register()
        transport.handle(FORGET, self._take_forget)
        self._advertising.register()
        self._introductions.register()
        self._twins.register()
        movers = [link for link in self.chain.links if isinstance(link, KvLink) and link.connect_kv(self._kv)]
        self._kv.start(self._answering.prefill if movers else None)
        self._keeps_kv = not movers and any(isinstance(link, EngineLink) for link in self.chain.links)
        if self._settings.role != "both" and not movers:
            logger.warning(_NOTHING_MOVES, self._settings.role)
        elif self._keeps_kv:
            logger.info(_NOTHING_MOVES, self._settings.role)
        if unknown := unknown_offers(self.chain.links, self._settings.offer):
            there = ", ".join([*(link.name for link in self.chain.links), AGENTS])
            logger.warning("cluster.offer: no link is called %s, so peers get none; there are %s", unknown, there)
        self._bound = await transport.start(bind_endpoints(self._settings.bind))
        self._endpoints = reachable_endpoints(self._bound)
        me = Member(self.keys.node_id, self.name, self.keys.public, tuple(self._endpoints), version=__version__)
        self._members.start(me)
        self.router.own.offer, told = await self._advertising.advert()
        self.router.default_model = next((model.id for model in self.router.own.offer.models), "")
        self.chain.router = self.router
        port = await self._door.start(self._settings.bind, self._settings.port)
        self._members.happen(Advertise(told), Tick())
        self._discovery = self._make_discovery(port)
        await self._discovery.start()
        self._tasks.begin(self._introductions.knock_where_found(self._discovery))
        self._tasks.begin(self._advertising.tell_loads())
        if self._settings.steal:
            self._tasks.begin(self._advertising.stealing.run())
        self._tasks.begin(self._advertising.tell_offers(self._look_around))
        self._tasks.begin(self._advertising.placing.run())

    def _make_discovery(self, door_port: int) -> Discovery:
        settings, state = self._settings, self.cluster.load()
        return Discovery(
            self.keys,
            state.tag,
            door_port,
            name=self.name,
            seeds=settings.seeds,
            known=self._introductions.known,
            multicast=settings.multicast,
        )

    async def stop(self) -> None:
        """Break off what runs for peers, which go on elsewhere, say goodbye, close what is open. Safe twice."""
        self._answering.is_draining = True
        changing, self._changing_keys = self._changing_keys, None
        if changing is not None:
            changing.cancel()
            await asyncio.wait([changing])
        await self._stop()

    async def _stop(self) -> None:
        self.chain.router = None
        self._answering.break_off(with_agents=True)
        await asyncio.sleep(_FAREWELL_SECONDS if self._members.leave() else 0)
        for link in self.chain.links:
            if isinstance(link, KvLink):
                link.disconnect_kv(self._kv)
        await self._kv.close()
        await self._tasks.end()
        if self._discovery is not None:
            await self._discovery.stop()
        await self._door.stop()
        await self._transport.stop()
        self._lock.close()

    # -- what an administrator asks -------------------------------------------------------------------------------

    async def drain(self, grace_seconds: float = 30.0) -> int:
        """Take no more requests of peers, and tell them so; return how many answers were not over in time.

        What waits is given back at once. An answer that runs may finish in the time; then its node goes on elsewhere.
        `resume` ends it: what runs or waits by then stays.
        """
        self._answering.is_draining = True
        num_resumed = self._num_resumed

        def is_wanted() -> bool:
            return self._num_resumed == num_resumed

        await self._advertising.tell_load()
        await hand_over(self.chain.links, self._answering.is_idle, grace_seconds, of_peers=True, is_wanted=is_wanted)
        return self._answering.break_off(with_agents=False) if is_wanted() else 0

    async def leave(self, grace_seconds: float) -> None:
        """Drain for good: what this node's own clients wait for goes to peers, too, where they have the model."""
        self.router.is_leaving = self._answering.is_draining = True
        await self._advertising.tell_load()
        of_peers = not any(peer.is_usable for peer in self.router)

        def is_over() -> bool:  # a request of this node's own clients may be on its way to the queue yet
            return self._answering.is_idle() and (of_peers or not self._num_own())

        await hand_over(self.chain.links, is_over, grace_seconds, of_peers=of_peers)

    def _num_own(self) -> int:
        """Return how many requests this node's engines have."""
        names = self.router.engine_names
        return sum(link.num_in_flight for link in self.chain.link_states() if link.backend in names)

    async def resume(self) -> None:
        """Take requests of peers again."""
        self._answering.is_draining = False
        self._num_resumed += 1
        await self._advertising.tell_load()

    async def forget(self, name: str) -> str:
        """Forget a node that is gone, by its id or name, here and at the nodes that are connected; return its id."""
        node_id = resolve(name, self._id_to_name())
        view = self._members.views().get(node_id)
        if node_id == self.keys.node_id or (view is not None and view.is_live):
            who = shown(node_id, self._id_to_name()[node_id])
            raise ClusterError(f"node {who} runs: stop it first, or put it out for ever with `pyagent cluster revoke`")
        for peer in self.router:
            self._transport.cast(peer.id, FORGET, node_id.encode())
        self._forget(node_id)
        await self._introductions.drop(node_id)
        return node_id

    def _take_forget(self, _peer_id: str, payload: bytes, _buffers: object) -> None:
        """A member asks to forget one that is gone; what is no id names no member."""
        node_id = payload.decode(errors="replace")
        view = self._members.views().get(node_id)
        known = view is not None or node_id in self.cluster.load().members
        if known and node_id != self.keys.node_id and not (view is not None and view.is_live):
            self._forget(node_id)
            self._tasks.begin(self._introductions.drop(node_id))

    def _forget(self, node_id: str) -> None:
        self._transport.revoke(node_id)  # until it passes a door again
        self._members.happen(Forget(node_id))

    async def revoke(self, name: str) -> str:
        """Put a node out of the cluster for ever, by its id or name; return its id. The others get a new secret."""
        node_id = resolve(name, self._id_to_name())
        if node_id == self.keys.node_id:
            told = f"{name!r} is this node, which does not revoke itself; ask another, or stop this one"
            raise ClusterError(told)
        word = await asyncio.to_thread(revocation_by, self.keys, self.cluster.load().cluster_id, node_id)
        await asyncio.to_thread(self.cluster.revoke, word)
        self._members.happen(Revoke(word))
        await self._introductions.give_epoch_to_all()
        return node_id

    def _id_to_name(self) -> dict[str, str]:
        """Return the names of the nodes that there are, or were, this one's too."""
        known = {node_id: member.name for node_id, member in self.cluster.load().members.items()}
        seen = {view.member.id: clean_name(view.member.name) for view in self._members.views().values()}
        return {**known, **seen, self.keys.node_id: self.name}

    def status(self) -> ClusterStatus:
        """Return the cluster as this node sees it."""
        state, stats = self.cluster.load(), self._transport.stats()
        members = self._members.views()
        views = sorted(members.values(), key=lambda view: (not view.is_live, view.member.name, view.member.id))
        now = time.monotonic()
        others = {view.member.id: view for view in views if view.member.id != self.keys.node_id}
        router = self.router
        return ClusterStatus(
            cluster=state.name,
            epoch=state.epoch,
            id=self.keys.node_id,
            name=self.name,
            door_port=self.door_port,
            endpoints=tuple(self._endpoints),
            is_draining=self._answering.is_draining,
            is_revoked=state.own_revocation is not None,
            role=self._settings.role,
            keeps_kv=self._keeps_kv,
            models=tuple(model.id for model in self.router.own.offer.models),
            num_answered_for_peers=self._answering.num_answered,
            num_given_away=self._advertising.stealing.num_given,
            placement=self._advertising.placing.status(),
            unmet=self._introductions.unmet.told(),
            peers=tuple(
                status_of(view, router.get(one), stats.get(one), now, num_answered=router.num_answered(one))
                for one, view in others.items()
            ),
        )

    # -- meeting others -------------------------------------------------------------------------------------------

    def _met(self, met: Met) -> None:
        """A node proved that it belongs here, at its door or at ours; one that was revoked meanwhile is not let in."""
        if met.node_id in self.cluster.load().revoked:
            return
        self._transport.allow(met.node_id, met.public)
        self._members.happen(MetMember(Member(met.node_id, met.name, met.public, met.endpoints, version=met.version)))
        if met.is_behind:
            self._tasks.begin(self._introductions.give_epoch(met.node_id))
        self._tasks.begin(self._introductions.remember(met))

    def _met_twin(self, is_to_change: bool) -> None:
        """Another running node has this one's keys, as one on a cloned disk: one of both takes new ones.

        It was met at a door, or proved it by way of a third node.
        """
        if is_to_change and self._changing_keys is None:
            self._changing_keys = asyncio.create_task(self._change_keys())

    async def _change_keys(self) -> None:
        """Go on as a new node of the cluster, without a goodbye in the name of the other one."""
        self._members.fall_silent()
        await self._stop()
        await asyncio.to_thread(take_new_keys, self.cluster.folder)
        is_draining = self._answering.is_draining
        self._make_again()  # each part knows the keys
        self._answering.is_draining = is_draining
        self._changing_keys = asyncio.current_task()
        try:
            await self._start()
        except ClusterError as error:
            logger.error("this node is out of its cluster until it is started again: %s", error)  # noqa: TRY400 - the text says it all
            await self._stop()
        self._changing_keys = None

    def _look_around(self) -> None:
        """Tell the others where this node is reached, when that has changed: a laptop takes another network."""
        endpoints = reachable_endpoints(self._bound)
        if endpoints != self._endpoints:
            self._endpoints = endpoints
            self._members.happen(Moved(tuple(endpoints)))
