"""The fleet's loop with scripted models: runs, steps, results, typed tools and arguments, events."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from support.fleets import Custom, ask, echo, events_of, fleet_of

from pyagent.core.errors import AgentError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.steps import Step
from pyagent.core.fleet.tools import FleetTool
from pyagent.testing import ScriptedBackend


def test_run_tells_its_story_and_journals_it() -> None:
    """A run's events come in order, end with the result and the totals, and are replayed from the journal."""

    async def main() -> None:
        async with fleet_of(Custom("ask", ask), script=["a b c"]) as fleet:
            seen, error = await events_of(fleet, "hello")
            assert error is None
            assert [type(event).__name__ for event in seen] == [
                *("RunStarted", "RouteChosen", "AgentStarted", "ModelCalled", "AgentFinished", "RunFinished")
            ]
            last = seen[-1]
            assert isinstance(last, ev.RunFinished)
            assert last.output == "a b c"
            assert (last.totals.prompt_tokens, last.totals.completion_tokens, last.totals.model_calls) == (1, 3, 1)
            assert [record.event for record in fleet.journal.replay(seen[0].run)] == seen

    asyncio.run(main())


def test_steps_get_the_results_they_come_after() -> None:
    """A graph of steps hands results on, and the run's output is the last step's."""

    async def join(context: Context, task: Task) -> object:
        return " ".join(str(task.results[name]) for name in sorted(task.results))

    steps = [
        Step(name="join", agent="join", task=Task(text="join"), after=("x", "y")),
        Step(name="x", agent="echo", task=Task(text="1")),
        Step(name="y", agent="echo", task=Task(text="2")),
    ]
    seen, error = asyncio.run(events_of(fleet_of(Custom("join", join), Custom("echo", echo)), steps))
    assert error is None
    assert isinstance(seen[-1], ev.RunFinished)
    assert seen[-1].output == "1! 2!"


def test_cyclic_steps_are_refused() -> None:
    """Steps that wait for each other are refused by name before anything runs."""
    steps = [
        Step(name="a", agent="e", task=Task(text="1"), after=("b",)),
        Step(name="b", agent="e", task=Task(text="2"), after=("a",)),
    ]
    seen, error = asyncio.run(events_of(fleet_of(Custom("e", echo)), steps))
    assert seen == []
    assert "a -> b -> a" in str(error)


def test_agents_that_need_each_other_are_refused() -> None:
    """A fleet whose agents need each other in a circle does not start, and the circle is named."""
    with pytest.raises(RequestError, match="a -> b -> a"):
        fleet_of(Custom("a", echo, needs=("b",)), Custom("b", echo, needs=("a",)))


def test_foreign_exception_becomes_an_agent_error() -> None:
    """A bug in an agent is reported by the agent's name, with its cause; the fleet goes on."""

    async def bug(context: Context, task: Task) -> object:
        return 1 / 0

    async def main() -> None:
        async with fleet_of(Custom("bug", bug), Custom("echo", echo)) as fleet:
            with pytest.raises(AgentError, match="bug failed: ZeroDivisionError") as caught:
                await fleet.run_agent("bug", "x")
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
            assert await fleet.run_agent("echo", "x") == "x!"

    asyncio.run(main())


class Pair(msgspec.Struct):
    left: int
    right: int


async def _add(pair: Pair) -> object:
    return pair.left + pair.right


def test_tools_are_typed_and_reported() -> None:
    """A tool gets checked arguments; its call is an event; wrong arguments and unknown tools are refused."""

    async def use(context: Context, task: Task) -> object:
        with pytest.raises(RequestError, match="did you mean 'add'"):
            await context.call_tool("ad", {})
        with pytest.raises(RequestError, match="cannot take these arguments"):
            await context.call_tool("add", {"left": "x"})
        return await context.call_tool("add", {"left": 1, "right": 2})

    tool = FleetTool("add", "adds", Pair, _add)
    fleet = Fleet(ScriptedBackend([]), [Custom("use", use)], [tool])
    seen, error = asyncio.run(events_of(fleet, "x"))
    assert error is None
    calls = [event for event in seen if isinstance(event, ev.ToolCalled)]
    assert [(call.output, call.error is None) for call in calls] == [(None, False), (3, True)]
    assert tool.definition().function.parameters["properties"]


class Typed:
    name = "typed"
    description = "adds"
    arguments = Pair

    async def run(self, context: Context, task: Task) -> int:
        pair = task.arguments_as(Pair)
        return pair.left + pair.right


def test_typed_arguments_are_checked_at_the_door() -> None:
    """A JSON text is the agent's arguments; what does not fit is refused before the agent runs."""
    fleet = fleet_of(Typed())
    assert asyncio.run(fleet.run_agent("typed", '{"left": 1, "right": 2}')) == 3
    assert asyncio.run(fleet.run_agent("typed", Task(arguments={"left": 1, "right": 2}))) == 3
    for bad in ('{"left": 1}', '{"left": "1", "right": 2}', '{"left"'):
        with pytest.raises(RequestError, match="arguments"):
            asyncio.run(fleet.run_agent("typed", bad))


def test_agent_that_spawns_itself_ends() -> None:
    """Endless nesting is ended with the agent's name."""

    async def again(context: Context, task: Task) -> object:
        return await context.spawn("again", task)

    with pytest.raises(AgentError, match="spawning itself"):
        asyncio.run(fleet_of(Custom("again", again)).run_agent("again", "x"))


def test_streamed_text_is_shown_but_not_journalled() -> None:
    """Pieces of an answer are events for the eye; the journal holds the answer whole."""

    async def speak(context: Context, task: Task) -> object:
        with context.phase("speaking"):
            return "".join([piece async for piece in context.stream(task.text)])

    fleet = fleet_of(Custom("speak", speak), script=["one two"])
    seen, _ = asyncio.run(events_of(fleet, "x"))
    assert [event.text for event in seen if isinstance(event, ev.TextDelta)] == ["one", " two"]
    assert [event.name for event in seen if isinstance(event, ev.StepFinished)] == ["speaking"]
    kept = [record.event for record in fleet.journal.replay(seen[0].run)]
    assert not any(isinstance(event, ev.TextDelta) for event in kept)
    assert [event.answer for event in kept if isinstance(event, ev.ModelCalled)] == ["one two"]


def test_events_are_json_lines() -> None:
    """Every event is one line of JSON that says its kind."""

    async def odd(context: Context, task: Task) -> object:
        return {"pair": Pair(1, 2), "odd": complex(1, 2)}

    seen, _ = asyncio.run(events_of(fleet_of(Custom("odd", odd)), "x"))
    lines = [ev.encode_event(event) for event in seen]
    assert all(b"\n" not in line for line in lines)
    assert msgspec.json.decode(lines[0])["event"] == "run_started"
    assert msgspec.json.decode(lines[-1])["output"] == {"pair": {"left": 1, "right": 2}, "odd": "(1+2j)"}


def test_private_runs_say_so() -> None:
    """A private run's requests are marked, so that a chain keeps them on this machine."""
    fleet = fleet_of(Custom("ask", ask), script=["ok"])
    asyncio.run(fleet.run_agent("ask", "hi", is_private=True))
    assert fleet.backend.requests[0].private is True  # type: ignore[attr-defined]
