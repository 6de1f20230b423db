import asyncio
import sys
from pathlib import Path

import pytest
from pyagent_toolserver import ToolServer

from pyagent import Fleet
from pyagent.plugin import Context, RequestError, Task
from pyagent.testing import ScriptedBackend


class Roller:
    name = "roller"
    description = "Rolls a die with as many sides as the task says."

    async def run(self, context: Context, task: Task) -> int:
        return await context.call_tool("roll-dice", {"sides": int(task.text)})


def test_tools_of_the_program_are_called():
    """The fleet starts the program on its first run, calls its tool, refuses wrong arguments, and ends it."""
    server = ToolServer("dice", [sys.executable, str(Path(__file__).with_name("dice_server.py"))])

    async def main():
        async with Fleet(backend=ScriptedBackend([]), agents=[Roller()], tools=[], tool_providers=[server]) as fleet:
            assert await fleet.run_agent("roller", "6") in range(1, 7)
            with pytest.raises(RequestError, match="roll-dice cannot take these arguments"):
                await fleet.run_agent("roller", "1")

    asyncio.run(main())
    assert server.process.returncode is not None
