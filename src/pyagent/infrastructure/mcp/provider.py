"""The MCP servers of the settings as tool providers: opened on a fleet's first run, ended with the fleet.

Imports the package `mcp` when the first server is opened, in a thread: that takes a second.
"""

from __future__ import annotations

import asyncio
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

_PARTS = ("connection", "client_tools", "http", "stdio")


def mcp_providers(servers: Mapping[str, McpServer]) -> list[McpProvider]:
    """Return a provider for each server, not opened."""
    return [McpProvider(f"mcp:{name}", name, server) for name, server in servers.items()]


@dataclass(slots=True)
class McpProvider:
    """The tools of one server. `tools` changes when the server's do."""

    name: str
    server_name: str
    server: McpServer
    tools: list[FleetTool] = field(default_factory=list[FleetTool])
    connection: Connection | None = None

    async def open(self) -> Sequence[FleetTool]:
        """Connect; return the tools there are, which may be none yet. Raises `ConfigError` without the package."""
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
        return self.tools

    async def close(self) -> None:
        """End the connection, and the server's program."""
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
