"""Several agents in one run: two steps side by side, and a third that gets the results of both.

python examples/steps.py src
"""

import asyncio
import sys

import pyagent
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.events import AgentFinished, RunFinished
from pyagent.core.fleet.orchestrator import Step


async def main(folder: str, **options: object) -> object:
    steps = [
        Step(name="sum", agent="math", task=Task(text="integrate x^2 from 0 to 3")),
        Step(name="audit", agent="code-health", task=Task(text=folder)),
        Step(name="report", agent="summarize", task=Task(text="Summarize."), after=("sum", "audit")),
    ]
    result = None
    async with pyagent.Fleet(**options) as fleet:
        async for event in fleet.run(steps):
            match event:
                case AgentFinished():
                    print(f"{event.step} is done after {event.totals.seconds:.1f} s")
                case RunFinished():
                    result = event.output
    return result


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ".")))
