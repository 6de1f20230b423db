import asyncio

from pyagent_haiku import Haiku, Poem

import pyagent
from pyagent.testing import ScriptedBackend

LONG = '{"first": "Rain", "second": "rain", "third": "rain"}'
RIGHT = '{"first": "An old silent pond", "second": "A frog jumps into the pond", "third": "Splash! Silent again."}'


def write(*answers: str) -> object:
    async def work() -> object:
        async with pyagent.Fleet(backend=ScriptedBackend(answers), agents=[Haiku()]) as fleet:
            return await fleet.run_agent("haiku", "rain")

    return asyncio.run(work())


def test_poem_with_right_counts_is_kept():
    """A poem of 5, 7 and 5 syllables is the result."""
    poem = write(RIGHT)
    assert isinstance(poem, Poem)
    assert poem.syllables == [5, 7, 5]


def test_poem_with_wrong_counts_is_asked_for_again():
    """Wrong counts lead to one more question, and its answer is the result."""
    assert str(write(LONG, RIGHT)).startswith("An old silent pond")
