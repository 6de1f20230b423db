"""The work of `pyagent mcp serve`: a fleet, offered to the program that started us, or over HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyagent.cli.startup import set_up_logging
from pyagent.infrastructure.mcp.provider import load_package

if TYPE_CHECKING:
    from pyagent.core.settings import Settings
    from pyagent.fleet import Fleet


async def serve_program(settings: Settings, agents: Sequence[str], tools: Sequence[str]) -> None:
    """Answer on standard input and output until the input ends."""
    await asyncio.to_thread(load_package)
    from pyagent.infrastructure.mcp.endpoints import serve_stdio
    from pyagent.infrastructure.mcp.offers import offers_of

    async with _fleet(settings) as fleet:
        await serve_stdio(fleet, offers_of(fleet, agents, tools))


async def serve_http(settings: Settings, agents: Sequence[str], tools: Sequence[str]) -> None:
    """Answer at /mcp until a signal comes, by the server's settings: its address, keys and origins."""
    await asyncio.to_thread(load_package)
    from pyagent.infrastructure.mcp.endpoints import PATH, http_app
    from pyagent.infrastructure.mcp.offers import offers_of
    from pyagent.infrastructure.server.api_keys import read_keys
    from pyagent.infrastructure.server.uvicorn_server import address, bind, serve

    keys = read_keys(settings.server)
    set_up_logging(settings)
    async with _fleet(settings) as fleet:
        offers = offers_of(fleet, agents, tools)
        with bind(settings.server.host, settings.server.port) as listening:
            async with http_app(fleet, offers, settings.server, keys) as app:
                sys.stdout.write(f"MCP clients are answered at {address(listening)}{PATH}; Ctrl+C stops it\n")
                sys.stdout.flush()
                await serve(app, listening, settings.server)


def _fleet(settings: Settings) -> Fleet:
    from pyagent.fleet import Fleet
    from pyagent.infrastructure.mcp.tool_agent import ToolAgent

    return Fleet(settings, agents=["*", ToolAgent()])
