"""Runs an ASGI application on a free loopback port for the time of a `with` block, and the faults servers can show."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_WAIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong in a streamed answer, before the piece of index `at`.

    `error`: the server says so in the stream. `end`: the stream ends as if all were well, without its last message.
    `drop`: the connection breaks. `stall`: nothing comes any more.
    """

    kind: Literal["error", "end", "drop", "stall"]
    at: int = 0
    text: str = "the model runner has unexpectedly stopped"

    async def strike(self) -> None:
        """Break the connection or fall silent, where the fault is that; an error is the server's to say."""
        if self.kind == "drop":
            raise DroppedConnectionError
        if self.kind == "stall":
            await asyncio.sleep(3600)


class DroppedConnectionError(Exception):
    """Raised in a fake server to break the connection in the middle of an answer."""


@contextmanager
def serve(app: ASGIApp, *, websockets: bool = False) -> Generator[str]:
    """Serve `app` in a thread; gives `http://127.0.0.1:PORT` and stops at the end of the block."""
    from uvicorn import Config

    from pyagent.testing.prompt_server import PromptServer

    # with the protocol named, asyncio switches Nagle's delay (40 ms) off; without, it does not
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    ws: Literal["wsproto", "none"] = "wsproto" if websockets else "none"
    config = Config(app, log_level=100, access_log=False, lifespan="off", ws=ws, timeout_graceful_shutdown=1)
    server = PromptServer(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="test-server", daemon=True)
    thread.start()
    try:
        _wait_for(lambda: server.started, "start")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        _wait_for(lambda: not thread.is_alive(), "stop")
        listener.close()


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the test server did not {what} within {_WAIT_SECONDS:g} s")
        time.sleep(0.002)
