"""What this node asked its peers for and waits to hear: the answer of a call, the items of a stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyagent.core.errors import WireError
from pyagent.infrastructure.cluster.peer import Path

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler answers, and what a caller gets: a payload, and buffers that cross without being copied.

    A caller's buffers are read-only or its own; those of at least a chunk are aligned to pages.
    """

    payload: bytes = b""
    buffers: Sequence[Buffer] = ()


class Answer:
    """A call that waits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        if not self.reply.done():
            self.reply.set_exception(error)

    def returned(self, reply: Reply) -> None:
        """Take the answer."""
        if not self.reply.done():
            self.reply.set_result(reply)

    def retire(self) -> bool:
        """Take no answer any more; return whether there was none."""
        if self.reply.cancel() or self.reply.cancelled():
            return True
        self.reply.exception()  # seen: nothing is logged
        return False


class Inbox:
    """A stream that is read: the items that have arrived and were not taken."""

    def __init__(self, path: Path, window: int) -> None:
        self.path = path
        self.items = deque[tuple[Reply, int]]()
        self.is_over = False
        self.error: Exception | None = None
        self.credit = window
        self.held_bytes = 0
        self._arrival = asyncio.Event()

    def fail(self, error: Exception) -> None:
        """End it with an error, after what has arrived."""
        self.error = self.error or error
        self.finish()

    def finish(self) -> None:
        """Note that no more items come."""
        self.is_over = True
        self._arrival.set()

    def put(self, reply: Reply, num_held: int) -> None:
        """Take an item. Raises `WireError` for one that was not granted."""
        self.credit -= 1
        if self.credit < 0:
            peer_id = self.path.peer.id
            raise WireError(f"node {peer_id} sends more of a stream than was granted", peer=peer_id)
        self.held_bytes += num_held
        self.items.append((reply, num_held))
        self._arrival.set()

    async def take(self) -> tuple[Reply, int] | None:
        """Return the next item; None at the end. Raises what the stream failed with, after its last item."""
        while not self.items:
            if self.error:
                raise self.error
            if self.is_over:
                return None
            self._arrival.clear()
            await self._arrival.wait()
        reply, num_held = self.items.popleft()
        self.held_bytes -= num_held
        return reply, num_held
