"""The routes as a server has them: the package is imported, and the fleet made, by the first request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pyagent.core.errors import ConfigError
from pyagent.core.settings import Server
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.endpoints import route
from pyagent.infrastructure.server.middleware.auth import AGENT_CARD_PATH

if TYPE_CHECKING:
    from pyagent.infrastructure.a2a.routes import A2aEndpoint

PATH = "/a2a"


def a2a_routes(agents: AgentBackend, settings: Server) -> list[Route]:
    """Return the two routes. Raises `ConfigError` where the package is not installed."""
    if find_spec("a2a") is None or find_spec("sse_starlette") is None:
        text = "A2A needs packages that are not installed: pip install a2a-sdk sse-starlette"
        raise ConfigError(text, key="server.a2a")
    made: A2aEndpoint | None = None

    async def endpoint() -> A2aEndpoint:
        nonlocal made
        if made is None:
            await asyncio.to_thread(import_module, "pyagent.infrastructure.a2a.routes")
            from pyagent.infrastructure.a2a.routes import A2aEndpoint

            fleet = await agents.made()
            made = made or A2aEndpoint(agents, fleet, settings, PATH)
        return made

    async def card(request: Request) -> Response:
        return await (await endpoint()).card(request)

    async def answer(request: Request) -> Response:
        return await (await endpoint()).answer(request)

    functions: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
        ("GET", AGENT_CARD_PATH): card,
        ("POST", PATH): answer,
    }
    return [route(method, path, function) for (method, path), function in functions.items()]
