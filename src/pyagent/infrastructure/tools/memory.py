"""Tools by which a model notes something and reads notes: those of its run, and of its tenant across runs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from pyagent.core.fleet.context import Context
from pyagent.core.fleet.memory import DEFAULT_TOKENS
from pyagent.core.fleet.notes import MAX_NOTE_CHARACTERS, MAX_RECALLED_TOKENS
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.fleet.tools import FleetTool

Text = Annotated[
    str,
    msgspec.Meta(description="What to remember, in a sentence or two.", min_length=1, max_length=MAX_NOTE_CHARACTERS),
]
Importance = Annotated[float, msgspec.Meta(description="From 0 (of no matter) to 1 (must be known).", ge=0, le=1)]
Lasting = Annotated[
    Literal["run", "fleet"], msgspec.Meta(description="run: for this run's agents; fleet: for later runs too.")
]
About = Annotated[str, msgspec.Meta(description="What the notes should be about; empty is your task.")]
Tokens = Annotated[int, msgspec.Meta(description="Tokens that the notes may take.", ge=1, le=MAX_RECALLED_TOKENS)]


def memory_tools() -> list[FleetTool]:
    """Return `remember` and `recall`."""
    return [tool(effect="idempotent")(remember), tool(effect="none")(recall)]


async def remember(text: Text, context: Context, importance: Importance = 0.5, scope: Lasting = "run") -> str:
    """Note something that you or other agents need later."""
    context.memory.note(text, importance=importance, scope=scope)
    return "noted"


async def recall(context: Context, about: About = "", tokens: Tokens = DEFAULT_TOKENS) -> str:
    """Read the notes that fit best, the most important first."""
    return str(await context.memory.top(tokens=tokens, about=about or None)) or "[no notes]"
