"""Runs of agents have effects: each begins on one node, and only while its caller waits for it there.

A node that is to run an agent asks the caller's node for leave right before it begins. Leave is given once, and only as
long as the caller waits: a run that had no leave when its node was lost has not begun, and may be done elsewhere; one
that had may have had its effects. A node that was paused, or cut off, and goes on later gets no leave any more.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyagent.core.errors import BackendError, ClusterError, DeadlineError
from pyagent.infrastructure.cluster.protocol import BEGIN
from pyagent.infrastructure.cluster.transport import Reply, Transport

_LEAVE_SECONDS = 2.0


@dataclass(slots=True)
class AskedRun:
    """A run that this node asked of a peer, and whether that peer has leave to begin it."""

    peer_id: str
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    has_begun: bool = False


class AskedRuns:
    """The runs that this node's callers wait for."""

    def __init__(self) -> None:
        self._id_to_run: dict[str, AskedRun] = {}

    def register(self, transport: Transport) -> None:
        """Have the transport hand on what peers ask."""
        transport.handle(BEGIN, self.begin)

    @contextmanager
    def waiting(self, peer_id: str) -> Generator[AskedRun]:
        """Wait for a run of a peer's; afterwards it may not begin any more."""
        run = AskedRun(peer_id)
        self._id_to_run[run.id] = run
        try:
            yield run
        finally:
            del self._id_to_run[run.id]

    async def begin(self, peer_id: str, payload: bytes, _buffers: Sequence[memoryview]) -> Reply:
        """Give a peer leave to begin, once."""
        run = self._id_to_run.get(payload.decode("ascii", "replace"))
        if run is None or run.peer_id != peer_id or run.has_begun:
            raise ClusterError("no caller waits for this run, or it has begun already", peer=peer_id)
        run.has_begun = True
        return Reply()


async def ask_leave(transport: Transport, peer_id: str, run_id: str) -> None:
    """Return when the node that asked for a run still waits for it. Raises `BackendError` where it does not."""
    asked = time.time()  # a machine that slept must see that it did: the monotonic clock stands still meanwhile
    try:
        await transport.call(peer_id, BEGIN, run_id.encode(), timeout=_LEAVE_SECONDS)
    except (ClusterError, DeadlineError) as error:
        raise BackendError(f"the run was not begun: {error}", backend=transport.node_id) from error
    if not 0 <= time.time() - asked < 2 * _LEAVE_SECONDS:
        raise BackendError("the run was not begun: leave to do so came late", backend=transport.node_id)
