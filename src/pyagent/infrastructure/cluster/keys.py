"""A node's own CURVE key pair, and its id, which is a hash of the public key.

Knows no cluster. The file of the keys says on which machine and in which folder they were made: a copy of the folder,
such as a home folder restored on a second machine, gets a pair of its own, so that no two nodes share an id.
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
    file = folder / _FILE
    with locked(folder):
        place = _place(folder)
        stored = read_private(file, _StoredKeys, "move it away: the node then gets a new key pair, and a new id")
        if stored is not None and stored.place == place:
            return NodeKeys(node_id_of(stored.public), stored.public, stored.secret)
        keys = NodeKeys.make(former_id="" if stored is None else node_id_of(stored.public))
        write_private(file, _StoredKeys(keys.public, keys.secret, place))
    if keys.former_id:
        told = "%s is a copy of node %s's: this node has a new key pair, and is %s"
        logger.warning(told, folder, keys.former_id, keys.node_id)
    return keys


def node_id_of(public: str) -> str:
    """Return the id of the node with this public key: 65 bits of its hash, as 13 letters and digits."""
    digest = hashlib.blake2b(public.encode(), digest_size=16, person=b"pyagent node id").digest()
    return base64.b32encode(digest).decode().lower()[:_ID_CHARS]


class _StoredKeys(msgspec.Struct, frozen=True):
    public: str
    secret: str
    place: str

    def __post_init__(self) -> None:
        pair = X25519PrivateKey.from_private_bytes(decode_key(self.secret)).public_key().public_bytes_raw()
        if pair != decode_key(self.public):
            raise ValueError("its public key is not that of its secret key")

    def __repr__(self) -> str:
        return f"_StoredKeys(public={self.public!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("public", self.public)]


def _place(folder: Path) -> str:
    """Return what tells this folder on this machine from a copy; a hash, as a machine's id is not to be told."""
    facts = f"{_machine_id()}\n{folder.stat().st_ino}"
    return hashlib.blake2b(facts.encode(), digest_size=16, person=b"pyagent place").hexdigest()


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
