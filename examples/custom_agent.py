"""An agent of your own, without a package around it: it answers, checks itself, and asks again when it must.

python examples/custom_agent.py "the sea"
"""

import asyncio
import sys

import msgspec

from pyagent import Backend, Context, Fleet, SamplingParams, Task


class Title(msgspec.Struct, frozen=True):
    """What the agent gives; the model is held to this form while it writes."""

    title: str


class Titles:
    """Finds a title of at most five words."""

    name = "titles"
    description = "Finds a short title for a subject."

    async def run(self, context: Context, task: Task) -> Title:
        sampling = SamplingParams(temperature=0.0, max_tokens=40)
        found = await context.generate(f"A title for a book about {task.text}:", schema=Title, sampling=sampling)
        if len(found.title.split()) > 5:
            context.progress(f"too long: {found.title}")
            found = await context.retry("That is too long. Use at most five words.")
        return found


async def main(subject: str, backend: Backend | None = None) -> Title:
    async with Fleet(agents=[Titles()], backend=backend) as fleet:
        title = await fleet.run_agent("titles", subject)
        assert isinstance(title, Title)
        return title


if __name__ == "__main__":
    print(asyncio.run(main(" ".join(sys.argv[1:]) or "the sea")).title)
