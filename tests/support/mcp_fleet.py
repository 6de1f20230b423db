"""Fleets with MCP servers: programs that speak the protocol by hand, and the package's own server."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from support.fleets import Custom

from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.settings.mcp import read_mcp_servers
from pyagent.infrastructure.mcp.provider import mcp_providers
from pyagent.testing import ScriptedBackend
from pyagent.testing.prompt_server import PromptServer

SUPPORT = Path(__file__).parent
Work = Callable[[Context], Awaitable[Any]]


def raw(mode: str, **more: object) -> dict[str, object]:
    """A server that starts at once and speaks the protocol by hand."""
    command = [sys.executable, "-S", "-E", str(SUPPORT / "raw_mcp_server.py"), mode]
    return {"command": command[0], "args": command[1:], "trust": "all", "startup_seconds": 60, **more}


def python(folder: Path, **more: object) -> dict[str, object]:
    """The Python package's own server."""
    arguments = {
        "args": [str(SUPPORT / "mcp_server.py")],
        "env": {"STUB_FOLDER": str(folder), "STUB_KEY": "env:STUB_SECRET"},
    }
    return {"command": sys.executable, **arguments, "trust": "all", "startup_seconds": 60, **more}


@asynccontextmanager
async def fleet_of(**servers: object) -> AsyncGenerator[Callable[..., Any]]:
    """A fleet with these servers; what it gives runs a function of an agent's context."""
    async with Fleet(ScriptedBackend([]), [], tool_providers=mcp_providers(read_mcp_servers(servers))) as fleet:

        async def run(work: Work, *, is_client: bool = False, seen: list[ev.Event] | None = None) -> Any:
            async def function(context: Context, _: Task) -> object:
                return await work(context)

            fleet.agents["worker"] = Custom("worker", function)
            access = FileAccess.below(None) if is_client else FileAccess()
            output: object = None
            async for event in fleet.run("work", agent="worker", file_access=access):
                (seen if seen is not None else []).append(event)
                if isinstance(event, ev.RunFinished):
                    output = event.output
            return output

        yield run


def calling(name: str, **arguments: object) -> Work:
    return lambda context: context.call_tool(name, arguments)


async def names(context: Context) -> list[str]:
    return list(context.tools)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - of files and processes too
            await asyncio.sleep(0.01)


def is_alive(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@asynccontextmanager
async def served(app: Any) -> AsyncGenerator[str]:
    """Serve an application with a lifespan on this event loop."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = PromptServer(uvicorn.Config(app, log_level=100, access_log=False, timeout_graceful_shutdown=1))
        job = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await job
