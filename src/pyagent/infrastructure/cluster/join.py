"""Letting in a node that has a short code instead of the cluster's secret, through the same door.

    joining                                              inviting
    Hello, JoinOpening(hint, SPAKE2 message)  ->
                                              <-  Hello, JoinAnswer(SPAKE2 message) | Refused
    Proof                                     ->
                                              <-  Proof | Refused
    Sealed(Newcomer)                          ->
                                              <-  Sealed(Handover)

SPAKE2 (RFC 9382's scheme) gives both ends one key where they have one code, and each try of a code takes one exchange
with the inviting node, which counts them; what was overheard cannot be tried elsewhere. Proofs confirm the key at both
ends before anything is sealed with it (HKDF-SHA256 over the transcript, ChaCha20-Poly1305).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import Annotated, Never, Protocol, cast

import msgspec

from pyagent.core.cluster.cluster_state import ClusterState, EpochSecret, decode_key
from pyagent.core.cluster.join_code import hint_of
from pyagent.core.cluster.messages import MAX_REVOKED, Revocation
from pyagent.core.errors import ClusterError, WireError
from pyagent.infrastructure.cluster.cluster_file import REKEY_ADVICE, ClusterFile
from pyagent.infrastructure.cluster.frame_stream import MAX_FRAME_BYTES, FrameStream, unreachable
from pyagent.infrastructure.cluster.handshake import HELLO, HELLOS, PROOFS, Proof, Refused, check_hello
from pyagent.infrastructure.cluster.invitation import InvitationFile
from pyagent.infrastructure.cluster.keys import NodeKeys, node_id_of
from pyagent.infrastructure.cluster.private_file import FileError
from pyagent.infrastructure.wire.codec import Codec

JOIN_SECONDS = 20.0
"""The longest that a visit with a code may take; SPAKE2 computes 50 ms at each end of an idle machine."""
MAX_HANDOVER_BYTES = 1 << 20
_MAX_VISITORS = 2
_JOINING, _INVITING = b"pyagent joining", b"pyagent inviting"
_NONCE = bytes(12)  # each key seals one message

logger = logging.getLogger(__name__)


class WrongCodeError(ClusterError):
    """The two ends do not have one code: asking again would cost the invitation another try."""


class RevokedKeyError(ClusterError):
    """The inviting node has revoked the key of the one that would join: another code does not help it."""


class JoinOpening(msgspec.Struct, frozen=True, tag=True):
    """A visitor with a code: the part of it that is no secret, its SPAKE2 message, and which node it would be."""

    hint: Annotated[str, msgspec.Meta(max_length=8)]
    message: Annotated[bytes, msgspec.Meta(max_length=64)]
    node_id: Annotated[str, msgspec.Meta(max_length=32)] = ""


class JoinAnswer(msgspec.Struct, frozen=True, tag=True):
    """The inviting node's SPAKE2 message."""

    message: Annotated[bytes, msgspec.Meta(max_length=64)]


class Sealed(msgspec.Struct, frozen=True, tag=True):
    """What only the two ends can read."""

    box: bytes


class Newcomer(msgspec.Struct, frozen=True):
    """The node that joins."""

    public: Annotated[str, msgspec.Meta(min_length=40, max_length=40)]
    name: Annotated[str, msgspec.Meta(max_length=64)]

    def __post_init__(self) -> None:
        decode_key(self.public)


class Handover(msgspec.Struct, frozen=True):
    """The cluster as its newest member gets it: the current secret alone, the revoked, and the node that invited it."""

    cluster_id: str
    name: str
    secret: EpochSecret
    revoked: Annotated[tuple[Revocation, ...], msgspec.Meta(max_length=MAX_REVOKED)]
    inviter: Newcomer

    def state(self) -> ClusterState:
        """Return it as the file of a cluster has it."""
        revoked = {one.id: one for one in self.revoked}
        bare = ClusterState(self.cluster_id, self.name, (self.secret,), revoked=revoked)
        return bare.with_member(node_id_of(self.inviter.public), self.inviter.public, self.inviter.name)


_OPENINGS = Codec(JoinOpening, "a visitor of the door", MAX_FRAME_BYTES)
_ANSWERS: Codec[JoinAnswer | Refused] = Codec(JoinAnswer | Refused, "the inviting node", MAX_FRAME_BYTES)
_SEALED = Codec(Sealed, "the other end of the door", MAX_FRAME_BYTES)
_HANDED = Codec(Sealed, "the inviting node", MAX_HANDOVER_BYTES)
_NEWCOMERS = Codec(Newcomer, "the joining node", MAX_FRAME_BYTES)
_HANDOVERS = Codec(Handover, "the inviting node", MAX_HANDOVER_BYTES)


class Inviter:
    """Answers visitors of the door who have a code, as long as there is an open invitation."""

    def __init__(self, keys: NodeKeys, cluster: ClusterFile, name: str, invitations: InvitationFile) -> None:
        self._keys = keys
        self._cluster = cluster
        self._name = name
        self._invitations = invitations
        self._num_visitors = 0

    async def receive(self, stream: FrameStream, opening: JoinOpening) -> None:
        """Talk to one visitor. Raises `ClusterError` that says why it is not let in."""
        try:
            invitation = self._invitations.find_open()
            revocation = self._cluster.load().revoked.get(opening.node_id)
        except FileError:
            await _tell_failing(stream)
            raise
        if invitation is None or hint_of(invitation.code) != opening.hint or self._num_visitors >= _MAX_VISITORS:
            await self._refuse(stream)
        if revocation is not None:
            await self._refuse(stream, revocation)  # before its code is tried: no code lets it in
        self._num_visitors += 1
        try:
            await self._receive(stream, opening, invitation.code)
        finally:
            self._num_visitors -= 1

    async def _refuse(self, stream: FrameStream, revocation: Revocation | None = None) -> Never:
        await stream.send(HELLOS.encode(HELLO), _ANSWERS.encode(Refused(revocation=revocation)))
        if revocation is not None:
            raise ClusterError(f"node {revocation.id} wants to join by a code, and is revoked", peer=revocation.id)
        raise ClusterError("a join code that no open invitation here has")

    async def _receive(self, stream: FrameStream, opening: JoinOpening, code: str) -> None:
        # Counted before it begins: neither many visitors at once nor visits broken off give more tries, or work.
        try:
            is_open = await asyncio.to_thread(self._note_try, code)
        except FileError:
            await _tell_failing(stream)
            raise
        if not is_open:
            await self._refuse(stream)
        exchange = await asyncio.to_thread(_Exchange.inviting, code)
        key = await asyncio.to_thread(exchange.finish, opening.message)
        await stream.send(HELLOS.encode(HELLO), _ANSWERS.encode(JoinAnswer(exchange.message)))
        keys = _JoinKeys(key, stream.transcript)
        proof = await stream.receive(PROOFS)
        if isinstance(proof, Refused) or not hmac.compare_digest(proof.mac, keys.joining_proof):
            await stream.send(PROOFS.encode(Refused()))
            raise ClusterError("a wrong join code; three of them end the invitation")
        await stream.send(PROOFS.encode(Proof(keys.inviting_proof)))
        newcomer = _NEWCOMERS.decode(keys.open_joining(await stream.receive(_SEALED)))
        handover = await asyncio.to_thread(self._take_in, newcomer, code)
        await stream.send(_HANDED.encode(keys.seal_inviting(_HANDOVERS.encode(handover))))
        logger.info("node %s joined by a code", node_id_of(newcomer.public))

    def _note_try(self, code: str) -> bool:
        self._cluster.check_room()  # a code that is used up for a member that cannot be kept is lost
        return self._invitations.note_try(code)

    def _take_in(self, newcomer: Newcomer, code: str) -> Handover:
        node_id = node_id_of(newcomer.public)
        if node_id in self._cluster.load().revoked:
            raise ClusterError(f"node {node_id} is revoked", peer=node_id)
        if not self._invitations.use(code, node_id):
            raise ClusterError("the invitation was used or is too old", peer=node_id)
        state = self._cluster.add_member(node_id, newcomer.public, newcomer.name)
        me = Newcomer(self._keys.public, self._name)
        return Handover(state.cluster_id, state.name, state.current, tuple(state.revoked.values()), me)


async def _tell_failing(stream: FrameStream) -> None:
    await stream.send(HELLOS.encode(HELLO), _ANSWERS.encode(Refused(is_failing=True)))


async def ask_to_join(
    host: str,
    port: int,
    code: str,
    me: Newcomer,
    timeout: float = JOIN_SECONDS,  # noqa: ASYNC109 - a deadline as a whole
) -> Handover | None:
    """Show a code at a node's door, and return the cluster; None where that node has no open invitation with the code.

    Raises `ClusterError` where there is no door, the code is wrong, or the node does not know it itself.
    """
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        async with asyncio.timeout(timeout):
            exchange = await asyncio.to_thread(_Exchange.joining, code)  # before the door counts a visit's two seconds
            stream = FrameStream(*await asyncio.open_connection(host, port, limit=MAX_FRAME_BYTES), peer=place)
            try:
                return await _ask(stream, exchange, code, me)
            finally:
                stream.abort()
    except TimeoutError as error:
        raise ClusterError(f"{place} did not answer within {timeout:g} s", peer=place) from error
    except OSError as error:
        raise unreachable(place, error) from error
    except WireError as error:
        raise ClusterError(f"{place} ended the exchange: {error}", peer=place) from error


async def _ask(stream: FrameStream, exchange: _Exchange, code: str, me: Newcomer) -> Handover | None:
    opening = JoinOpening(hint_of(code), exchange.message, node_id_of(me.public))
    await stream.send(HELLOS.encode(HELLO), _OPENINGS.encode(opening))
    check_hello(await stream.receive(HELLOS), stream.peer)
    answer = await stream.receive(_ANSWERS)
    if isinstance(answer, Refused):
        if answer.is_failing:
            told = "has a fault that its log names, and lets no machine in; the code counts once that is mended"
            raise ClusterError(f"{stream.peer} {told}", peer=stream.peer)
        if answer.revocation is not None:
            raise RevokedKeyError(
                f"{stream.peer} says that this node is revoked there; {REKEY_ADVICE}", peer=stream.peer
            )
        return None
    key = await asyncio.to_thread(exchange.finish, answer.message)
    keys = _JoinKeys(key, stream.transcript)
    await stream.send(PROOFS.encode(Proof(keys.joining_proof)))
    proof = await stream.receive(PROOFS)
    if isinstance(proof, Refused):
        raise WrongCodeError(f"{stream.peer} says that the join code is wrong; read it again", peer=stream.peer)
    if not hmac.compare_digest(proof.mac, keys.inviting_proof):
        raise WrongCodeError(f"{stream.peer} does not know the join code itself; it is not joined", peer=stream.peer)
    await stream.send(_SEALED.encode(keys.seal_joining(_NEWCOMERS.encode(me))))
    return _HANDOVERS.decode(keys.open_inviting(await stream.receive(_HANDED)))


class _Spake2(Protocol):
    """What the library, which has no types, has for either side."""

    def start(self) -> bytes: ...

    def finish(self, inbound_side_and_message: bytes) -> bytes: ...


class _Exchange:
    """One side of SPAKE2."""

    def __init__(self, side: object) -> None:
        self._side = cast("_Spake2", side)
        self.message = self._side.start()

    @classmethod
    def joining(cls, code: str) -> _Exchange:
        from spake2 import SPAKE2_A

        return cls(SPAKE2_A(code.encode(), idA=_JOINING, idB=_INVITING))

    @classmethod
    def inviting(cls, code: str) -> _Exchange:
        from spake2 import SPAKE2_B

        return cls(SPAKE2_B(code.encode(), idA=_JOINING, idB=_INVITING))

    def finish(self, message: bytes) -> bytes:
        """Return the key. It is the other end's only where both have one code."""
        try:
            return self._side.finish(message)
        except Exception as error:  # the library raises many kinds for a message that is no point of its curve
            raise WireError("its SPAKE2 message is none", peer="") from error


class _JoinKeys:
    """What both ends make of one SPAKE2 key and one transcript. Each key seals one message."""

    def __init__(self, key: bytes, transcript: bytes) -> None:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        made = HKDF(SHA256(), 128, salt=transcript, info=b"pyagent join 1").derive(key)
        self.joining_proof, self.inviting_proof = made[:32], made[32:64]
        self._joining, self._inviting = made[64:96], made[96:]

    def seal_joining(self, content: bytes) -> Sealed:
        return _sealed(self._joining, content)

    def seal_inviting(self, content: bytes) -> Sealed:
        return _sealed(self._inviting, content)

    def open_joining(self, sealed: Sealed) -> bytes:
        return _opened(self._joining, sealed)

    def open_inviting(self, sealed: Sealed) -> bytes:
        return _opened(self._inviting, sealed)


def _sealed(key: bytes, content: bytes) -> Sealed:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return Sealed(ChaCha20Poly1305(key).encrypt(_NONCE, content, None))


def _opened(key: bytes, sealed: Sealed) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed.box, None)
    except InvalidTag as error:
        raise WireError("a sealed message was changed on its way", peer="") from error
