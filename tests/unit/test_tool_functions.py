"""Tools made of functions by `@tool`."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Literal

import msgspec
import pytest
from support.fleets import Custom

from pyagent import Context, RequestError, tool
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.testing import ScriptedBackend


@tool(effect="none")
async def weather(city: str, days: int = 3, unit: Literal["C", "F"] = "C") -> str:
    """Tell the weather of a city.

    For days to come.

    Args:
        city: its name, in English
        days (int): how many of them
    Returns:
        A line for each day.
    """
    return f"{city} {days} {unit}"


def test_schema_comes_from_the_signature_and_docstring() -> None:
    """A model is told the docstring's beginning, and of each parameter its type, default and note."""
    told = weather.definition().function
    assert (told.name, told.description) == ("weather", "Tell the weather of a city.\n\nFor days to come.")
    assert told.parameters["required"] == ["city"]
    assert told.parameters["additionalProperties"] is False
    assert told.parameters["properties"] == {
        "city": {"type": "string", "description": "its name, in English"},
        "days": {"type": "integer", "description": "how many of them", "default": 3},
        "unit": {"enum": ["C", "F"], "default": "C"},
    }
    assert weather.effect == "none"


def test_arguments_are_checked_and_passed_by_name() -> None:
    """Defaults hold; a wrong type, a missing and an unknown argument are refused by name."""
    assert asyncio.run(weather.call({"city": "Rome"})) == "Rome 3 C"
    for wrong in ({"city": 1}, {}, {"city": "Rome", "dayz": 1}, {"city": "Rome", "unit": "K"}):
        with pytest.raises(RequestError, match="the tool weather cannot take these arguments"):
            asyncio.run(weather.call(wrong))


def test_plain_function_runs_in_a_thread() -> None:
    """A function that is not async does not hold the event loop up."""

    @tool
    def where() -> str:
        """Name the thread.

        :param nothing: not there
        """
        return threading.current_thread().name

    assert asyncio.run(where.call({})) != threading.main_thread().name
    assert where.effect == "once"


def test_defaults_are_not_shared_between_calls() -> None:
    """A list that a call changes is fresh in the next."""

    @tool
    async def collect(items: list[str] = ["a"]) -> list[str]:  # noqa: B006
        items.append("b")
        return items

    assert asyncio.run(collect.call({})) == ["a", "b"]
    assert asyncio.run(collect.call({})) == ["a", "b"]


def test_context_is_given_and_no_argument() -> None:
    """A parameter annotated Context gets the calling agent's."""

    @tool
    async def who(greeting: Annotated[str, msgspec.Meta(max_length=9)], context: Context) -> str:
        return f"{greeting} {context.agent}"

    async def call(context: Context, task: Task) -> object:
        return await context.call_tool("who", {"greeting": "hi"})

    assert list(who.definition().function.parameters["properties"]) == ["greeting"]  # type: ignore[call-overload]
    fleet = Fleet(ScriptedBackend(()), [Custom("me", call)], [who])
    assert asyncio.run(fleet.run_agent("me", "go")) == "hi me"


def test_function_that_cannot_be_a_tool_is_refused() -> None:
    """A parameter without a type, one of variable number, and a type without a schema are named."""
    with pytest.raises(RequestError, match="parameter x of the tool bare needs a type"):

        @tool
        def bare(x): ...  # type: ignore[no-untyped-def]

    with pytest.raises(RequestError, match="cannot take"):

        @tool
        def many(*x: int) -> None: ...

    with pytest.raises(RequestError, match="the tool odd cannot be offered"):

        @tool
        def odd(x: threading.Thread) -> None: ...
