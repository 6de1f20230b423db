"""Listening, and ending cleanly: a bound socket, uvicorn on it, SIGINT and SIGTERM.

SIGTERM drains: new requests are turned away, and running answers may finish within a time. Ctrl+C gives them a few
seconds. A second signal cuts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import resource
import signal
import socket
import time
from collections.abc import Generator, Sequence
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp

from pyagent.core.errors import ConfigError
from pyagent.core.settings import Server
from pyagent.infrastructure.server.middleware.drain import DrainMiddleware

_INTERRUPT_SECONDS = 3.0
"""What Ctrl+C leaves to running answers."""
_CUT_SECONDS = 1
"""What answers that are cut have to say so."""
_MAX_DESCRIPTORS = 65_536
_NUM_ACCEPTED = 32
"""Connections taken in one turn of the event loop; four turns pass before one of them can be closed for another."""
_NUM_OTHER_DESCRIPTORS = 256
"""Kept for model files, links and what else is not a client."""
_BACKLOG = 2048
_QUIET_SECONDS = 60.0
logger = logging.getLogger("pyagent.server")


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises `ConfigError` in one sentence when the address cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return _listening(family, host, port)
    except socket.gaierror as error:
        raise ConfigError(f"{host!r} is not an address of this machine: {error.strerror}", key="server.host") from error
    except OSError as error:
        match error.errno:
            case errno.EADDRINUSE:
                what = f"port {port} on {host} is in use; stop what listens there, or choose another with --port"
            case errno.EACCES:
                what = f"port {port} needs more rights than this user has; choose one above 1023 with --port"
            case errno.EADDRNOTAVAIL:
                raise ConfigError(f"{host!r} is not an address of this machine", key="server.host") from error
            case _:
                what = f"cannot listen on {host} port {port}: {error.strerror or error}"
        raise ConfigError(what, key="server.port") from error


def _listening(family: int, host: str, port: int) -> socket.socket:
    # Only for a socket whose protocol is named does asyncio switch Nagle's delay off, 40 ms for a token otherwise.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def address(listening: socket.socket) -> str:
    """Return the URL to reach a bound socket at."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def max_connections(wanted: int) -> int:
    """As many connections as are wanted, or as the descriptors of this process allow, of which it takes all it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(_MAX_DESCRIPTORS, hard) if hard != resource.RLIM_INFINITY else _MAX_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    soft = _MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return max(8, min(wanted, soft - min(4 * _NUM_ACCEPTED + _NUM_OTHER_DESCRIPTORS, soft // 2)))


class Complaints:
    """The event loop's complaints; that there are no descriptors left comes a thousand times a second, said seldom."""

    def __init__(self) -> None:
        self._said_at = float("-inf")

    def __call__(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Log one."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in {errno.EMFILE, errno.ENFILE}:
            failed = error if isinstance(error, BaseException) else None  # its own words stay out, as `logging` says
            logger.error("the event loop: %s", str(context.get("message")).partition("(")[0], exc_info=failed)
        elif time.monotonic() - self._said_at > _QUIET_SECONDS:
            self._said_at = time.monotonic()
            logger.error(
                "no file descriptors are left for new connections; raise `ulimit -n`, or lower server.max_connections"
            )


class Leaver(Protocol):
    """What ends besides the answers to HTTP requests: runs without clients, this server's part in a cluster."""

    async def leave(self, grace_seconds: float) -> None:
        """Give its work to others, or end it, in this time."""
        ...


class _Server(uvicorn.Server):
    """uvicorn, except that a signal drains first, and ends `serve` by returning, not by dying of it afterwards."""

    def __init__(
        self, config: uvicorn.Config, draining: DrainMiddleware, drain_seconds: float, leavers: Sequence[Leaver]
    ) -> None:
        super().__init__(config)
        self._draining = draining
        self._drain_seconds = drain_seconds
        self._until = 0.0
        self._leavers = leavers
        self._leaving: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins to drain, the second cuts what runs."""
        if self._draining.is_draining:
            self.should_exit = True
            return
        patience = self._drain_seconds if sig == signal.SIGTERM else min(self._drain_seconds, _INTERRUPT_SECONDS)
        self._until = time.monotonic() + patience
        self._draining.is_draining = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; true ends the server."""
        if self._draining.is_draining:
            is_over = self._has_left() and self._draining.num_running == 0
            self.should_exit |= is_over or time.monotonic() > self._until
        return await super().on_tick(counter)

    def _has_left(self) -> bool:
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave(max(0.0, self._until - time.monotonic())))
        return self._leaving.done()

    async def _leave(self, grace_seconds: float) -> None:
        """Let all that ends besides requests do so, each in the same time."""
        leaving = [leaver.leave(grace_seconds) for leaver in self._leavers]
        for error in await asyncio.gather(*leaving, return_exceptions=True):
            if isinstance(error, Exception):
                logger.warning("work could not be handed over, or ended: %s", error)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections; what has not left by now is cut with them."""
        if self._leaving is not None:
            self._leaving.cancel()
            await asyncio.gather(self._leaving, return_exceptions=True)
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; asyncio makes the queue of the system as short as what it takes at once, which is too short."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_BACKLOG)
        gc.freeze()  # what is there now stays: a full collection takes a fifth of the time without it

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def serve(app: ASGIApp, listening: socket.socket, settings: Server, leavers: Sequence[Leaver] = ()) -> None:
    """Answer on the socket until a signal comes, then a while more. Call it from the main thread.

    The `leavers` get the same time as running requests.
    """
    from pyagent.infrastructure.server.header_timeout import (
        KEEP_ALIVE_SECONDS,
        bounded,
    )  # uvicorn reads h11 only now, too

    draining = DrainMiddleware(app)
    asyncio.get_running_loop().set_exception_handler(Complaints())
    config = uvicorn.Config(
        draining,
        http=bounded(settings.request_seconds, max_connections(settings.max_connections)),
        backlog=_NUM_ACCEPTED,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ws="none",  # no route speaks WebSocket, and the library costs 10 ms to import
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_CUT_SECONDS,
    )
    await _Server(config, draining, settings.drain_seconds, leavers).serve(sockets=[listening])
