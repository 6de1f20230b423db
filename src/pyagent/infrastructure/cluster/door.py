"""The door of a node: a small TCP listener where nodes prove to each other that they belong to one cluster.

Knows no transport: it passes on where each node's transport listens, and under which key. What passed the door is a
member; an outsider costs a bounded number of connections, each for two seconds and a few kilobytes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyagent import __version__
from pyagent.core.cluster.cluster_state import ClusterState, EpochSecret, clean_name
from pyagent.core.cluster.names import shown
from pyagent.core.errors import ClusterError, WireError
from pyagent.infrastructure.cluster.cluster_file import REKEY_ADVICE, ClusterFile
from pyagent.infrastructure.cluster.frame_stream import MAX_FRAME_BYTES, FrameStream, unreachable
from pyagent.infrastructure.cluster.handshake import (
    ANSWERS,
    HELLO,
    HELLOS,
    NO_VERSION,
    PROOFS,
    Answer,
    Card,
    Epoch,
    Opening,
    OtherReleaseError,
    Proof,
    Refused,
    Role,
    check_hello,
    epochs_of,
    new_nonce,
    proof_of,
    proves,
    secret_for,
    seen_endpoints,
)
from pyagent.infrastructure.cluster.join import JOIN_SECONDS, Inviter, JoinOpening
from pyagent.infrastructure.cluster.keys import NodeKeys, node_id_of
from pyagent.infrastructure.cluster.private_file import FileError
from pyagent.infrastructure.cluster.revocations import is_valid
from pyagent.infrastructure.cluster.told_once import ToldOnce
from pyagent.infrastructure.cluster.visitors import DoorLimits, Visitors
from pyagent.infrastructure.wire.codec import Codec
from pyagent.infrastructure.wire.hello import Hello

_OPENINGS: Codec[Opening | JoinOpening] = Codec(Opening | JoinOpening, "a visitor of the door", MAX_FRAME_BYTES)
_MAX_ENDPOINTS = 16

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Met:
    """A node that proved that it belongs to the cluster. `endpoints` are where its transport listens.

    `door` is the address of its door as seen from here, empty when it has none. It `is_behind` when it was away while
    the secret changed: it is to be given the current one, over the transport.
    """

    node_id: str
    name: str
    public: str
    endpoints: tuple[str, ...]
    version: str
    door: tuple[str, int] | None = None
    is_behind: bool = False


class Door:
    """A node's door: `start` lets others knock, `knock` goes to another's."""

    def __init__(  # noqa: PLR0913 - its own parts, each from elsewhere
        self,
        keys: NodeKeys,
        cluster: ClusterFile,
        endpoints: Callable[[], Sequence[str]],
        on_met: Callable[[Met], None],
        *,
        name: str = "",
        inviter: Inviter | None = None,
        on_twin: Callable[[bool], None] = lambda _: None,
        limits: DoorLimits | None = None,
    ) -> None:
        """Make the door. `on_met` is told of nodes that knocked here; without endpoints the door lets none in.

        `on_twin` is told that another running node has proved to have the keys of this one, as one on a cloned disk
        has, and whether this is the one of both that is to take new ones.
        """
        self._keys = keys
        self._cluster = cluster
        self._endpoints = endpoints
        self._on_met = on_met
        self._on_twin = on_twin
        self._name = clean_name(name)
        self._inviter = inviter
        self._limits = limits or DoorLimits()
        self._visitors = Visitors(self._limits)
        self._told = ToldOnce()
        self.boot = new_nonce()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, host: str | Sequence[str], port: int) -> int:
        """Listen on one host or several, and return the port; 0 picks a free one.

        Of several, those that this machine lacks are told and left out. Raises `ClusterError` where none is left.
        """
        hosts = [host] if isinstance(host, str) else list(host)
        failures: list[tuple[str, OSError]] = []
        for one in hosts:
            try:
                server = await self._listen(one, self.port or port)
            except OSError as error:
                failures.append((one, error))
                continue
            self.port = server.sockets[0].getsockname()[1]
        if not self._servers:
            raise _no_door(port, hosts, failures[0][1])
        for one, error in failures:
            logger.warning("the door does not listen on %s: %s", one, error.strerror)
        return self.port

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        """Serve only once the server is kept: where `start_server` is cancelled, it leaves its port open for ever."""
        # The limit bounds what is read ahead of the frame that is due.
        backlog = self._limits.num_open
        server = await asyncio.start_server(
            self._accept, host, port, limit=MAX_FRAME_BYTES, backlog=backlog, start_serving=False
        )
        self._servers.append(server)
        try:
            await server.start_serving()
        except OSError:
            self._servers.remove(server)
            server.close()
            raise
        return server

    async def stop(self) -> None:
        """Stop listening and hang up; safe twice."""
        servers, self._servers = self._servers, []
        try:
            await _accept_no_more(servers)
        finally:
            for server in servers:
                server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for server in servers:
            await server.wait_closed()
        self.port = 0

    async def knock(self, host: str, port: int, timeout: float = 2.0) -> Met:  # noqa: ASYNC109 - a deadline as a whole
        """Go to another node's door, and return the node behind it.

        Raises `ClusterError` that names what is wrong: no door there, another version, another cluster, this node
        refused, the other node without the secret. `peer` is this node's own id where the door is its own.
        """
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            async with asyncio.timeout(timeout):
                connection = await asyncio.open_connection(host, port, limit=MAX_FRAME_BYTES)
                stream = FrameStream(*connection, peer=place)
                try:
                    return await self._knock(stream, port)
                finally:
                    stream.abort()
        except TimeoutError as error:
            raise ClusterError(f"{place} did not answer within {timeout:g} s", peer=place) from error
        except OSError as error:
            raise unreachable(place, error) from error
        except WireError as error:
            raise ClusterError(f"{place} is no door that this node understands: {error}", peer=place) from error

    async def _knock(self, stream: FrameStream, port: int) -> Met:
        state = self._cluster.load()
        opening = Opening(state.tag, new_nonce(), self._card(), epochs_of(state))
        await stream.send(HELLOS.encode(HELLO), _OPENINGS.encode(opening))
        check_hello(await stream.receive(HELLOS), stream.peer)
        answer = await stream.receive(ANSWERS)
        if isinstance(answer, Refused):
            raise await self._refused(stream.peer, state, answer)
        secret = self._secret_of(stream.peer, state, answer)
        said = stream.transcript
        await stream.send(PROOFS.encode(_proof("knocking", self._keys, answer.card, secret, said)))
        proof = await stream.receive(PROOFS)
        if isinstance(proof, Refused):
            raise await self._refused(stream.peer, state, proof)
        if not proves(proof, _proof("door", self._keys, answer.card, secret, said)):
            told = f"{stream.peer} does not prove that it knows the cluster's secret; it is not let in"
            raise ClusterError(told, peer=stream.peer)
        if answer.card.public == self._keys.public:
            raise self._met_twin(stream.peer, answer.card)
        await self._remember(answer.card)
        return _met(stream, answer.card, port, is_behind=secret != state.current)

    def _secret_of(self, place: str, state: ClusterState, answer: Answer) -> EpochSecret:
        """Return the secret that both know, or raise what keeps this node from going on."""
        card = answer.card
        if card.boot == self.boot:
            raise ClusterError(f"{place} is this node's own door", peer=self._keys.node_id)
        secret = secret_for(state, [answer.epoch], card)
        if secret is None:
            why = "is revoked" if card.node_id in state.revoked else "knows only an older secret"
            raise ClusterError(f"{place} is node {_who(card)}, which {why}; it is not let in", peer=card.node_id)
        return secret

    async def _refused(self, place: str, state: ClusterState, refused: Refused) -> ClusterError:
        if refused.cluster != state.tag:
            return ClusterError(f"{place} is the door of another cluster than {state.name!r}", peer=place)
        revocation = refused.revocation
        if revocation is not None and revocation.id == self._keys.node_id and is_valid(revocation, state):
            await asyncio.to_thread(self._cluster.put_out, revocation)
            return ClusterError(f"{place} says that this node was revoked, by node {node_id_of(revocation.by)}")
        told = "refused this node: it is revoked there, or the secret that it knows is not the cluster's, or too old"
        return ClusterError(f"{place} {told}; {REKEY_ADVICE}", peer=place)

    def _met_twin(self, place: str, card: Card) -> ClusterError:
        """Tell that another node has this one's keys; both know which of them gives them up: the one of higher boot."""
        is_to_change = self.boot > card.boot
        self._on_twin(is_to_change)
        told = "this node takes new ones" if is_to_change else "it is to take new ones"
        return ClusterError(f"{place} has this node's own keys, as a cloned disk has: {told}", peer=place)

    # -- the listener's side -----------------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin a visit. In a task of our own: Python 3.11 logs each of its own that `stop` cancels as an error."""
        if not self._servers:  # accepted just before `stop`
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._visit(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # also where it was cancelled before it began

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = FrameStream(reader, writer, "")
        host = stream.peer = stream.peer_host
        visitor = self._visitors.enter(host, stream.abort, asyncio.get_running_loop().time())
        if visitor is None:
            stream.abort()
            return
        try:
            async with asyncio.timeout(self._limits.seconds) as deadline:
                await self._answer(stream, deadline)
                await stream.close()
        except (TimeoutError, OSError, WireError, ClusterError) as error:
            is_for_all = isinstance(error, OtherReleaseError | FileError) and self._told.is_new(str(error))
            logger.log(logging.WARNING if is_for_all else logging.INFO, "not let in: %s: %s", host, error or "too slow")
        finally:
            stream.abort()
            self._visitors.leave(visitor)

    async def _answer(self, stream: FrameStream, deadline: asyncio.Timeout) -> None:
        hello = await stream.receive(HELLOS)
        if hello != HELLO:
            await stream.send(HELLOS.encode(HELLO))
            check_hello(hello, stream.peer)
        opening = await stream.receive(_OPENINGS)
        if isinstance(opening, Opening):
            await self._let_in(stream, opening)
        elif self._inviter is not None:
            deadline.reschedule(asyncio.get_running_loop().time() + JOIN_SECONDS)
            await self._inviter.receive(stream, opening)
        else:
            await stream.send(HELLOS.encode(HELLO), ANSWERS.encode(Refused()))

    async def _let_in(self, stream: FrameStream, opening: Opening) -> None:
        state, card = self._cluster.load(), opening.card
        is_ours = opening.cluster == state.tag
        refused = Refused(state.tag, state.revoked.get(card.node_id) if is_ours else None)
        mine = self._card()
        secret = secret_for(state, opening.epochs, card) if is_ours and mine.endpoints else None
        if secret is None:
            await stream.send(HELLOS.encode(HELLO), ANSWERS.encode(refused))
            raise ClusterError(f"{_who(card)} is of another cluster, revoked, or knows no secret that lets it in")
        answer = Answer(new_nonce(), mine, Epoch.of(secret))
        await stream.send(HELLOS.encode(HELLO), ANSWERS.encode(answer))
        said = stream.transcript
        proof = await stream.receive(PROOFS)
        if isinstance(proof, Refused) or not proves(proof, _proof("knocking", self._keys, card, secret, said)):
            await stream.send(PROOFS.encode(refused))
            told = f"{_who(card)} does not prove that it knows the cluster's secret"
            raise ClusterError(told, peer=card.node_id)
        if card.public == self._keys.public:
            await stream.send(PROOFS.encode(_proof("door", self._keys, card, secret, said)))
            raise self._met_twin(stream.peer, card)
        await self._remember(card)
        await stream.send(PROOFS.encode(_proof("door", self._keys, card, secret, said)))
        self._on_met(_met(stream, card, card.door_port, is_behind=secret != state.current))

    def _card(self) -> Card:
        return Card(
            node_id=self._keys.node_id,
            name=self._name,
            public=self._keys.public,
            endpoints=tuple(self._endpoints())[:_MAX_ENDPOINTS],
            version=__version__,
            door_port=self.port,
            boot=self.boot,
        )

    async def _remember(self, card: Card) -> None:
        """Keep the node's key. In a thread: a file is written and waited for."""
        await asyncio.to_thread(self._cluster.add_member, card.node_id, card.public, card.name)


async def _accept_no_more(servers: Sequence[asyncio.Server]) -> None:
    """Accept no more connections, and let servers take note of those they accepted.

    Python 3.11 forgets a connection, its socket open, that was accepted in the loop's turn before its server closes.
    """
    loop = asyncio.get_running_loop()
    for server in servers:
        for listening in server.sockets:
            loop.remove_reader(listening)
    await asyncio.sleep(0)


async def is_door(host: str, port: int, timeout: float = 2.0) -> bool:  # noqa: ASYNC109 - a deadline as a whole
    """Whether the door of a node answers there, of whatever release."""
    try:
        async with asyncio.timeout(timeout):
            await ask_release(host, port)
    except OtherReleaseError:
        return True
    except (OSError, TimeoutError, WireError):
        return False
    return True


async def ask_release(host: str, port: int) -> None:
    """Return where a door of this release answers: a hello of no version is answered with the door's own.

    Raises `OtherReleaseError`, `OSError` where nothing listens, `WireError` where something else does.
    """
    stream = FrameStream(*await asyncio.open_connection(host, port, limit=MAX_FRAME_BYTES), peer=f"{host}:{port}")
    try:
        await stream.send(HELLOS.encode(Hello(HELLO.protocol, NO_VERSION)))
        theirs = await stream.receive(HELLOS)
    finally:
        stream.abort()
    check_hello(theirs, stream.peer)


def _no_door(port: int, hosts: Sequence[str], error: OSError) -> ClusterError:
    if error.errno == errno.EADDRINUSE:
        text = (
            f"port {port}, where other nodes knock, is in use; another `pyagent node` or `cluster invite` may run here"
        )
        return ClusterError(f"{text}: stop it, or choose another port with --door (cluster.port)")
    where = f"port {port} of {', '.join(hosts)}"
    return ClusterError(f"nodes cannot knock at {where}: {error.strerror}; choose others with --bind, --door")


def _who(card: Card) -> str:
    return shown(card.node_id, clean_name(card.name))


def _proof(role: Role, keys: NodeKeys, peer: Card, secret: EpochSecret, said: bytes) -> Proof:
    try:
        return proof_of(role, keys, peer, secret, said)
    except ValueError as error:
        raise ClusterError(f"the key of node {peer.node_id} is none", peer=peer.node_id) from error


def _met(stream: FrameStream, card: Card, door_port: int, *, is_behind: bool) -> Met:
    host = stream.peer_host
    door = (host, door_port) if door_port else None
    endpoints = seen_endpoints(card.endpoints, host)
    return Met(card.node_id, clean_name(card.name), card.public, endpoints, card.version, door, is_behind)
