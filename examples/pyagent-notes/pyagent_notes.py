"""A PyAgent plugin with an agent that answers from the notes in `~/notes`, and declares that it needs no more."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from pyagent.plugin import Agent, Context, Task, hookimpl

pyagent_capabilities = {"read": ["~/notes"]}


class Notes:
    name = "notes"
    description = "Answers questions from the notes in ~/notes."

    async def run(self, context: Context, task: Task) -> str:
        texts = await asyncio.to_thread(read_notes)
        context.progress(f"{len(texts)} notes")
        return await context.generate("\n\n".join([*texts, f"Answer from these notes: {task.title}"]))


def read_notes() -> list[str]:
    folder = Path(pyagent_capabilities["read"][0]).expanduser()
    return [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.md"))]


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The agent `notes`."""
    return [Notes()]
