"""Give the fleet a task from a program, and read what happens as it happens."""

import asyncio

import pyagent


async def main() -> None:
    async with pyagent.Fleet() as fleet:
        async for event in fleet.run("17*23 + sqrt(2)"):
            print(event)


asyncio.run(main())
