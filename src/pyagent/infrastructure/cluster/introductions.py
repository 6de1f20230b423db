"""Meeting nodes: knocking at the doors that are found, and keeping the cluster's secret the same everywhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Callable, Sequence

from pyagent.core.cluster.addresses import is_address
from pyagent.core.cluster.member import Member
from pyagent.core.cluster.messages import Revocation
from pyagent.core.cluster.peers import ClusterRouter
from pyagent.core.errors import ClusterError, PyAgentError
from pyagent.infrastructure.cluster.cluster_file import ClusterFile
from pyagent.infrastructure.cluster.discovery import Discovery
from pyagent.infrastructure.cluster.door import Door, Met
from pyagent.infrastructure.cluster.handshake import host_of
from pyagent.infrastructure.cluster.keys import node_id_of
from pyagent.infrastructure.cluster.known_peers import KnownPeers
from pyagent.infrastructure.cluster.protocol import EPOCH, Epoch, epoch_codec
from pyagent.infrastructure.cluster.revocations import is_valid
from pyagent.infrastructure.cluster.tasks import Tasks
from pyagent.infrastructure.cluster.told_once import ToldOnce
from pyagent.infrastructure.cluster.transport import Reply, Transport
from pyagent.infrastructure.cluster.unmet import Unmet

_CALL_SECONDS = 5.0
_KNOCK_SECONDS, _LONGEST_KNOCK_SECONDS = 2.0, 16.0
"""How long a door has to answer at first; each time that it was late it has twice as long, up to the latter."""
_TRIES, _WAIT_SECONDS = 10, 0.2
_RENEW_SECONDS = 1.0
_TOGETHER_SECONDS = 0.1
_MAX_ADDRESSES = 16
logger = logging.getLogger(__name__)


class Introductions:
    """Finds nodes and lets them in; `on_met` is told of each that proved that it belongs here."""

    def __init__(  # noqa: PLR0913, PLR0917 - each is a part of its own
        self,
        own_id: str,
        cluster: ClusterFile,
        door: Door,
        transport: Transport,
        router: ClusterRouter,
        on_met: Callable[[Met], None],
        tasks: Tasks,
    ) -> None:
        self._own_id = own_id
        self._cluster = cluster
        self._door = door
        self._transport = transport
        self._router = router
        self._on_met = on_met
        self._tasks = tasks
        self.known = KnownPeers(cluster.folder)
        self._told = ToldOnce()
        self.unmet = Unmet(self.known.has_met, self._is_peer)
        self._behind: dict[tuple[str, int], str] = {}
        self._knocking: set[tuple[str, int]] = set()
        self._patience: dict[tuple[str, int], float] = {}
        self._revocations: list[Revocation] = []

    def register(self) -> None:
        """Have the transport hand new secrets on."""
        self._transport.handle(EPOCH, self._take_epoch)

    # -- doors ----------------------------------------------------------------------------------------------------

    async def knock_where_found(self, discovery: Discovery) -> None:
        """Knock at every door that is found, unless its node is a peer already."""
        async for found in discovery:
            try:
                if self._cluster.load().own_revocation is not None:
                    return  # no door opens to this node any more
            except ClusterError as error:  # its file may be put back
                self._warn_once(error)
                continue
            place = (found.host, found.port)
            if place in self._knocking or self._is_peer(self._behind.get(place, found.node_id)):
                continue
            self._knocking.add(place)
            named = is_address(found.host)
            self._tasks.begin(self._knock(place, found.node_id) if named else self._knock_at_all(place))

    async def _knock_at_all(self, place: tuple[str, int]) -> None:
        """Knock at each address that a host's name has now: another than at the last try, or those of several nodes."""
        try:
            for one in await self._addresses(*place):
                if one not in self._knocking and not self._is_peer(self._behind.get(one, "")):
                    self._knocking.add(one)
                    await self._knock(one)
        finally:
            self._knocking.discard(place)

    async def knock_at_twin(self, endpoints: Sequence[str], port: int) -> None:
        """Knock where another node with this one's id is said to be: at its door both learn which of them changes.

        A cloned disk has the settings of this one, and so the port of its door.
        """
        for host in {host for one in endpoints if (host := host_of(one))}:
            if (host, port) not in self._knocking:
                self._knocking.add((host, port))
                await self._knock((host, port))

    async def _knock(self, place: tuple[str, int], node_id: str = "") -> None:
        patience = self._patience.pop(place, _KNOCK_SECONDS)
        try:
            met = await self._door.knock(*place, timeout=patience)
        except ClusterError as error:
            if isinstance(error.__cause__, TimeoutError):  # a busy machine may need longer: the next time it has it
                self._patience[place] = min(2 * patience, _LONGEST_KNOCK_SECONDS)
            if error.peer == self._own_id:
                self._behind[place] = error.peer
            else:
                self.unmet.note(place, node_id, error)
        else:
            self.unmet.clear(place)
            self._behind[place] = met.node_id
            self._on_met(met)
        finally:
            self._knocking.discard(place)

    def _is_peer(self, node_id: str) -> bool:
        peer = self._router.get(node_id)
        return node_id == self._own_id or (peer is not None and peer.is_up)

    async def remember(self, met: Met) -> None:
        """Keep where a node's door was, to knock there first after a restart."""
        if met.door is not None:
            try:
                await asyncio.to_thread(self.known.remember, met.node_id, *met.door)
            except (ClusterError, OSError) as error:
                self._warn_once(error)

    def _warn_once(self, error: Exception) -> None:
        if self._told.is_new(str(error)):
            logger.warning("%s", error)

    async def keep(self, member: Member) -> None:
        """Keep the key of a member that others told of."""
        try:
            await asyncio.to_thread(self._cluster.add_member, member.id, member.key, member.name)
        except ClusterError as error:
            logger.warning("node %s is not kept: %s", member.id, error)

    async def drop(self, node_id: str) -> None:
        """Keep neither the key of a member that is gone, nor where its door was."""
        try:
            await asyncio.to_thread(self._cluster.forget_member, node_id)
            await asyncio.to_thread(self.known.forget, node_id)
        except (ClusterError, OSError) as error:
            logger.warning("node %s is not forgotten: %s", node_id, error)

    async def keep_revoked(self, revocation: Revocation) -> None:
        """Keep that a node is revoked, and see to it that it knows no current secret."""
        self._revocations.append(revocation)
        if len(self._revocations) > 1:
            return  # those that come together are written together
        await asyncio.sleep(_TOGETHER_SECONDS)
        told, self._revocations = self._revocations, []
        for one in told:
            logger.info("node %s was revoked by node %s", one.id, node_id_of(one.by))
        try:
            await asyncio.to_thread(self._cluster.merge, (), told)
        except ClusterError as error:
            logger.warning("the revocation of %d nodes is not kept: %s", len(told), error)
        await self.renew_secret()  # the node that revoked begins the new epoch; this waits for it

    async def keep_own_revocation(self, revocation: Revocation) -> None:
        """Keep that this node itself is out, and say so."""
        try:
            await asyncio.to_thread(self._cluster.put_out, revocation)
            self._cluster.standing()
        except ClusterError as error:
            logger.error("%s", error)  # noqa: TRY400 - the text says it all

    # -- secrets --------------------------------------------------------------------------------------------------

    async def give_epoch(self, peer_id: str) -> None:
        """Tell a peer the current secrets and the revoked, over its encrypted link; tried again until it is up."""
        state = self._cluster.load()
        told = epoch_codec.encode(Epoch(state.secrets, tuple(state.revoked.values())))
        for _ in range(_TRIES):
            with contextlib.suppress(PyAgentError):
                await self._transport.call(peer_id, EPOCH, told, timeout=_CALL_SECONDS)
                return
            await asyncio.sleep(_WAIT_SECONDS)
        logger.warning("node %s was not given the new secret; it asks at the door when it is back", peer_id)

    async def give_epoch_to_all(self) -> None:
        """Tell every peer."""
        await asyncio.gather(*(self.give_epoch(peer.id) for peer in self._router))

    async def _take_epoch(self, peer_id: str, payload: bytes, _buffers: object) -> Reply:
        told, state = epoch_codec.decode(payload), self._cluster.load()
        revoked = {one.id for one in told.revoked} | state.revoked.keys()
        if peer_id in revoked or self._own_id in revoked:
            raise ClusterError(f"node {peer_id} is revoked, or holds this one for it", peer=peer_id)
        await asyncio.to_thread(self._merge, told)
        self._tasks.begin(self.renew_secret())
        return Reply()

    def _merge(self, told: Epoch) -> None:
        """Take over what a member told; each word that is new here must be that of a member. Works beside the loop."""
        state = self._cluster.load()
        new = [one for one in told.revoked if one.id not in state.revoked]
        then = state.with_secrets(told.secrets)
        self._cluster.merge(told.secrets, [one for one in new if is_valid(one, then, (self._own_id,))])

    async def renew_secret(self) -> None:
        """Begin a new epoch where a revoked node may know the current secret.

        That is so when two revoked apart, each giving its secret to the node that the other put out, or when the node
        that revoked is gone before it gave the others a new one. It mostly has: it is waited for.
        """
        await asyncio.sleep(_RENEW_SECONDS * random.uniform(1, 2))  # noqa: S311 - so that few begin one at once
        state = self._cluster.load()
        if state.needs_rotation and state.own_revocation is None:
            await asyncio.to_thread(self._cluster.rotate)
            await self.give_epoch_to_all()

    async def _addresses(self, host: str, port: int) -> list[tuple[str, int]]:
        """Return where a name leads to now, nowhere where it cannot be found out: it is asked for again."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            self.unmet.note((host, port), "", ClusterError(f"{host} has no address now: {error.strerror}", peer=host))
            return []
        self.unmet.clear((host, port))
        return list(dict.fromkeys((str(address[0]), port) for *_, address in found))[:_MAX_ADDRESSES]
