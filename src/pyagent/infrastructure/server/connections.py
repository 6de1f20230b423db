"""Connections that wait for a client's request only so long: one that sends its head byte by byte holds no place.

The time for a request's body is `bodies`' affair, since that is read while a request is under way.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD_BYTES = 65_536
"""Longest request line and headers together."""


def bounded(seconds: float) -> type[H11Protocol]:
    """uvicorn's connection, closed when a request's head is not there within `seconds`."""

    class Connection(H11Protocol):
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._waiting is not None:
                self._waiting.cancel()

        def _watch(self) -> None:
            """Count the time while no request is under way."""
            is_asked = bool(self.cycle) and not self.cycle.response_complete
            if is_asked and self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None
            elif not is_asked and self._waiting is None:
                self._waiting = self.loop.call_later(seconds, self.transport.close)

    return Connection
