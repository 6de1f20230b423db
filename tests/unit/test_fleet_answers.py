"""Answers that agents get, and results that they give: of a type, cut, empty, or asked for again."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from support.fleets import Custom, events_of, fleet_of

from pyagent.core.errors import AgentError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task, describe
from pyagent.core.fleet.context import Context
from pyagent.core.messages import ChatRequest, SamplingParams
from pyagent.testing import Reply


class Poem(msgspec.Struct):
    lines: list[str]


def test_structured_answer_is_asked_for_twice() -> None:
    """An answer that does not fit the schema is asked for again with the reason, and then is an instance."""

    async def write(context: Context, task: Task) -> Poem:
        return await context.generate("a poem", schema=Poem)

    fleet = fleet_of(Custom("write", write), script=['{"lines": 3}', '{"lines": ["a"]}'])
    assert asyncio.run(fleet.run_agent("write", "x")) == Poem(["a"])
    second: ChatRequest = fleet.backend.requests[1]  # type: ignore[attr-defined]
    assert "Expected `array`, got `int`" in second.messages[-1].text
    assert second.response_format is not None
    assert second.response_format.type == "json_schema"


def test_an_answer_that_a_stop_string_cut_is_asked_for_again_with_that() -> None:
    """The model is told why its answer was not whole, as it is where a limit cut it."""

    async def write(context: Context, task: Task) -> Poem:
        return await context.generate("a poem", schema=Poem, sampling=SamplingParams(stop=("b",)))

    fleet = fleet_of(Custom("write", write), script=['{"lines": ["a', '{"lines": ["a"]}'])
    assert asyncio.run(fleet.run_agent("write", "x")) == Poem(["a"])
    second: ChatRequest = fleet.backend.requests[1]  # type: ignore[attr-defined]
    assert "it ended at one of the request's stop strings ('b')" in second.messages[-1].text


def test_answer_that_never_fits_is_an_agent_error() -> None:
    """After the second misfit the agent fails, with the reason."""

    async def write(context: Context, task: Task) -> object:
        return await context.generate("a poem", schema=Poem)

    with pytest.raises(AgentError, match="asked twice"):
        asyncio.run(fleet_of(Custom("write", write), script=["no", "{}"]).run_agent("write", "x"))


def test_cut_answers_say_so() -> None:
    """An answer that ended at its limit says so, whole and streamed, in events, and when it does not fit a form."""
    told: list[object] = []

    async def ask(context: Context, task: Task) -> object:
        for _ in range(2):
            answer = await context.complete("hi")
            told.append((answer.text, answer.is_cut, answer.finish_reason))
        stream = context.stream("hi")
        told.append(("".join([piece async for piece in stream]), stream.is_cut, stream.finish_reason))
        with pytest.raises(AgentError, match="it was cut after 12 tokens"):
            await context.generate("hi", schema=Poem, sampling=SamplingParams(max_tokens=12))
        return "done"

    cut = Reply("half a", finish_reason="length")
    script = [Reply("whole"), cut, cut, Reply('{"lines": ["a', finish_reason="length"), cut]
    seen, error = asyncio.run(events_of(fleet_of(Custom("ask", ask), script=script), "x"))
    assert error is None
    assert told == [("whole", False, "stop"), ("half a", True, "length"), ("half a", True, "length")]
    reasons = [event.finish_reason for event in seen if isinstance(event, ev.ModelCalled)]
    assert reasons == ["stop", "length", "length", "length", "length"]
    shown = [event.text for event in seen if isinstance(event, ev.Progress)]
    assert shown[0] == "an answer was cut after 2 tokens"


def test_retry_asks_again_with_the_answer_and_the_hint() -> None:
    """`retry` shows the model its answer and what is wrong, and gives the same type again."""

    async def write(context: Context, task: Task) -> object:
        first = await context.generate("a poem", schema=Poem)
        return await context.retry("more lines") if len(first.lines) < 2 else first

    fleet = fleet_of(Custom("write", write), script=['{"lines": ["a"]}', '{"lines": ["a", "b"]}'])
    assert asyncio.run(fleet.run_agent("write", "x")) == Poem(["a", "b"])
    texts = [message.text for message in fleet.backend.requests[1].messages]  # type: ignore[attr-defined]
    assert texts == ["a poem", '{"lines": ["a"]}', "more lines"]


@pytest.mark.parametrize("output", [None, "", "  "])
def test_empty_result_does_not_spread(output: object) -> None:
    """An agent that gives nothing fails instead."""

    async def nothing(context: Context, task: Task) -> object:
        return output

    with pytest.raises(AgentError, match="empty answer"):
        asyncio.run(fleet_of(Custom("nothing", nothing)).run_agent("nothing", "x"))


class Promising:
    name = "promising"
    description = "promises a poem"

    async def run(self, context: Context, task: Task) -> Poem:
        return "no poem"  # type: ignore[return-value]


def test_result_of_another_type_does_not_spread() -> None:
    """An agent that promises a type and gives another fails, and its schema is known."""
    with pytest.raises(AgentError, match="promises Poem and gave str"):
        asyncio.run(fleet_of(Promising()).run_agent("promising", "x"))
    info = describe(Promising())
    assert info.output is not None
    assert "lines" in str(info.output)
