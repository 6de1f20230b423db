"""Ending without cutting answers off: counts those that run, and once draining turns new ones away.

While it drains, `/ready` says no, so that load balancers send requests elsewhere; read-only paths still work.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pyagent.infrastructure.server.errors import refusal

_RETRY_SECONDS = 5


class DrainMiddleware:
    """An ASGI application in front of another."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.is_draining = False
        self.num_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, unless it would begin something now."""
        if scope["type"] != "http" or (scope["method"] != "POST" and not self._asks_whether_ready(scope)):
            await self._app(scope, receive, send)
        elif self.is_draining:
            await _turned_away(scope)(scope, receive, send)
        else:
            self.num_running += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self.num_running -= 1

    def _asks_whether_ready(self, scope: Scope) -> bool:
        return self.is_draining and scope["path"] == "/ready"


def _turned_away(scope: Scope) -> Response:
    if scope["path"] == "/ready":
        return Response(b'{"ready":false}', 503, media_type="application/json")
    told = refusal(503, "the server is shutting down; send requests elsewhere", "shutdown", "server_error")
    headers = {"retry-after": str(_RETRY_SECONDS), "connection": "close"}
    return Response(told.body_at(scope["path"]), told.status, headers, media_type="application/json")
