"""A PyAgent plugin with one agent: it writes haiku and counts their syllables."""

import re
from typing import Annotated

import msgspec

from pyagent.plugin import Agent, Context, SamplingParams, Task, hookimpl

Line = Annotated[str, msgspec.Meta(max_length=48)]
TASKS = (
    "Write a haiku about autumn rain",
    "Compose a haiku on the sea in winter",
    "A Japanese poem of seventeen syllables about my cat",
    "Three lines of verse, five, seven and five syllables, on the moon",
    "Put this feeling into a haiku",
    "A short nature poem in the Japanese manner",
)


class Poem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Three lines. The model is held to this form while it writes."""

    first: Line
    second: Line
    third: Line

    def __str__(self) -> str:
        return f"{self.first}\n{self.second}\n{self.third}"

    @property
    def syllables(self) -> list[int]:
        """Groups of vowels in each line, which is near enough."""
        return [len(re.findall("[aeiouy]+", line.lower())) for line in (self.first, self.second, self.third)]


class Haiku:
    """Writes a haiku; one with wrong counts goes back to the model once."""

    name = "haiku"
    description = "Writes a haiku about the subject it is given."
    typical_tasks = TASKS

    async def run(self, context: Context, task: Task) -> Poem:
        """Ask for a poem, count, and ask again where needed."""
        sampling = SamplingParams(temperature=0.7, max_tokens=120, seed=7)
        poem = await context.generate(f"Write a haiku about {task.text}.", schema=Poem, sampling=sampling)
        if poem.syllables != [5, 7, 5]:
            context.progress(f"the lines have {poem.syllables} syllables; once more")
            poem = await context.retry(f"The lines have {poem.syllables} syllables. They need 5, 7 and 5.")
        return poem


@hookimpl
def pyagent_register_agents() -> list[Agent]:
    """The agent `haiku`."""
    return [Haiku()]
