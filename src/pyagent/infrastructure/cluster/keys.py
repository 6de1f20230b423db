"""A node's own CURVE key pair, and its id, which is a hash of the public key.

Knows no cluster. The file of the keys says on which machine and in which folder they are: a copy of the folder, here or
on another machine, gets a pair of its own, so that no two nodes share an id. A folder that was moved, or restored where
it was from a backup, keeps its pair. What cannot be told here, a cloned disk, is found when two nodes of one key meet.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from msgspec.structs import replace
from zmq.utils import z85

from pyagent.core.cluster.cluster_state import decode_key
from pyagent.infrastructure.cluster.private_file import locked, read_private, write_private

_FILE = "node.json"
_ID_CHARS = 13
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_MULTICAST_BIT, _LOCAL_BIT = 1 << 40, 1 << 41

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeKeys:
    """A node's key pair as Z85 texts. `former_id` is the node's id before its folder was copied, mostly empty."""

    node_id: str
    public: str
    secret: str = field(repr=False)
    former_id: str = ""

    @classmethod
    def make(cls, former_id: str = "") -> NodeKeys:
        """Return a new pair."""
        secret = X25519PrivateKey.generate()
        public = z85.encode(secret.public_key().public_bytes_raw()).decode()
        return cls(node_id_of(public), public, z85.encode(secret.private_bytes_raw()).decode(), former_id)

    def shared_with(self, public: str) -> bytes:
        """Return the 32 bytes that only the holders of this pair and of `public`'s can compute (X25519, RFC 7748).

        Raises `ValueError` for a text that is no public key, or one of the few weak ones.
        """
        secret = X25519PrivateKey.from_private_bytes(decode_key(self.secret))
        return secret.exchange(X25519PublicKey.from_public_bytes(decode_key(public)))


def load_or_make_keys(folder: Path) -> NodeKeys:
    """Return the pair kept in a folder, made when there is none or the folder is a copy of another node's.

    Raises `ClusterError` where the file cannot be read or written.
    """
    with locked(folder):
        place, stored = Place.of(folder), _read(folder)
        if stored is None or not place.continues(stored.place):
            return _write_new(folder, "" if stored is None else node_id_of(stored.public))
        if stored.place != place:
            write_private(folder / _FILE, replace(stored, place=place))
            logger.info("%s was moved or restored: this node keeps its keys", folder)
    return NodeKeys(node_id_of(stored.public), stored.public, stored.secret)


def take_new_keys(folder: Path) -> NodeKeys:
    """Make a new pair for a node whose keys another running node has, too."""
    with locked(folder):
        stored = _read(folder)
        return _write_new(folder, "" if stored is None else node_id_of(stored.public))


def _read(folder: Path) -> _StoredKeys | None:
    return read_private(folder / _FILE, _StoredKeys, "move it away: the node then gets a new key pair, and a new id")


def _write_new(folder: Path, former_id: str) -> NodeKeys:
    keys = NodeKeys.make(former_id)
    write_private(folder / _FILE, _StoredKeys(keys.public, keys.secret, Place.of(folder)))
    if former_id:
        told = "%s has the keys of node %s, which another node has: this node has a new key pair, and is %s"
        logger.warning(told, folder, former_id, keys.node_id)
    return keys


def node_id_of(public: str) -> str:
    """Return the id of the node with this public key: 65 bits of its hash, as 13 letters and digits."""
    digest = hashlib.blake2b(public.encode(), digest_size=16, person=b"pyagent node id").digest()
    return base64.b32encode(digest).decode().lower()[:_ID_CHARS]


class Place(msgspec.Struct, frozen=True):
    """A folder on a machine: `machine` is a hash, as a machine's id is not to be told; empty where it is unknown."""

    machine: str
    folder: str
    inode: int

    @classmethod
    def of(cls, folder: Path) -> Place:
        """Return the place of a folder that is there."""
        machine = _machine_id()
        hashed = hashlib.blake2b(machine.encode(), digest_size=16, person=b"pyagent place").hexdigest()
        return cls(hashed if machine else "", str(folder.resolve()), folder.stat().st_ino)

    def continues(self, former: Place) -> bool:
        """Whether a node's folder is what it was, or was moved or restored: then the former one is there no more."""
        if self == former:
            return True
        return self.machine != "" and self.machine == former.machine and not former.is_there()

    def is_there(self) -> bool:
        """Whether a folder of this machine is still there, and no other one in its place."""
        try:
            return Path(self.folder).stat().st_ino == self.inode
        except OSError:
            return False


class _StoredKeys(msgspec.Struct, frozen=True):
    public: str
    secret: str
    place: Place

    def __post_init__(self) -> None:
        pair = X25519PrivateKey.from_private_bytes(decode_key(self.secret)).public_key().public_bytes_raw()
        if pair != decode_key(self.public):
            raise ValueError("its public key is not that of its secret key")

    def __repr__(self) -> str:
        return f"_StoredKeys(public={self.public!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("public", self.public)]


def _machine_id() -> str:
    for file in _MACHINE_IDS:
        try:
            if text := file.read_text(encoding="ascii").strip():
                return text
        except (OSError, UnicodeDecodeError):
            continue
    address = uuid.getnode()
    is_burned_in = not address & (_MULTICAST_BIT | _LOCAL_BIT)  # else random, or new with each start of a container
    return f"{address:012x}" if is_burned_in else ""
