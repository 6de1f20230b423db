"""A PyAgent plugin with a tool provider: it starts a program, asks for its tools, and hands their calls on to it."""

import asyncio
import itertools
import json
import sys
from collections.abc import Sequence
from typing import Any

from pyagent.plugin import AgentError, FleetTool, ToolProvider, hookimpl


class ToolServer:
    """A program that reads a JSON object a line and answers with one: `tools/list` and `tools/call`."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.command = command
        self.process: asyncio.subprocess.Process | None = None
        self.ids = itertools.count()
        self.lock = asyncio.Lock()

    async def open(self) -> list[FleetTool]:
        """Start the program. Its tools have JSON schemas: what does not follow them never reaches it."""
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*self.command, stdin=pipe, stdout=pipe)
        return [self.tool(**told) for told in await self.ask("tools/list")]

    def tool(self, name: str, description: str, schema: dict[str, Any]) -> FleetTool:
        async def call(arguments: dict[str, Any]) -> object:
            return await self.ask("tools/call", name=name, arguments=arguments)

        return FleetTool(name, description, schema, call)

    async def ask(self, method: str, **params: object) -> Any:
        assert self.process
        assert self.process.stdin
        assert self.process.stdout
        call_id = next(self.ids)
        async with self.lock:
            self.process.stdin.write(json.dumps({"id": call_id, "method": method, **params}).encode() + b"\n")
            while line := await self.process.stdout.readline():
                answer = json.loads(line)
                if answer["id"] == call_id:  # others are to calls that were cancelled
                    return answer["result"]
        raise AgentError(f"the tool server {self.name} has ended", agent=self.name)

    async def close(self) -> None:
        """End the program, also when opening it failed halfway."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@hookimpl
def pyagent_register_tool_providers() -> list[ToolProvider]:
    """The tools of the program beside this module."""
    return [ToolServer("dice", [sys.executable, "-m", "dice_server"])]
