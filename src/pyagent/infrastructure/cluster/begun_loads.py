"""The models that this node began to load for the placement and never had: kept over its own end.

A model that ends the process which loads it would else be loaded again at each start, on one node after the other. What
cannot be read is told and forgotten.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from pyagent.core.cluster.placement import LONGEST_REST_SECONDS, MAX_WISHES, Begun
from pyagent.core.errors import ClusterError
from pyagent.core.resilience.deadline import Clock
from pyagent.infrastructure.cluster.private_file import read_private, write_private

_FILE = "placement.json"
logger = logging.getLogger(__name__)


class _Load(msgspec.Struct, frozen=True):
    """A model, how often it was begun, and until when it is left to others, in seconds of the system's clock."""

    model: str
    times: Annotated[int, msgspec.Meta(ge=1)]
    rests_until: float


class BegunLoads:
    """The file of them. `clock` is that of the node's plans, which ends with the process."""

    def __init__(self, folder: Path, clock: Clock = time.monotonic) -> None:
        self._file = folder / _FILE
        self.clock = clock

    def read(self) -> dict[str, Begun]:
        """Return what was begun before. Whatever the system's clock did, no rest is longer than the longest."""
        try:
            found = read_private(self._file, list[_Load], "models that failed to load are tried again")
        except ClusterError as error:
            logger.warning("%s", error)
            return {}
        now, wall = self.clock(), time.time()
        return {
            load.model: Begun(load.times, now + min(max(load.rests_until - wall, 0.0), LONGEST_REST_SECONDS))
            for load in (found or [])[:MAX_WISHES]
        }

    def write(self, begun: Mapping[str, Begun]) -> None:
        """Keep what was begun; that it cannot be kept is told, and stops no load. Blocks."""
        wall = time.time() - self.clock()
        try:
            write_private(self._file, [_Load(name, one.times, one.rests_until + wall) for name, one in begun.items()])
        except ClusterError as error:
            logger.warning("%s", error)
