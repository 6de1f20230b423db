"""The MCP servers of the settings as tool providers: opened on a fleet's first run, ended with the fleet.

Imports the package `mcp` when the first server is opened, in a thread: that takes a second.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from pyagent.core.config import child_environment, read_references
from pyagent.core.errors import ConfigError
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.settings import McpServer

if TYPE_CHECKING:
    from pyagent.infrastructure.mcp.connection import Connection
    from pyagent.infrastructure.mcp.incoming import Wire

logger = logging.getLogger("pyagent.mcp")
_PARTS = ("connection", "client_tools", "http", "stdio")


def mcp_providers(servers: Mapping[str, McpServer], *, wait_seconds: float = math.inf) -> list[McpProvider]:
    """Return a provider for each server, not opened. Opening returns after `wait_seconds`; a slow server goes on."""
    return [McpProvider(f"mcp:{name}", name, server, wait_seconds) for name, server in servers.items()]


@dataclass(slots=True)
class McpProvider:
    """The tools of one server. `tools` changes when the server's do."""

    name: str
    server_name: str
    server: McpServer
    wait_seconds: float = math.inf
    tools: list[FleetTool] = field(default_factory=list[FleetTool])
    connection: Connection | None = None
    _beginning: asyncio.Task[None] | None = None

    async def open(self) -> Sequence[FleetTool]:
        """Connect; return the tools there are, which may be none yet. Raises `ConfigError` without the package."""
        self._beginning = asyncio.create_task(self._begin(), name=f"start of the MCP server {self.server_name}")
        seconds = None if math.isinf(self.wait_seconds) else self.wait_seconds
        is_begun, _ = await asyncio.wait([self._beginning], timeout=seconds)
        if is_begun:
            await self._beginning
        else:
            self._beginning.add_done_callback(self._tell_fault)
        return self.tools

    async def _begin(self) -> None:
        """Begin the connection; the package alone takes seconds to import where a machine is busy."""
        await asyncio.to_thread(load_package)
        from pyagent.infrastructure.mcp.client_tools import ServerTools
        from pyagent.infrastructure.mcp.connection import Connection

        self.connection = connection = Connection(
            self.server_name,
            lambda: make_wire(self.server_name, self.server),
            lambda tools: self._take(made.made(tools)),
            self.server.startup_seconds,
            self.server.timeout_seconds,
        )
        made = ServerTools(self.server_name, self.server, connection)
        await connection.open()

    def _tell_fault(self, beginning: asyncio.Task[None]) -> None:
        if not beginning.cancelled() and (error := beginning.exception()) is not None:
            logger.warning("the MCP server %s brings no tools: %s", self.server_name, error)

    async def close(self) -> None:
        """End the connection, and the server's program."""
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait([self._beginning])
        if self.connection is not None:
            await self.connection.close()

    def _take(self, tools: list[FleetTool]) -> None:
        self.tools[:] = tools


def load_package() -> None:
    """Import the package and what is built on it; raises `ConfigError` where it is not installed."""
    try:
        for part in _PARTS:
            import_module(f"pyagent.infrastructure.mcp.{part}")
    except ImportError as error:
        text = f"MCP needs a package that is not installed: pip install mcp ({error})"
        raise ConfigError(text, key="mcp_servers") from error


def make_wire(name: str, server: McpServer) -> Wire:
    """Return the connection to make, with its secrets read. Raises `ConfigError` for one that is not there."""
    from pyagent.infrastructure.mcp.http import Site
    from pyagent.infrastructure.mcp.stdio import Program

    where = f"the MCP server {name}"
    if server.url:
        return Site(server.url, read_references(server.headers, where))
    environment = child_environment(server.env, where)
    secrets = [environment[key] for key in server.env]
    return Program(name, [server.command, *server.args], environment, server.cwd, secrets)
