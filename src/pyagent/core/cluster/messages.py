"""What members say to each other: probes, gossip, and the comparison of whole tables.

An `Update` is one claim about one member. Any message that goes out carries waiting updates; none is longer than
`MAX_MESSAGE_BYTES`, and all are refused beyond their bounds when they are decoded.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pyagent.core.cluster.member import MAX_ADVERT_BYTES, Counter, Incarnation, Member, NodeId, PublicKey

MAX_MESSAGE_BYTES: Final = 64 << 10
MAX_UPDATES: Final = 1024
MAX_ENTRIES: Final = 1024
MAX_REVOKED: Final = 1024
_MAX_SIGNATURE_BYTES: Final = 64


class Alive(msgspec.Struct, frozen=True, array_like=True, tag="alive"):
    """A member runs, in this incarnation."""

    member: Member


class Suspect(msgspec.Struct, frozen=True, array_like=True, tag="suspect"):
    """`by` had no answer from a member; `is_cut` when its connection to the member is broken or refused."""

    id: NodeId
    incarnation: Incarnation
    by: NodeId
    is_cut: bool = False


class Dead(msgspec.Struct, frozen=True, array_like=True, tag="dead"):
    """A member was suspected and did not contradict in time."""

    id: NodeId
    incarnation: Incarnation


class Left(msgspec.Struct, frozen=True, array_like=True, tag="left"):
    """A member said goodbye."""

    id: NodeId
    incarnation: Incarnation


class Revocation(msgspec.Struct, frozen=True, array_like=True, tag="revoked"):
    """A node is out of the cluster for ever: the owner of the key `by` says so, and signed it."""

    id: NodeId
    by: PublicKey = ""
    signature: Annotated[bytes, Meta(max_length=_MAX_SIGNATURE_BYTES)] = b""


class Advert(msgspec.Struct, frozen=True, array_like=True, tag="advert"):
    """What a member says of itself, in one start of its process; the highest version is taken."""

    id: NodeId
    boot: Counter
    version: Counter
    data: Annotated[bytes, Meta(max_length=MAX_ADVERT_BYTES)]


Update = Alive | Suspect | Dead | Left | Revocation | Advert
Updates = Annotated[tuple[Update, ...], Meta(max_length=MAX_UPDATES)]


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Ask for an `Ack`."""

    seq: Counter
    updates: Updates = ()


class PingRequest(msgspec.Struct, frozen=True, array_like=True, tag="ping-request"):
    """Ask a third member to ping `target`: it answers by an `Ack` for the target, or by a `Nack` for itself."""

    seq: Counter
    target: NodeId
    updates: Updates = ()


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="ack"):
    """The member that was pinged runs."""

    seq: Counter
    updates: Updates = ()


class Nack(msgspec.Struct, frozen=True, array_like=True, tag="nack"):
    """The target did not answer the third member in time; `is_cut` when its own connection to the target is broken."""

    seq: Counter
    is_cut: bool = False
    updates: Updates = ()


class Gossip(msgspec.Struct, frozen=True, array_like=True, tag="gossip"):
    """Updates alone."""

    updates: Updates = ()


class Sync(msgspec.Struct, frozen=True, array_like=True, tag="sync"):
    """Compare tables: a `Digest` comes back where the checksums differ."""

    checksum: Counter
    updates: Updates = ()


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """What a table holds of one member, without its text."""

    id: NodeId
    incarnation: Incarnation
    rank: Annotated[int, Meta(ge=0, le=3)]
    advert_version: Counter
    boot: Counter


class Digest(msgspec.Struct, frozen=True, array_like=True, tag="digest"):
    """Entries, and the revoked, of the ids in `first < id <= last`, in order; an empty `last` is the end."""

    first: Annotated[str, Meta(max_length=64)]
    last: Annotated[str, Meta(max_length=64)]
    entries: Annotated[tuple[Entry, ...], Meta(max_length=MAX_ENTRIES)]
    revoked: Annotated[tuple[NodeId, ...], Meta(max_length=MAX_REVOKED)] = ()


class Pull(msgspec.Struct, frozen=True, array_like=True, tag="pull"):
    """Ask for what a table holds of some members."""

    ids: Annotated[tuple[NodeId, ...], Meta(max_length=MAX_ENTRIES)]


class Push(msgspec.Struct, frozen=True, array_like=True, tag="push"):
    """What a table holds of some members. It can be old: a death in it is checked before it is believed."""

    updates: Updates


Message = Ping | PingRequest | Ack | Nack | Gossip | Sync | Digest | Pull | Push
Carrier = Ping | PingRequest | Ack | Nack | Gossip | Sync
"""A message with room for updates."""
