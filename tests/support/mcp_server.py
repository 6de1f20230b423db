"""An MCP server of the Python package, as a program: `python mcp_server.py` over stdio, with `--http` behind a port."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("stub", log_level="CRITICAL")
READ_ONLY = ToolAnnotations(read_only_hint=True)
FOLDER = Path(os.environ.get("STUB_FOLDER", "."))


@server.tool(annotations=READ_ONLY)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def put(text: str) -> str:
    """Put a text down."""
    (FOLDER / "put.txt").write_text(text)
    return "put"


@server.tool()
def environment() -> list[str]:
    """List the environment."""
    return sorted(os.environ)


@server.tool()
def secret() -> str:
    """Tell the secret's length."""
    return str(len(os.environ.get("STUB_KEY", "")))


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


@server.tool(structured_output=False)
def picture() -> Image:
    """Give a picture."""
    return Image(data=base64.b64decode("aGVsbG8="), format="png")


@server.tool()
async def slow(context: Context) -> str:  # type: ignore[type-arg]
    """Work until it is cancelled, and say so in a file."""
    try:
        for step in range(1, 600):
            await context.report_progress(step, 600, f"step {step}")
            await asyncio.sleep(0.1)
    except BaseException:
        (FOLDER / "cancelled").touch()
        raise
    return "done"


@server.tool()
async def grow(context: Context) -> str:  # type: ignore[type-arg]
    """Have one more tool."""

    def grown() -> str:
        """Be new."""
        return "I am new"

    server.add_tool(grown)
    await context.notify_tools_changed()
    await context.session.send_tool_list_changed()  # of protocols before 2026
    return "grown"


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


@server.tool(structured_output=False)
def long(size: int) -> str:
    """Answer at length."""
    return "x" * size


if __name__ == "__main__":
    if "--http" in sys.argv:
        server.run("streamable-http", port=int(sys.argv[-1]))
    else:
        server.run("stdio")
