"""What stands before the routes: request ids, API keys, the Host header, the size of bodies.

One plain ASGI wrapper, so that nothing is added to a streamed answer's way. Keys are compared in constant time and
never logged. Without keys only this machine may call, and only by a name of this machine: a page in a browser that
points its own host name at 127.0.0.1 is turned away (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyagent.core.errors import ConfigError
from pyagent.infrastructure.server.errors import ANTHROPIC_PATH, SHUTTING_DOWN, HttpError, refusal

OPEN_PATHS = frozenset({"/", "/health", "/ready"})
"""Paths that need no key: they tell nothing a port scan does not."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class AuthMiddleware:
    """The ASGI wrapper. `keys` empty means that no key is needed, and that `Host` must be a name of this machine.

    Which key a client has is noted in `scope["state"]["client"]`: `key 1` is the first of them.
    """

    app: ASGIApp
    keys: Sequence[bytes] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through to the routes, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        said = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = said if _REQUEST_ID.fullmatch(said) else os.urandom(16).hex()
        scope.setdefault("state", {})["request_id"] = request_id
        scope["app"] = self  # tells the router that wrong paths and methods are to be raised, not answered

        has_begun = False
        id_header = b"request-id" if scope["path"].startswith(ANTHROPIC_PATH) else b"x-request-id"

        async def send_with_id(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                message["headers"] = [*message.get("headers", ()), (id_header, request_id.encode())]
            await send(message)

        place = self._key_place(headers)
        scope["state"]["client"] = "" if place is None else f"key {place + 1}"
        refused = self._refusal(scope["path"], headers, has_key=place is not None)
        try:
            if refused:
                await send_error(scope["path"], send_with_id, refused)
            else:
                await self.app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # the server stops, and has waited for this request as long as it does
            if not has_begun:
                await send_error(scope["path"], send, SHUTTING_DOWN)

    def _refusal(self, path: str, headers: dict[bytes, bytes], *, has_key: bool) -> HttpError | None:
        if not self.keys:
            host = headers.get(b"host", b"localhost").decode("latin-1")
            if not is_loopback(_without_port(host)):
                return refusal(403, f"this server answers for this machine only, not for {host[:80]!r}", "wrong_host")
            return None
        if path in OPEN_PATHS or has_key:
            return None
        words = "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
        return refusal(401, words, "invalid_api_key", "authentication_error")

    def _key_place(self, headers: dict[bytes, bytes]) -> int | None:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            given = headers.get(b"x-api-key", b"")  # where Anthropic's clients have it
        given = given.strip()
        matches = [hmac.compare_digest(given, key) for key in self.keys]  # all of them, always
        return matches.index(True) if any(matches) else None


async def send_error(path: str, send: Send, error: HttpError) -> None:
    """Send an error as a whole response."""
    headers = [(b"content-type", b"application/json")]
    headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error.body_at(path)})


@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def read_keys(file: Path | None, host: str) -> list[bytes]:
    """The accepted keys, one a line. Raises `ConfigError` when `host` is open to others and there are none."""
    keys: list[bytes] = []
    if file is not None:
        try:
            lines = (line.strip() for line in file.read_bytes().splitlines())
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"the API keys in {file} cannot be read: {reason}", key="server.api_keys_file") from error
        keys = [line for line in lines if line and not line.startswith(b"#")]
        if not keys:
            raise ConfigError(f"{file} holds no API key; write one a line", key="server.api_keys_file")
        if min(map(len, keys)) < 16:
            raise ConfigError(f"an API key in {file} is shorter than 16 characters", key="server.api_keys_file")
    if not keys and not is_loopback(host):
        raise ConfigError(
            f"listening on {host} lets other machines in, which needs API keys; set server.api_keys_file to a file "
            "with one key a line, or listen on 127.0.0.1",
            key="server.api_keys_file",
        )
    return keys
