"""Listening, and ending cleanly: a bound socket, uvicorn on it, SIGINT and SIGTERM.

The first signal stops accepting and gives running answers a few seconds; the second cuts them.
"""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp

from pyagent.core.errors import ConfigError

_GRACE_SECONDS = 3


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises `ConfigError` in one sentence when the address cannot be had."""
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
        listening.listen(2048)
    except OSError:
        listening.close()
        raise
    return listening


def address(listening: socket.socket) -> str:
    """The URL to reach a bound socket at."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn, except that a signal ends `serve` by returning, not by dying of the signal afterwards."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Answer on the socket until a signal comes. Call it from the main thread."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    await _Server(config).serve(sockets=[listening])
