"""What two nodes say at the door, and how each proves that it belongs to the cluster. No socket, no file.

    knocking                                                    the door
    Hello, Opening(cluster tag, nonce, card, known epochs)  ->
                                                            <-  Hello, Answer(nonce, card, chosen epoch) | Refused
    Proof                                                   ->
                                                            <-  Proof | Refused

A proof is an HMAC over the transcript (every byte of both hellos, opening and answer: roles, nonces, ids, keys,
endpoints, epoch, versions). Its key is made from the epoch's secret and from what only the holders of the two CURVE
keys can compute (X25519), so it proves both: a node that knows the secret cannot speak for another's key. An end that
does not know the secret, in whichever role, learns the other's card, which multicast DNS tells too, and nothing else.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from pyagent.core.cluster.cluster_state import ClusterState, EpochSecret
from pyagent.core.cluster.messages import Revocation
from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster.frame_stream import MAX_FRAME_BYTES
from pyagent.infrastructure.cluster.frames import shown
from pyagent.infrastructure.cluster.keys import NodeKeys, node_id_of
from pyagent.infrastructure.wire.codec import Codec
from pyagent.infrastructure.wire.hello import Hello

HELLO = Hello("pyagent-door", "1")
NO_VERSION = ""
"""What a hello says that only asks whether a door is there."""
NONCE_BYTES = 16
_MAC_BYTES = 32
_MAX_ENDPOINTS = 16
_ENDPOINT = re.compile(r"tcp://(?P<host>[^\s/]{1,100}):(?P<port>[0-9]{1,5})")
_WILDCARDS = frozenset({"*", "0.0.0.0", "[::]"})  # noqa: S104 - compared, not bound

Role = Literal["knocking", "door"]
Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Mac = Annotated[bytes, msgspec.Meta(min_length=_MAC_BYTES, max_length=_MAC_BYTES)]
Tag = Annotated[str, msgspec.Meta(max_length=32)]


class OtherReleaseError(ClusterError):
    """The door there speaks another version of its protocol: the node behind it runs another release of PyAgent."""


class Card(msgspec.Struct, frozen=True):
    """What a node says of itself. `boot` differs between two processes that have one key pair."""

    node_id: Annotated[str, msgspec.Meta(max_length=32)]
    name: Annotated[str, msgspec.Meta(max_length=64)]
    public: Annotated[str, msgspec.Meta(min_length=40, max_length=40)]
    endpoints: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=128)], ...], msgspec.Meta(max_length=16)]
    version: Annotated[str, msgspec.Meta(max_length=32)]
    door_port: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    boot: Nonce

    def __post_init__(self) -> None:
        if self.node_id != node_id_of(self.public):
            raise ValueError("the node's id is not that of its key")
        if not all(_ENDPOINT.fullmatch(endpoint) for endpoint in self.endpoints):
            raise ValueError("expected endpoints such as tcp://192.0.2.1:8323")


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """An epoch as it is named in public."""

    number: Annotated[int, msgspec.Meta(ge=1)]
    tag: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]

    @classmethod
    def of(cls, secret: EpochSecret) -> Epoch:
        """Return the name of a secret's epoch."""
        return cls(secret.epoch, secret.tag)


class Opening(msgspec.Struct, frozen=True, tag=True):
    """A knock: of which cluster the node is, and the epochs whose secrets it knows."""

    cluster: Tag
    nonce: Nonce
    card: Card
    epochs: Annotated[tuple[Epoch, ...], msgspec.Meta(min_length=1, max_length=8)]


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The door's answer: the newest epoch that both know."""

    nonce: Nonce
    card: Card
    epoch: Epoch


class Proof(msgspec.Struct, frozen=True, tag=True):
    """The proof of an epoch's secret and of the key on the card."""

    mac: Mac


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A refusal. It tells of which cluster the door is, which is public, and one reason: a member's word, signed.

    Or the node `is_failing`: its own files keep it from letting any other in.
    """

    cluster: Tag = ""
    revocation: Revocation | None = None
    is_failing: bool = False


HELLOS = Codec(Hello, "the other end of the door", MAX_FRAME_BYTES)
ANSWERS: Codec[Answer | Refused] = Codec(Answer | Refused, "the door", MAX_FRAME_BYTES)
PROOFS: Codec[Proof | Refused] = Codec(Proof | Refused, "the other end of the door", MAX_FRAME_BYTES)


def check_hello(theirs: Hello, place: str) -> None:
    """Raise `OtherReleaseError` for another version than this node's, `WireError` for what is no hello of a door."""
    if theirs.protocol == HELLO.protocol and theirs.version not in {HELLO.version, NO_VERSION}:
        told = f"its door speaks version {shown(theirs.version)!r}, this node's {HELLO.version!r}"
        raise OtherReleaseError(
            f"{place} runs another release of PyAgent ({told}): run the same release on both", peer=place
        )
    HELLO.check(theirs, place)


def new_nonce() -> bytes:
    """Return bytes that were never said before."""
    return secrets.token_bytes(NONCE_BYTES)


def epochs_of(state: ClusterState) -> tuple[Epoch, ...]:
    """Return the epochs that a node knows, the newest first."""
    return tuple(map(Epoch.of, state.secrets))


def secret_for(state: ClusterState, epochs: Sequence[Epoch], card: Card) -> EpochSecret | None:
    """Return the newest secret of `epochs` by which the node of a card may be let in; None for none.

    A node that knows only an older one was away while the secret changed, or was revoked: it must be a member's key.
    """
    if card.node_id in state.revoked:
        return None
    common = next((secret for secret in state.secrets if Epoch.of(secret) in epochs), None)
    if common == state.current:
        return common
    return common if state.is_member(card.node_id, card.public) and not state.is_closed else None


def proof_of(role: Role, keys: NodeKeys, peer: Card, secret: EpochSecret, transcript: bytes) -> Proof:
    """Return the proof of one role. Raises `ValueError` where the peer's key is none."""
    key = hmac.digest(secret.secret, b"pyagent door 1" + keys.shared_with(peer.public), "sha256")
    return Proof(hmac.digest(key, role.encode() + b"\0" + transcript, "sha256"))


def proves(proof: Proof, expected: Proof) -> bool:
    """Whether a proof is the expected one, in a time that tells nothing."""
    return hmac.compare_digest(proof.mac, expected.mac)


def host_of(endpoint: str) -> str:
    """Return the host of an endpoint, an address of IPv6 without its brackets; empty for what is none."""
    match = _ENDPOINT.fullmatch(endpoint)
    return match["host"].strip("[]") if match else ""


def seen_endpoints(endpoints: Sequence[str], host: str) -> tuple[str, ...]:
    """Return a peer's endpoints, with the address it is seen at for those that are every address of its machine."""
    seen: dict[str, None] = {}
    for endpoint in endpoints:
        match = _ENDPOINT.fullmatch(endpoint)
        if match is None:
            continue
        written = f"[{host}]" if ":" in host else host
        seen[f"tcp://{written}:{match['port']}" if match["host"] in _WILDCARDS else endpoint] = None
    return tuple(seen)[:_MAX_ENDPOINTS]
