"""What stands before the routes: request ids, API keys, the Host header, the size of bodies.

One plain ASGI wrapper, so that nothing is added to a streamed answer's way. Without keys only this machine may call,
and only by a name of this machine: a page in a browser that points its own host name at 127.0.0.1 is turned away (DNS
rebinding).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyagent.infrastructure.server.api_keys import ApiKey, is_loopback, key_of
from pyagent.infrastructure.server.errors import ANTHROPIC_PATH, SHUTTING_DOWN, HttpError, refusal

AGENT_CARD_PATH = "/.well-known/agent-card.json"
OPEN_PATHS = frozenset({"/", "/health", "/v1/health", "/ready", AGENT_CARD_PATH})
"""Paths that need no key: they tell nothing a port scan does not, or, as the card, what is there only on demand."""
HOOKS_PATH = "/v1/hooks/"
"""Below it a request's signature is its key: senders have no other, and come by whatever name leads here."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class AuthMiddleware:
    """The ASGI wrapper. `keys` empty means that no key is needed, and that `Host` must be a name of this machine.

    Whose key a request has is noted in `scope["state"]`: `client`, its name, and `is_admin`.
    """

    app: ASGIApp
    keys: Sequence[ApiKey] = ()
    has_hooks: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through to the routes, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.fullmatch(given) else os.urandom(16).hex()
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

        key = key_of(headers, self.keys)
        scope["state"]["client"] = key.name if key else ""
        scope["state"]["is_admin"] = key.is_admin if key else not self.keys
        refused = self._refusal(scope["path"], headers, has_key=key is not None)
        try:
            if refused:
                await send_error(scope["path"], send_with_id, refused)
            else:
                await self.app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # the server stops, and has waited for this request as long as it does
            if not has_begun:
                await send_error(scope["path"], send, SHUTTING_DOWN)

    def _refusal(self, path: str, headers: dict[bytes, bytes], *, has_key: bool) -> HttpError | None:
        if self.has_hooks and path.startswith(HOOKS_PATH):
            return None
        if not self.keys:
            host = headers.get(b"host", b"localhost").decode("latin-1")
            if not is_loopback(_without_port(host)):
                return refusal(403, f"this server answers for this machine only, not for {host[:80]!r}", "wrong_host")
            return None
        if path in OPEN_PATHS or has_key:
            return None
        words = "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
        return refusal(401, words, "invalid_api_key", "authentication_error")


async def send_error(path: str, send: Send, error: HttpError) -> None:
    """Send an error as a whole response."""
    headers = [(b"content-type", b"application/json")]
    headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error.body_at(path)})


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
