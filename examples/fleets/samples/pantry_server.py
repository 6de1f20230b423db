"""An MCP server with a pantry: what is there, and taking some of it. `python pantry_server.py pantry.json`

Written with the official package alone; it knows nothing of PyAgent.
"""

import json
import sys
from pathlib import Path
from typing import Literal

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

Item = Literal["flour", "sugar", "salt", "rice"]
STOCK: dict[str, int] = {"flour": 1500, "sugar": 400, "salt": 250, "rice": 2000}
FILE = Path(sys.argv[1] if len(sys.argv) > 1 else "pantry.json")
server = MCPServer("pantry", log_level="CRITICAL")


def stock() -> dict[str, int]:
    return json.loads(FILE.read_text()) if FILE.exists() else dict(STOCK)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def list_items() -> dict[str, int]:
    """List what is in the pantry, in grams."""
    return stock()


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def how_much(item: Item) -> str:
    """Tell how much there is of one thing."""
    return f"There are {stock()[item]} grams of {item}."


@server.tool()
def take(item: Item, grams: int) -> str:
    """Take some of a thing out of the pantry."""
    left = stock()
    if not 0 < grams <= left[item]:
        return f"That is not possible: there are {left[item]} grams of {item}."
    left[item] -= grams
    FILE.write_text(json.dumps(left))
    return f"Took {grams} grams of {item}; {left[item]} grams are left."


if __name__ == "__main__":
    server.run("stdio")
