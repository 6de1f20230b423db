"""A tool made of a function, and an assistant that uses it beside a built-in one."""

import asyncio
import sys

from pyagent import Fleet, Task, tool


@tool(effect="none")
async def opening_hours(day: str) -> str:
    """Tell when the shop is open.

    Args:
        day: a day of the week, in English
    """
    return "closed" if day.lower() == "sunday" else "9 to 18"


async def main(question: str) -> None:
    async with Fleet(tools=[opening_hours, "calculator"]) as fleet:
        task = Task(text=question, arguments={"steps": 4, "max_tokens": 64})
        print(await fleet.run_agent("assistant", task))


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "Is the shop open on Sunday?"))
