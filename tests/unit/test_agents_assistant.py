"""The assistant: the loop through the agent, its typed result, and its ways in."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from support.elsewhere import Elsewhere
from support.fleets import Custom

from pyagent.core.errors import AgentError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.messages import ChatRequest, FunctionCall, Message, ToolCall
from pyagent.logic.agents.assistant import AssistantAgent, Assisted
from pyagent.testing import Reply, ScriptedBackend

_SCHEMA: Any = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}


@tool(effect="none")
async def add(left: int, right: int) -> int:
    """Add."""
    return left + right


def _call(name: str, **arguments: object) -> Reply:
    return Reply(tool_calls=(ToolCall(id="c", function=FunctionCall(name, json.dumps(arguments))),))


def assist(
    script: Any, *, executor: Any = None, history: tuple[Message, ...] = (), **arguments: Any
) -> tuple[Assisted, list[ChatRequest]]:
    backend = ScriptedBackend(script)
    fleet = Fleet(backend, [AssistantAgent()], [add], executor=executor)
    task = Task(text="What is 2 and 3?", arguments=arguments, history=history)
    assisted = asyncio.run(fleet.run_agent("assistant", task))
    assert isinstance(assisted, Assisted)
    return assisted, backend.requests


@pytest.mark.parametrize("executor", [None, Elsewhere()], ids=["here", "elsewhere"])
def test_assistant_calls_tools_and_answers(executor: Any) -> None:
    """It is told of all tools, goes on from the conversation, and shows the calls that led to its answer."""
    history = (Message("user", "hello"), Message("assistant", "Hi."))
    assisted, requests = assist([_call("add", left=2, right=3), "Five."], executor=executor, history=history)
    assert (assisted.answer, assisted.calls) == ("Five.", ['add({"left": 2, "right": 3}): 5'])
    assert [message.role for message in requests[0].messages] == ["system", "user", "assistant", "user"]
    assert [each.function.name for each in requests[0].tools] == ["add"]


@pytest.mark.parametrize("executor", [None, Elsewhere()], ids=["here", "elsewhere"])
def test_result_follows_the_output_schema(executor: Any) -> None:
    """The answer is asked for in the schema, one that does not fit is asked for again, and it is read."""
    script = [_call("add", left=2, right=3), '{"total": "five"}', '{"total": 5}']
    assisted, requests = assist(script, executor=executor, output=_SCHEMA)
    assert assisted.output == {"total": 5}
    assert all(request.response_format is not None for request in requests)
    assert "That does not fit" in requests[-1].messages[-1].text
    with pytest.raises(AgentError, match="does not fit, asked twice"):
        assist(["no", "no"], executor=executor, output=_SCHEMA)


def test_context_reads_a_type() -> None:
    """`complete` with a type gives an instance of it, also where the agent runs elsewhere."""

    class Sum(msgspec.Struct):
        total: int

    async def run(context: Context, task: Task) -> object:
        completion = await context.complete(task.text, tools=["add"], schema=Sum)
        assert isinstance(completion.output, Sum)
        return completion.output.total

    for executor in (None, Elsewhere()):
        script = [_call("add", left=2, right=3), '{"total": 5}']
        fleet = Fleet(ScriptedBackend(script), [Custom("sum", run)], [add], executor=executor)
        assert asyncio.run(fleet.run_agent("sum", "go")) == 5


def test_assistant_ends_within_its_steps() -> None:
    """After its steps the model has to answer, and an empty answer is an error."""
    numbers = iter(range(100))

    def script(request: ChatRequest) -> Any:
        return "Enough." if request.tool_choice == "none" else _call("add", left=1, right=next(numbers))

    assisted, requests = assist(script, steps=3)
    assert (assisted.answer, len(requests)) == ("Enough.", 4)
    with pytest.raises(AgentError, match="empty"):
        assist([" "])
