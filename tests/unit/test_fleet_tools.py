"""Tools by struct and by JSON schema: checked arguments, and the definition a model is told."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from pyagent.core.emulation.schemas import fault_of
from pyagent.core.errors import RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tools import FleetTool
from pyagent.testing import ScriptedBackend

WEATHER: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 1}, "days": {"type": "integer", "maximum": 7}},
    "required": ["city"],
    "additionalProperties": False,
}


class Point(msgspec.Struct):
    x: int


class Line(msgspec.Struct):
    start: Point
    rest: Line | None = None


async def _same(arguments: object) -> object:
    return arguments


def _weather(schema: dict[str, object] = WEATHER) -> FleetTool:
    return FleetTool("weather", "Tells the weather.", schema, _same)


class User:
    name = "user"
    description = "calls a tool"

    def __init__(self, tool: str, arguments: Any) -> None:
        self.tool, self.given = tool, arguments

    async def run(self, context: Context, task: Task) -> object:
        return await context.call_tool(self.tool, self.given)


def test_tool_by_schema_is_given_a_checked_dict() -> None:
    """The function of a tool with a JSON schema gets the arguments as a dict, from a dict, a struct or JSON text."""
    tool = _weather()
    assert asyncio.run(tool.call({"city": "Oslo", "days": 2})) == {"city": "Oslo", "days": 2}
    assert asyncio.run(tool.call('{"city": "Oslo"}')) == {"city": "Oslo"}
    fleet = Fleet(ScriptedBackend([]), [User("weather", {"city": "Oslo"})], [tool])
    assert asyncio.run(fleet.run_agent("user", "x")) == {"city": "Oslo"}


@pytest.mark.parametrize(
    "arguments",
    [{}, {"city": 1}, {"city": ""}, {"city": "Oslo", "days": 9}, {"city": "Oslo", "more": 1}, [], "{", "[]"],
)
def test_bad_arguments_are_refused_before_the_function_runs(arguments: Any) -> None:
    """Arguments that do not follow the schema are a `RequestError` that names the tool, and the function is not run."""
    ran: list[object] = []

    async def note(given: object) -> object:
        ran.append(given)
        return given

    tool = FleetTool("weather", "Tells the weather.", WEATHER, note)
    with pytest.raises(RequestError, match="the tool weather cannot take these arguments: ") as caught:
        asyncio.run(tool.call(arguments))
    assert caught.value.param == "arguments"
    assert ran == []


def test_bad_arguments_are_reported_by_the_run() -> None:
    """A refused call is an event with its error, as any other."""

    async def main() -> list[ev.Event]:
        fleet = Fleet(ScriptedBackend([]), [User("weather", {"city": 1})], [_weather()])
        seen: list[ev.Event] = []
        with contextlib.suppress(RequestError):
            async for event in fleet.run("x"):
                seen.append(event)  # noqa: PERF401 - what came before the error counts
        return seen

    called = next(event for event in asyncio.run(main()) if isinstance(event, ev.ToolCalled))
    assert "1 is not of type 'string'" in str(called.error)
    assert called.output is None


@pytest.mark.parametrize(
    "schema", [{"properties": {"a": {"type": "nonsense"}}}, {"$ref": "http://127.0.0.1:9/x"}, {"pattern": "("}]
)
def test_schema_that_cannot_be_checked_is_an_error(schema: dict[str, object]) -> None:
    """A tool whose schema is none, or lies elsewhere, refuses its arguments; nothing is fetched."""
    with pytest.raises(RequestError, match="the tool weather cannot take these arguments: the JSON schema cannot be"):
        asyncio.run(_weather(schema).call({"a": "x"}))


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        (("", "d", WEATHER, _same), "name without spaces"),
        (("a b", "d", WEATHER, _same), "name without spaces"),
        ((7, "d", WEATHER, _same), "name without spaces"),
        (("a", None, WEATHER, _same), "needs a description"),
        (("a", "d", None, _same), "msgspec struct or a JSON schema"),
        (("a", "d", {"type": "array"}, _same), "JSON schema of an object"),
        (("a", "d", WEATHER, "same"), "async function"),
    ],
)
def test_malformed_tool_is_refused_where_it_is_made(parts: Any, fault: str) -> None:
    """A tool without a name, a description, arguments or a function is refused by what it lacks."""
    with pytest.raises(RequestError, match=fault):
        FleetTool(*parts)


def test_definition_is_an_object_with_properties() -> None:
    """A model is told a schema with the properties at its top, whether the tool has a struct or a schema."""
    assert _weather().definition().function.parameters == WEATHER
    assert _weather({}).definition().function.parameters == {"type": "object"}
    told = FleetTool("p", "A point.", Point, _same).definition().function.parameters
    assert (told["type"], told["required"]) == ("object", ["x"])
    assert "$defs" not in told
    nested = FleetTool("l", "A line.", Line, _same).definition().function.parameters
    assert nested["type"] == "object"
    line: Any = {"start": {"x": 1}, "rest": {"start": {"x": 2}, "rest": None}}
    assert fault_of(line, nested, "tools") is None
    assert fault_of({"start": {"x": "no"}}, nested, "tools") is not None


def test_arguments_are_checked_alike_as_values_and_as_text() -> None:
    """A number written as a text is refused, whether the arguments come as a dict or as JSON."""
    tool = FleetTool("point", "Takes a point.", Point, _same)
    for arguments in ({"x": "5"}, '{"x": "5"}'):
        with pytest.raises(RequestError, match="int"):
            asyncio.run(tool.call(arguments))
