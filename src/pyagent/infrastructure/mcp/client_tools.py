"""A server's tools as the fleet's: `files__read_file` is what the server `files` calls `read_file`.

What a server says of a tool's effects is a hint that a hostile one lies in: it counts only where the user trusts it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec
from mcp_types import Tool

from pyagent.core.errors import RequestError
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.tool_run import idempotency_key
from pyagent.core.fleet.tools import Effect, FleetTool
from pyagent.core.messages import JsonObject
from pyagent.core.settings import McpServer
from pyagent.infrastructure.mcp.connection import Connection
from pyagent.infrastructure.mcp.results import text_of_result

logger = logging.getLogger("pyagent.mcp")
IDEMPOTENCY_KEY = "pyagent/idempotency-key"
"""Where a call's metadata has the key that is equal when a run that was interrupted makes the call again."""
_MAX_NAME = 64
_MAX_DESCRIPTION = 8_000
_MAX_SCHEMA_BYTES = 100_000
_MAX_CALLS = 8
_MAX_PROGRESS = 100
_PROGRESS_SECONDS = 0.1
_MAX_PROGRESS_CHARACTERS = 200
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(slots=True)
class ServerTools:
    """Makes the tools of one server. At most eight calls of it are under way at once."""

    name: str
    server: McpServer
    connection: Connection
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CALLS))
    _told: set[str] = field(default_factory=set[str])

    def made(self, tools: Sequence[Tool]) -> list[FleetTool]:
        """Return the tools that may be used; one that cannot be offered is named, once."""
        wanted = self.server.tools
        name_to_tool: dict[str, FleetTool] = {}
        for tool in tools:
            if wanted is None or tool.name in wanted:
                try:
                    made = self._made(tool)
                except (RequestError, ValueError, RecursionError) as error:
                    self._warn(f"its tool {tool.name!r:.80} cannot be offered: {error}")
                else:
                    name_to_tool.setdefault(made.name, made)
        for missing in set(wanted or ()) - {tool.name for tool in tools}:
            self._warn(f"it has no tool {missing!r}, which its `tools` name")
        return list(name_to_tool.values())

    def _warn(self, text: str) -> None:
        if text not in self._told and len(self._told) < _MAX_PROGRESS:
            self._told.add(text)
            logger.warning("the MCP server %s: %.500s", self.name, text)

    def _made(self, tool: Tool) -> FleetTool:
        if len(msgspec.json.encode(tool.input_schema)) > _MAX_SCHEMA_BYTES:
            raise RequestError(f"its schema has more than {_MAX_SCHEMA_BYTES:,} bytes", param="tools")
        effect = self._effect(tool)
        return FleetTool(
            tool_name(self.name, tool.name),
            (tool.description or tool.title or "")[:_MAX_DESCRIPTION],
            tool.input_schema,
            self._function(tool.name),
            effect=effect,
            needs_approval=self.server.trust == "none" or (self.server.trust == "annotations" and effect != "none"),
            takes_context=True,
            for_clients=self.server.clients,
        )

    def _effect(self, tool: Tool) -> Effect:
        hints = tool.annotations
        if hints is None or self.server.trust == "none":
            return "once"
        return "none" if hints.read_only_hint else "idempotent" if hints.idempotent_hint else "once"

    def _function(self, tool: str) -> Callable[[JsonObject, Context], Awaitable[str]]:
        async def call(arguments: JsonObject, context: Context) -> str:
            async with self.slots:
                progress = _Progress(self.name, context)
                meta = {IDEMPOTENCY_KEY: idempotency_key()}
                try:
                    result = await self.connection.call(tool, arguments, meta, progress.tell)
                finally:
                    progress.is_over = True
                return text_of_result(tool_name(self.name, tool), result)

        return call


@dataclass(slots=True)
class _Progress:
    """Shows what a call says of its progress, some of it."""

    server: str
    context: Context
    is_over: bool = False
    _count: int = 0
    _at: float = 0.0

    async def tell(self, progress: float, total: float | None, message: str | None) -> None:
        now = time.monotonic()
        if self.is_over or self._count >= _MAX_PROGRESS or now - self._at < _PROGRESS_SECONDS:
            return
        self._count, self._at = self._count + 1, now
        share = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
        text = "".join(letter for letter in (message or "")[:_MAX_PROGRESS_CHARACTERS] if letter.isprintable())
        self.context.progress(f"{self.server}: {share} {text}".rstrip())


def tool_name(server: str, tool: str) -> str:
    """Return a tool's name in the fleet: no two of different servers or tools are equal, and models take each."""
    plain = _NOT_IN_NAMES.sub("_", tool)
    name = f"{server}__{plain}"
    if plain == tool and tool and len(name) <= _MAX_NAME:
        return name
    mark = blake2b(tool.encode(errors="replace"), digest_size=4).hexdigest()
    return f"{name[: _MAX_NAME - len(mark) - 1]}-{mark}"
