"""Answers that end when their client does.

A client that leaves must stop costing anything: while an answer is made, whole or streamed, the connection is watched,
and when it goes the backend's stream is closed at once. Knows ASGI, and nothing of models.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pyagent.infrastructure.server.errors import SHUTTING_DOWN, HttpError

T = TypeVar("T")


class ClientLeftError(Exception):
    """The client closed its connection before its answer was ready."""


async def unless_gone(work: Awaitable[T], receive: Receive) -> T:
    """Do `work`; when the client leaves first, cancel it, wait for its clean-up and raise `ClientLeftError`.

    The work is done in the caller's own task, so that it begins at once. The watcher runs only while that waits for
    something, so its cancellation always meets the work, and is taken back here.
    """
    worker, is_gone = cast("asyncio.Task[object]", asyncio.current_task()), False

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        worker.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if is_gone:
            raise ClientLeftError from None
        raise
    finally:
        watching.cancel()
        if is_gone:
            worker.uncancel()


class EventStream(Response):
    """A streamed answer, from an iterator of ready bytes, which it closes at the end, whichever side ends it."""

    def __init__(
        self, events: AsyncGenerator[bytes, None], media_type: str, failed: Callable[[HttpError], bytes]
    ) -> None:
        """`failed` writes an error for a client that has a part of its answer."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._events = events
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events or the client end."""
        try:
            await unless_gone(self._pump(send), receive)
        except (ClientLeftError, OSError):
            scope.setdefault("state", {})["outcome"] = "client_left"
        except asyncio.CancelledError:  # the server stops: say so, as half an answer could pass for a whole one
            told = self._failed(SHUTTING_DOWN)
            await send({"type": "http.response.body", "body": told, "more_body": False})
            return
        if self.background is not None:
            await self.background()

    async def _pump(self, send: Send) -> None:
        async with aclosing(self._events):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
