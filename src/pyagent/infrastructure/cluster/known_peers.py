"""The doors of nodes that this node met before: the first that it knocks at when it starts again.

A cache: what cannot be read is told and forgotten, and an entry that was not met for a month is left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster.private_file import locked, read_private, write_private

MAX_PEERS = 256
MAX_AGE_SECONDS = 30 * 86_400.0
_FRESH_SECONDS = 3_600.0
_FILE = "known-peers.json"

logger = logging.getLogger(__name__)


class KnownDoor(msgspec.Struct, frozen=True):
    """A node's door, and when it was last behind it, in seconds of the system's clock."""

    node_id: Annotated[str, msgspec.Meta(max_length=32)]
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    met_at: float


class KnownPeers:
    """The file of the doors."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._file = folder / _FILE
        self._clock = clock
        self._met: frozenset[tuple[str, int]] = frozenset()

    def doors(self) -> list[KnownDoor]:
        """Return the doors, the one met last first."""
        try:
            found = read_private(self._file, list[KnownDoor], "it is a cache, and made anew")
        except ClusterError as error:
            logger.warning("%s", error)
            return []
        now = self._clock()
        young = [door for door in found or [] if now - door.met_at < MAX_AGE_SECONDS]
        doors = sorted(young, key=lambda door: -door.met_at)[:MAX_PEERS]
        self._note(doors)
        return doors

    def has_met(self, host: str, port: int) -> bool:
        """Whether a node was met at a door, as far as was last read or written: it reads no file."""
        return (host, port) in self._met

    def remember(self, node_id: str, host: str, port: int) -> None:
        """Keep the door that a node was met at last; the same one is not written again within an hour."""
        door = KnownDoor(node_id, host, port, self._clock())
        if any(_is_fresh(known, door) for known in self.doors()):
            return
        with locked(self._folder):
            others = [known for known in self.doors() if known.node_id != node_id]
            kept = [door, *others][:MAX_PEERS]
            write_private(self._file, kept)
            self._note(kept)

    def forget(self, node_id: str) -> None:
        """Leave out a node that is revoked, or no longer where it was."""
        with locked(self._folder):
            doors = self.doors()
            left = [known for known in doors if known.node_id != node_id]
            if left != doors:
                write_private(self._file, left)
                self._note(left)

    def _note(self, doors: list[KnownDoor]) -> None:
        self._met = frozenset((door.host, door.port) for door in doors)


def _is_fresh(known: KnownDoor, door: KnownDoor) -> bool:
    same_place = (known.node_id, known.host, known.port) == (door.node_id, door.host, door.port)
    return same_place and 0 <= door.met_at - known.met_at < _FRESH_SECONDS
