"""uvicorn that ends as soon as its last answer is out.

By itself it looks ten times a second whether it is to end, and once more after that: a fifth of a second for each of
the hundreds of servers that a suite starts.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress

import uvicorn

_LOOK_SECONDS = 0.004


class PromptServer(uvicorn.Server):
    """Ends when `should_exit` is set, from any thread; signals stay with the test runner."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Take no signal."""
        yield

    async def main_loop(self) -> None:
        """Wait until it is to end."""
        await self.on_tick(0)
        while not self.should_exit:  # noqa: ASYNC110 - set from any thread
            await asyncio.sleep(_LOOK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and cut the answers that are not out in `timeout_graceful_shutdown`."""
        for listener in [*self.servers, *(sockets or ())]:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(_LOOK_SECONDS)
        for task in self.server_state.tasks:
            task.cancel()
