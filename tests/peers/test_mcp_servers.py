"""Other people's MCP servers, from npm (`make peers` installs them): their tools are used like any other's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.fleets import Custom
from support.peers import node_module

from pyagent.core.errors import PyAgentError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.settings.mcp import read_mcp_servers
from pyagent.infrastructure.mcp.provider import mcp_providers
from pyagent.testing import ScriptedBackend

pytestmark = pytest.mark.peers
SCOPE = "@modelcontextprotocol"


async def ran(server: dict[str, object], *calls: tuple[str, dict[str, object]]) -> list[str]:
    """Return what the calls of a server `s` return, or what they fail with, in one run."""

    async def work(context: Context, _: Task) -> object:
        said: list[object] = []
        for name, arguments in calls:
            try:
                said.append(await context.call_tool(f"s__{name}", arguments))
            except PyAgentError as error:
                said.append(str(error))
        return said

    providers = mcp_providers(read_mcp_servers({"s": {"command": "node", "startup_seconds": 60, **server}}))
    async with Fleet(ScriptedBackend([]), [Custom("worker", work)], tool_providers=providers) as fleet:
        return list(await fleet.run_agent("worker", "go"))  # type: ignore[call-overload]


def test_server_everything() -> None:
    """Texts, a picture, structured content and a call with progress."""
    program = node_module(f"{SCOPE}/server-everything") / "dist" / "index.js"
    said = asyncio.run(
        ran(
            {"args": [str(program), "stdio"], "trust": "all"},
            ("echo", {"message": "hi"}),
            ("get-sum", {"a": 1, "b": 2}),
            ("get-tiny-image", {}),
            ("get-structured-content", {"location": "New York"}),
            ("trigger-long-running-operation", {"duration": 0.2, "steps": 2}),
        )
    )
    assert said[:2] == ["Echo: hi", "The sum of 1 and 2 is 3."]
    assert "[image of image/png, about" in said[2]
    assert "temperature" in said[3]
    assert "Long running operation completed" in said[4]


def test_server_filesystem(tmp_path: Path) -> None:
    """What its annotations say is only reading runs unasked; what is outside its folder it refuses itself."""
    (tmp_path / "a.txt").write_text("harvest in June")
    program = node_module(f"{SCOPE}/server-filesystem") / "dist" / "index.js"
    said = asyncio.run(
        ran(
            {"args": [str(program), str(tmp_path)], "trust": "annotations"},
            ("read_text_file", {"path": str(tmp_path / "a.txt")}),
            ("read_text_file", {"path": "/etc/passwd"}),
        )
    )
    assert said[0] == "harvest in June"
    assert "s__read_text_file failed: Access denied" in said[1]
