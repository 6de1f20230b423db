"""Nodes that were looked for and not met, and why: for `pyagent cluster status`, and once for the log.

Knows nothing of how they are looked for. A node that was met before and is off now is not among them: membership lists
it as gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster.frames import shown
from pyagent.infrastructure.cluster.handshake import OtherReleaseError
from pyagent.infrastructure.cluster.told_once import ToldOnce

_MAX_PLACES = 64

logger = logging.getLogger(__name__)


class Unmet:
    """The doors where the last knock failed, by host and port."""

    def __init__(self, has_met: Callable[[str, int], bool], is_peer: Callable[[str], bool]) -> None:
        """`has_met` says whether a node was ever met at a door, `is_peer` whether a node is connected by now."""
        self._has_met = has_met
        self._is_peer = is_peer
        self._failures: dict[tuple[str, int], tuple[str, ClusterError]] = {}
        self._told = ToldOnce()

    def note(self, place: tuple[str, int], node_id: str, error: ClusterError) -> None:
        """Keep why a knock failed where a node is said to be; its id is empty where it is not known."""
        self._failures.pop(place, None)
        if len(self._failures) >= _MAX_PLACES:
            del self._failures[next(iter(self._failures))]
        self._failures[place] = node_id, error
        is_for_all = isinstance(error, OtherReleaseError) and self._told.is_new(str(error))
        logger.log(logging.WARNING if is_for_all else logging.INFO, "%s", error)

    def clear(self, place: tuple[str, int]) -> None:
        """Take note that a node was met there."""
        self._failures.pop(place, None)

    def told(self) -> tuple[str, ...]:
        """Return in a line each why the nodes that should be there are not met."""
        return tuple(
            shown(str(error))
            for place, (node_id, error) in self._failures.items()
            if not self._is_peer(node_id) and (isinstance(error, OtherReleaseError) or not self._has_met(*place))
        )
