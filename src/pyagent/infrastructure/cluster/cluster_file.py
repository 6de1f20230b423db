"""The cluster that a node belongs to, kept in a file: `core.cluster.cluster_state` and its writes.

Several processes share it, such as a running node and `pyagent cluster revoke`: each change reads, changes and replaces
the file under a lock, and `load` sees what another process wrote.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from pyagent.core.cluster.cluster_state import SECRET_BYTES, ClusterState, EpochSecret, clean_name
from pyagent.core.cluster.messages import Revocation
from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster.keys import node_id_of
from pyagent.infrastructure.cluster.private_file import (
    NODE_LOCK,
    check_room,
    is_there,
    locked,
    read_private,
    write_private,
)

_FILE = "cluster.json"
_ID_BYTES = 10
_ROOM_BYTES = 64 << 10
"""More than a new cluster takes, with its keys and doors."""
_FILES_OF_A_NODE = ("cluster.json", "node.json", "known-peers.json", "invitation.json")
LEAVE_ADVICE = "`pyagent cluster leave` leaves it, then `pyagent cluster join` or `init` makes this machine a new node"
REKEY_ADVICE = "to join again as a new node, run `pyagent cluster leave`, then `pyagent cluster join` with a new code"


class ClusterFile:
    """The file of a node's cluster, in the folder of the node's keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / _FILE
        self._lock = threading.Lock()
        self._read: tuple[object, ClusterState] | None = None

    def exists(self) -> bool:
        """Whether this node is in a cluster. Raises `ClusterError` where its folder cannot be looked into."""
        return is_there(self.file)

    def check_room(self) -> None:
        """Raise `ClusterError` where a cluster could not be kept, as on a full disk."""
        with locked(self.folder):
            check_room(self.file, _ROOM_BYTES)

    def load(self) -> ClusterState:
        """Return the cluster; read again only when the file is another than before.

        Raises `ClusterError` where there is none or the file cannot be read.
        """
        with self._lock:
            version = self._version()
            if self._read is None or self._read[0] != version:
                self._read = (version, self._load())
            return self._read[1]

    def init(self, name: str) -> ClusterState:
        """Make a new cluster. Raises `ClusterError` where this node is in one."""
        secret = EpochSecret(1, secrets.token_bytes(SECRET_BYTES))
        state = ClusterState(secrets.token_hex(_ID_BYTES), clean_name(name), (secret,))
        self.join(state)
        return state

    def join(self, state: ClusterState) -> None:
        """Keep a cluster that this node was let into. Raises `ClusterError` where it is in one."""
        with locked(self.folder):
            if self.exists():
                raise ClusterError(f"this node is in a cluster already ({self.file}); {LEAVE_ADVICE}")
            write_private(self.file, state)

    def add_member(self, node_id: str, public: str, name: str) -> ClusterState:
        """Remember a node that passed the door. Raises `ClusterError` for a revoked one."""
        known = self.load()
        unchanged = known.with_member(node_id, public, name) is known
        return known if unchanged else self._change(lambda state: state.with_member(node_id, public, name))

    def forget_member(self, node_id: str) -> ClusterState:
        """Keep the key of a member no longer."""
        return self._change(lambda state: state.without_member(node_id))

    def rotate(self) -> ClusterState:
        """Begin a new epoch. The members are still to be given its secret, over their encrypted links."""
        secret = secrets.token_bytes(SECRET_BYTES)
        return self._change(lambda state: state.rotated(secret))

    def revoke(self, told: Revocation) -> ClusterState:
        """Revoke a node for ever, on this node's word, and begin a new epoch. Raises `ClusterError` for no member."""
        secret = secrets.token_bytes(SECRET_BYTES)

        def revoked(state: ClusterState) -> ClusterState:
            without = state.with_revoked([told])
            if without is state and told.id not in state.revoked:
                advice = "`pyagent cluster peers` lists them"
                raise ClusterError(f"no member has the id {told.id}; {advice}", peer=told.id)
            return state if without is state else without.rotated(secret)

        return self._change(revoked)

    def merge(self, secrets: Iterable[EpochSecret] = (), revoked: Iterable[Revocation] = ()) -> ClusterState:
        """Take over what a member told: secrets of epochs, and words, found valid, that nodes are revoked.

        Takes what it has room for, and no epoch that is far ahead: a member may have made them up.
        Begins no epoch: the node that revokes does. Where two did so apart, the state `needs_rotation`.
        """
        given, told = tuple(secrets), tuple(revoked)
        return self._change(lambda state: state.with_revoked(told).with_secrets(given))

    def put_out(self, told: Revocation) -> ClusterState:
        """Keep that this node itself is revoked: it would find every door shut after a restart, and not know why."""
        return self._change(lambda state: state if state.own_revocation else replace(state, own_revocation=told))

    def standing(self) -> ClusterState:
        """Return the cluster. Raises `ClusterError` where this node was revoked, and says by whom and what to do."""
        state = self.load()
        if state.own_revocation is None:
            return state
        by = node_id_of(state.own_revocation.by)
        revoker = state.members.get(by)
        named = f"{revoker.name} ({by})" if revoker and revoker.name else f"node {by}"
        told = f"this node was revoked from the cluster {state.name!r} by {named}: the others answer it no more"
        raise ClusterError(f"{told}; {REKEY_ADVICE}")

    def _change(self, change: Callable[[ClusterState], ClusterState]) -> ClusterState:
        with locked(self.folder):
            state = self._load()
            changed = change(state)
            if changed is not state:
                write_private(self.file, changed)
        return changed

    def _load(self) -> ClusterState:
        advice = f"restore it from a copy, or remove {self.file} first and then run `pyagent cluster join`"
        state = read_private(self.file, ClusterState, advice)
        if state is None:
            first = "make one with `pyagent cluster init`, or join one with `pyagent cluster join`"
            raise ClusterError(f"this node is in no cluster; {first}")
        return state

    def _version(self) -> object:
        """Return what changes with each write: a file that replaces another has a new inode."""
        try:
            status = self.file.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def leave(folder: Path) -> bool:
    """Forget a node's cluster and its keys; False where there were none. Raises `ClusterError` while a node runs."""
    refusal = f"a `pyagent node` runs on {folder}; stop it first"
    with locked(folder, NODE_LOCK, refusal=refusal), locked(folder):
        files = [file for name in _FILES_OF_A_NODE if (file := folder / name).exists()]
        for file in files:
            file.unlink()
    return bool(files)


def cluster_folder(data: Path) -> Path:
    """Return where a node keeps its keys and its cluster, in the data folder of the settings."""
    return data / "cluster"
