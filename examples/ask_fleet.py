"""Give the fleet a task from a program, and read what happens as it happens."""

import asyncio

import pyagent
from pyagent.core.fleet.events import RouteChosen, RunFinished


async def main() -> None:
    async with pyagent.Fleet() as fleet:
        async for event in fleet.run("17*23 + sqrt(2)"):
            match event:
                case RouteChosen():
                    print(f"{event.agent}: {event.reason}")
                case RunFinished():
                    print(event.output)


asyncio.run(main())
