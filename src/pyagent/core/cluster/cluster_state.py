"""What a node knows of its cluster: secrets by epoch, the keys of members, the revoked; and how two such views merge.

Pure: new secrets are handed in. Merging takes the same view at every node, in whichever order it happens: a revocation
is never undone, and of two secrets of one epoch, begun on both sides of a partition, every node takes the same.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from pyagent.core.cluster.messages import MAX_REVOKED, Revocation
from pyagent.core.cluster.revoked_list import RevokedList
from pyagent.core.errors import ClusterError

SECRET_BYTES = 32
MAX_MEMBERS = 4_096
MAX_NAME_CHARS = 64
NODE_ID = re.compile(r"[a-z2-7]{13}")
_KEPT_SECRETS = 8
_MAX_LEAP = 1_000
_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85_TO_B85 = str.maketrans(_Z85, _B85)
_MAX_ID_CHARS = 32
_MAX_EPOCH = 2**53


class EpochSecret(msgspec.Struct, frozen=True):
    """The secret of one epoch, and the ids that were revoked when it was made: no node of those was given it."""

    epoch: int
    secret: bytes
    excludes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES or not 1 <= self.epoch <= _MAX_EPOCH or len(self.excludes) > MAX_REVOKED:
            raise ValueError("expected an epoch above 0 and a secret of 32 bytes")
        if any(len(node_id) > _MAX_ID_CHARS for node_id in self.excludes):
            raise ValueError(f"expected ids of at most {_MAX_ID_CHARS} characters")

    def __repr__(self) -> str:
        return f"EpochSecret(epoch={self.epoch}, tag={self.tag.hex()})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return what tracebacks of `rich` show; a struct's own shows every field."""
        return [("epoch", self.epoch), ("tag", self.tag.hex())]

    @property
    def tag(self) -> bytes:
        """What names the secret and tells nothing of it, so that two nodes find the newest that both have."""
        return hmac.digest(self.secret, b"pyagent epoch", "sha256")[:8]


class KnownMember(msgspec.Struct, frozen=True):
    """A node that passed the door once."""

    public: str
    name: str = ""

    def __post_init__(self) -> None:
        decode_key(self.public)
        if len(self.name) > MAX_NAME_CHARS:
            raise ValueError("expected a name of at most 64 characters")


class ClusterState(msgspec.Struct, frozen=True):
    """A cluster as one node knows it. `secrets` begins with the current one; `own_revocation` put this node out."""

    cluster_id: str
    name: str
    secrets: tuple[EpochSecret, ...]
    members: dict[str, KnownMember] = {}
    revoked: dict[str, Revocation] = {}
    own_revocation: Revocation | None = None

    def __post_init__(self) -> None:
        if not self.secrets or len(self.secrets) > _KEPT_SECRETS or self.secrets != _newest_first(self.secrets):
            raise ValueError("expected one to eight secrets, the newest first")
        if not 0 < len(self.cluster_id) <= _MAX_ID_CHARS or len(self.name) > MAX_NAME_CHARS:
            raise ValueError("expected the cluster's id and name")
        if len(self.members) > MAX_MEMBERS or len(self.revoked) > MAX_REVOKED:
            raise ValueError(f"expected at most {MAX_MEMBERS} members and {MAX_REVOKED} revoked ones")

    @property
    def current(self) -> EpochSecret:
        """The secret that a node must know to be let in, unless its key is a member's."""
        return self.secrets[0]

    @property
    def epoch(self) -> int:
        """The number of the current epoch."""
        return self.current.epoch

    @property
    def tag(self) -> str:
        """What names the cluster in public, such as in multicast DNS: a hash of its id."""
        digest = hashlib.blake2b(self.cluster_id.encode(), digest_size=10, person=b"pyagent cluster").digest()
        return base64.b32encode(digest).decode().lower()

    @property
    def needs_rotation(self) -> bool:
        """Whether a revoked node may know the current secret: revocations met that were made apart."""
        return not self.revoked.keys() <= set(self.current.excludes)

    @property
    def is_closed(self) -> bool:
        """Whether the list of the revoked is full: then no old secret opens a door, its owner may be out for ever."""
        return len(self.revoked) >= MAX_REVOKED

    def is_member(self, node_id: str, public: str) -> bool:
        """Whether a node passed the door before, with this key."""
        known = self.members.get(node_id)
        return known is not None and known.public == public

    def with_member(self, node_id: str, public: str, name: str) -> ClusterState:
        """Return it with a member more. Raises `ClusterError` for a revoked one, and where there are too many."""
        if node_id in self.revoked:
            raise ClusterError(f"node {node_id} is revoked", peer=node_id)
        if node_id not in self.members and len(self.members) >= MAX_MEMBERS:
            raise ClusterError(f"the cluster has {MAX_MEMBERS} members, which is the most", peer=node_id)
        member = KnownMember(public, clean_name(name))
        return self if self.members.get(node_id) == member else replace(self, members=self.members | {node_id: member})

    def without_member(self, node_id: str) -> ClusterState:
        """Return it without the key of a member: with an old secret that node is not let in any more."""
        if node_id not in self.members:
            return self
        return replace(self, members={one: member for one, member in self.members.items() if one != node_id})

    def with_revoked(self, told: Iterable[Revocation]) -> ClusterState:
        """Return it with these nodes revoked, as far as `RevokedList` takes them. Begins no epoch.

        Members are put out even where the list has no room to remember them.
        """
        listed, members = RevokedList(self.revoked.values()), dict(self.members)
        for one in told:
            if one.id in members or (NODE_ID.fullmatch(one.id) and listed.takes_unknown(one)):
                listed.add(one)
                members.pop(one.id, None)
        if len(listed) == len(self.revoked) and len(members) == len(self.members):
            return self
        return replace(self, revoked=listed.id_to_revocation, members=members)

    def with_secrets(self, secrets: Iterable[EpochSecret]) -> ClusterState:
        """Return it with secrets that a member handed over; the newest is current.

        One that is more than 1,000 epochs ahead is left out: a member that made up the last epoch there is would keep
        the others from beginning one after it.
        """
        near = [one for one in secrets if one.epoch <= self.epoch + _MAX_LEAP]
        newest = _newest_first((*near, *self.secrets))[:_KEPT_SECRETS]
        return self if newest == self.secrets else replace(self, secrets=newest)

    def rotated(self, secret: bytes) -> ClusterState:
        """Return it in a new epoch with this secret, which no revoked node is to get.

        Where no epoch is left, because one was made up, those after the leap are forgotten and the count goes on
        before it. Every member that knows the revoked does the same, and they agree on the secret as ever.
        """
        left = self.secrets if self.epoch < _MAX_EPOCH else _before_leap(self.secrets)
        number = left[0].epoch + 1 if left else 1
        newest = EpochSecret(number, secret, tuple(sorted(self.revoked)))
        return replace(self, secrets=_newest_first((newest, *left))[:_KEPT_SECRETS])


def decode_key(text: str) -> bytes:
    """Return the 32 bytes of a public or secret key in Z85; raises `ValueError` for a text that is none."""
    told = "expected a key of 40 characters of Z85"
    if not _KEY.fullmatch(text):
        raise ValueError(told)
    try:
        return base64.b85decode(text.translate(_Z85_TO_B85))
    except ValueError:
        raise ValueError(told) from None  # five characters that stand for more than 32 bits


def clean_name(text: str) -> str:
    """Return a name as it may be shown: one line, no control characters, at most 64 characters."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * MAX_NAME_CHARS])
    return " ".join(shown.split())[:MAX_NAME_CHARS]


def _newest_first(secrets: Iterable[EpochSecret]) -> tuple[EpochSecret, ...]:
    """Order secrets by epoch, then tag: an order that every node agrees on. One secret stands once."""
    key_to_secret = {(one.epoch, one.tag): one for one in secrets}
    return tuple(key_to_secret[key] for key in sorted(key_to_secret, reverse=True))


def _before_leap(secrets: tuple[EpochSecret, ...]) -> tuple[EpochSecret, ...]:
    """Return the secrets, the newest first, that are before any step of more than 1,000 epochs; none without one."""
    leaps = [at for at in range(1, len(secrets)) if secrets[at - 1].epoch - secrets[at].epoch > _MAX_LEAP]
    return secrets[leaps[-1] :] if leaps else ()
