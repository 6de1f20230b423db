"""A PyAgent plugin with one tool: it counts the words of a text."""

import msgspec

from pyagent.plugin import FleetTool, hookimpl


class Arguments(msgspec.Struct, frozen=True):
    """What the tool takes; a model or a program that sends something else is told so."""

    text: str


async def count_words(arguments: Arguments) -> int:
    """Words, as white space parts them."""
    return len(arguments.text.split())


@hookimpl
def pyagent_register_tools() -> list[FleetTool]:
    """The tool `count-words`."""
    return [FleetTool("count-words", "Counts the words of a text.", Arguments, count_words)]
