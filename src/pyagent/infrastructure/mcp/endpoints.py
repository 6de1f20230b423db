"""Where PyAgent answers as an MCP server: standard input and output, or HTTP on this machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.settings import Server as ServerSettings
from pyagent.infrastructure.called_runs import Caller
from pyagent.infrastructure.mcp.serving import AgentServer
from pyagent.infrastructure.server.api_keys import ApiKey, check_origins
from pyagent.infrastructure.server.errors import refusal
from pyagent.infrastructure.server.middleware.auth import AuthMiddleware, send_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.context import ServerRequestContext
    from starlette.requests import Request

    from pyagent.core.fleet.orchestrator import Fleet
    from pyagent.infrastructure.mcp.offers import Offer

PATH = "/mcp"
_MAX_SESSIONS = 1_000
_MAX_BODY_BYTES = 4 << 20


async def serve_stdio(fleet: Fleet, offers: Mapping[str, Offer]) -> None:
    """Answer the program that started this one until it closes our standard input. It has this user's rights."""
    agents = AgentServer(fleet, offers, lambda _: Caller())
    server = agents.server()
    try:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        await agents.close()


@asynccontextmanager
async def http_app(
    fleet: Fleet, offers: Mapping[str, Offer], settings: ServerSettings, keys: Sequence[ApiKey]
) -> AsyncGenerator[ASGIApp]:
    """Yield the application that answers at /mcp, behind the keys and the origins of the server's settings.

    Raises `ConfigError` where every page of the web could use it without a key.
    """
    check_origins(settings.allowed_origins, has_keys=bool(keys))
    files = FileAccess.below(settings.files_root)

    def caller_of(context: ServerRequestContext[Any]) -> Caller:
        state = cast("Request", context.request).state
        return Caller(str(state.client), files, may_approve=bool(state.is_admin) or settings.clients_may_approve)

    agents = AgentServer(fleet, offers, caller_of)
    body_bytes = min(_MAX_BODY_BYTES, settings.max_body_bytes)
    manager = StreamableHTTPSessionManager(
        agents.server(), max_sessions=_MAX_SESSIONS, max_request_body_size=body_bytes
    )
    try:
        async with manager.run():
            door = _Door(manager, tuple(settings.allowed_origins))
            yield _shared(AuthMiddleware(door, tuple(keys)), settings.allowed_origins)
    finally:
        await agents.close()


def _shared(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Return the application for pages of these origins; before the guard, since browsers ask first without a key."""
    if not origins:
        return app
    told = ("mcp-session-id", "mcp-protocol-version", "x-request-id")
    return CORSMiddleware(app, origins, allow_methods=("*",), allow_headers=("*",), expose_headers=told, max_age=600)


@dataclass(frozen=True, slots=True)
class _Door:
    """Lets through what asks for /mcp, from no page of the web but those named; ties each session to its key."""

    manager: StreamableHTTPSessionManager
    origins: Sequence[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")
        if scope["path"] != PATH:
            await send_error(scope["path"], send, refusal(404, f"MCP clients ask at {PATH}", "not_found"))
        elif origin and origin not in self.origins and "*" not in self.origins:
            text = f"pages of {origin[:100]!r} may not use this server; server.allowed_origins names those that may"
            await send_error(PATH, send, refusal(403, text, "wrong_origin"))
        else:
            client = str(scope["state"]["client"])
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=client, scopes=[]))
            await self.manager.handle_request(scope, receive, send)
