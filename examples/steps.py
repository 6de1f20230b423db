"""Several agents in one run: two steps side by side, and a third that gets the results of both.

python examples/steps.py src
"""

import asyncio
import sys

from pyagent import AgentFinished, Backend, Fleet, RunFinished, Step, Task


async def main(folder: str, backend: Backend | None = None) -> object:
    steps = [
        Step(name="sum", agent="math", task=Task(text="integrate x^2 from 0 to 3")),
        Step(name="audit", agent="code-health", task=Task(text=folder)),
        Step(name="report", agent="summarize", task=Task(text="Summarize."), after=("sum", "audit")),
    ]
    result: object = None
    async with Fleet(backend=backend) as fleet:
        async for event in fleet.run(steps):
            match event:
                case AgentFinished():
                    print(f"{event.step} is done after {event.totals.seconds:.1f} s")
                case RunFinished():
                    result = event.output
                case _:
                    pass
    return result


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ".")))
