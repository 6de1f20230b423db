"""A program follows a run: a line for what people want to see, the result by its type, and an end that is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

import pyagent
from pyagent import (
    AgentError,
    Backend,
    BudgetError,
    Context,
    Fleet,
    FleetTool,
    RequestError,
    Settings,
    Step,
    Task,
    follow,
    load_settings,
)
from pyagent.core.fleet.journal import MemoryJournal
from pyagent.testing import ScriptedBackend


class Note(msgspec.Struct, frozen=True):
    """What the agent gives."""

    text: str


class Noter:
    """Says what it does, and keeps a note."""

    name = "noter"
    description = "Notes."

    async def run(self, context: Context, task: Task) -> Note:
        """Keep the text, and ask a model whether it is."""
        context.progress(f"notes {task.text}\x1b[2J")
        context.keep(Note(task.text))
        return Note(await context.generate(task.text))


def fleet(backend: Backend, settings: Settings | None = None, **given: object) -> Fleet:
    given = {"agents": [Noter()], "journal": MemoryJournal(), **given}
    return Fleet(settings or Settings(), backend=backend, **given)  # type: ignore[arg-type]


def test_lines_and_result() -> None:
    """Each line stands alone, a result has its type, and an escape of a text is written out."""
    lines: list[str] = []

    async def main() -> Note:
        async with fleet(ScriptedBackend(["well noted"])) as notes:
            return await follow(notes.run("a\nb", agent="noter"), Note, show=lines.append)

    assert asyncio.run(main()) == Note("well noted")
    assert lines[0].startswith("r-")
    assert lines[0].endswith(": a b")
    assert lines[1] == r"  noter: notes a b\x1b[2J"
    assert lines[2].endswith("s, 1 model calls, 2 tokens in, 2 out")
    assert len(lines) == 3


def test_failure_is_told_and_raised() -> None:
    """A run over its budget ends in a line that says what there is of it, and in its error."""
    lines: list[str] = []
    settings = load_settings(overrides={"budget.run.tokens": 100}).settings

    async def main() -> None:
        async with fleet(ScriptedBackend(["never asked"]), settings) as notes:
            with pytest.raises(BudgetError):
                await follow(notes.run("much " * 300, agent="noter"), Note, show=lines.append)

    asyncio.run(main())
    assert lines[-1].endswith("with what there is of noter")
    assert "budget_exhausted after" in lines[-1]
    assert all(len(line) <= 200 for line in lines)


def test_skipped_step_is_shown() -> None:
    """A step that cannot run says which failed before it."""
    lines: list[str] = []
    steps = [
        Step(name="first", agent="noter", task=Task(text="x")),
        Step(name="second", agent="noter", task=Task(text="y"), after=("first",)),
    ]

    async def main() -> None:
        async with fleet(ScriptedBackend([])) as notes:
            with pytest.raises(pyagent.PyAgentError):
                await follow(notes.run(steps), show=lines.append)

    asyncio.run(main())
    assert "  second is skipped, as first failed" in lines
    assert lines[-1].endswith("with what there is of first")


def test_result_of_another_type_is_an_error() -> None:
    """A program that expects something else is told what came."""

    async def main() -> None:
        async with fleet(ScriptedBackend(["x"])) as notes:
            with pytest.raises(AgentError, match="gave a Note; a str was expected"):
                await follow(notes.run("x", agent="noter"), str, show=lambda _: None)

    asyncio.run(main())


def test_names_stand_for_installed_agents_and_tools(tmp_path: Path) -> None:
    """`"math"` is the installed agent, `"*"` all of them; a tool given under an installed name takes its place."""

    async def mine(_: object) -> str:
        return "mine"

    own = FleetTool("calculator", "Mine.", Note, mine, effect="none")
    settings = load_settings(overrides={"tools.root": str(tmp_path)}).settings
    some = fleet(ScriptedBackend([]), settings, agents=[Noter(), "math"], tools=[own, "read_file"])
    assert set(some.agents) == {"noter", "math"}
    assert list(some.tools) == ["calculator", "read_file"]
    every = fleet(ScriptedBackend([]), settings, agents=["*", Noter()], tools=["*", own])
    assert set(every.agents) >= {"noter", "math", "summarize"}
    assert every.tools["calculator"] is own
    assert {"read_file", "calculator"} <= set(every.tools)
    assert list(fleet(ScriptedBackend([]), settings, tools=[]).tools) == []
    with pytest.raises(RequestError, match="there is no agent 'maths'; did you mean 'math'"):
        fleet(ScriptedBackend([]), settings, agents=["maths"])
    with pytest.raises(RequestError, match="there is no tool 'reed_file'; did you mean 'read_file'"):
        fleet(ScriptedBackend([]), settings, tools=["reed_file"])
