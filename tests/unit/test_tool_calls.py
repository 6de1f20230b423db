"""A model that calls tools: through an agent of the fleet, with a scripted backend, by emulation, and over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

import pyagent
from pyagent.core.emulation.fulfil import fulfil
from pyagent.core.errors import AgentError, BudgetError, DeadlineError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet import tool_calls
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.model_call import Completion
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import ChatDelta, ChatRequest, FunctionCall, ToolCall
from pyagent.infrastructure.backends.openai import OpenAIBackend
from pyagent.logic.agents.reasoning import Reasoned, ReasoningAgent
from pyagent.testing import Reply, ScriptedBackend, openai_server


class Pair(msgspec.Struct):
    left: int
    right: int


async def _add(pair: Pair) -> int:
    return pair.left + pair.right


async def _raise(_: object) -> object:
    raise OSError("no disk")


async def _write(_: object) -> object:
    return "x" * 100_000


class Odd:
    def __str__(self) -> str:
        raise ValueError("no words for it")


async def _odd(_: object) -> object:
    return Odd()


TOOLS = [
    FleetTool("add", "Adds.", Pair, _add),
    FleetTool("raise", "Fails.", {}, _raise),
    FleetTool("long", "Writes much.", {}, _write),
    FleetTool("odd", "Gives what is no text.", {}, _odd),
    FleetTool("secret", "Is offered to nobody.", {}, _write),
]
OFFERED = ("add", "raise", "long", "odd")


def _calls(*calls: tuple[str, str], text: str = "") -> Reply:
    made = [ToolCall(id=f"c{place}", function=FunctionCall(*call)) for place, call in enumerate(calls)]
    return Reply(text=text, tool_calls=tuple(made))


class Caller:
    """Lets the model call tools."""

    name = "caller"
    description = "asks with tools"

    def __init__(self, tools: Sequence[str] = OFFERED, max_rounds: int = 3) -> None:
        self.tools, self.max_rounds = tools, max_rounds

    async def run(self, context: Context, task: Task) -> object:
        return await context.complete(task.text, tools=self.tools, max_rounds=self.max_rounds)


def _complete(backend: Any, agent: Caller | None = None, **limits: Any) -> Completion:
    fleet = Fleet(backend, [agent or Caller()], TOOLS, limits=FleetLimits(**limits))
    completion = asyncio.run(fleet.run_agent("caller", "2 and 3?"))
    assert isinstance(completion, Completion)
    return completion


def test_results_go_back_to_the_model_until_it_answers() -> None:
    """The model is offered the tools, its calls are run side by side, and it sees the results by their ids."""
    one, two = ("add", '{"left": 2, "right": 3}'), ("add", '{"left": 5, "right": 5}')
    backend = ScriptedBackend([_calls(one, two, text="let me see"), _calls(two), "Ten."])
    completion = _complete(backend)
    assert completion.text == "Ten."
    assert [result.text for result in completion.tool_results] == ["5", "10", "10"]
    assert [tool.function.name for tool in backend.requests[0].tools] == list(OFFERED)
    asked, *told = backend.requests[1].messages[1:]
    assert (asked.role, asked.text, len(asked.tool_calls or [])) == ("assistant", "let me see", 2)
    assert [(each.role, each.tool_call_id, each.text) for each in told] == [("tool", "c0", "5"), ("tool", "c1", "10")]
    assert completion.usage.completion_tokens == 4


def test_calls_and_results_are_in_the_journal() -> None:
    """A run's events have what the model asked for and what each tool returned."""

    async def main() -> list[ev.Event]:
        backend = ScriptedBackend([_calls(("add", '{"left": 2, "right": 3}')), "Five."])
        async with Fleet(backend, [Caller()], TOOLS) as fleet:
            return [event async for event in fleet.run("2 and 3?")]

    seen = asyncio.run(main())
    asked = [event.tool_calls for event in seen if isinstance(event, ev.ModelCalled)]
    assert [len(calls) for calls in asked] == [1, 0]
    (called,) = [event for event in seen if isinstance(event, ev.ToolCalled)]
    assert (called.arguments, called.output) == ({"left": 2, "right": 3}, 5)
    finished = seen[-1]
    assert isinstance(finished, ev.RunFinished)
    assert (finished.totals.model_calls, finished.totals.tool_calls) == (2, 1)


def _cut(*calls: tuple[str, str]) -> Reply:
    return replace(_calls(*calls, text="I add"), finish_reason="length")


@pytest.mark.parametrize("arguments", ["", '{"left"'])
def test_call_that_was_cut_is_not_run(arguments: str) -> None:
    """No tool runs with the arguments that `max_tokens` left; the calls before it do, and alone it ends the answer."""
    backend = ScriptedBackend([_cut(("long", "{}"), ("raise", arguments)), _cut(("raise", arguments))])
    completion = _complete(backend)
    assert [result.tool for result in completion.tool_results] == ["long"]
    assert (completion.text, completion.is_cut) == ("I add", True)
    assert [message.role for message in backend.requests[1].messages[1:]] == ["assistant", "tool"]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (("nosuch", "{}"), "error: there is no function 'nosuch'; there are add, raise, long, odd"),
        (("secret", "{}"), "error: there is no function 'secret'; there are add, raise, long, odd"),
        (("add", '{"left"'), "error: the arguments are not a JSON object"),
        (("add", "[1]"), "error: the arguments are not a JSON object"),
        (("add", '{"left": "2"}'), "error: the tool add cannot take these arguments"),
        (("raise", ""), "error: the tool raise failed: OSError: no disk"),
        (("odd", "{}"), "error: the output of odd cannot be written as text"),
        (("long", "{}"), "[cut: 84,000 characters more]"),
    ],
)
def test_what_goes_wrong_in_a_call_is_told_to_the_model(call: tuple[str, str], told: str) -> None:
    """A call of a tool that was not offered, bad arguments and a tool's failure are results that the model can mend."""
    backend = ScriptedBackend([_calls(call), "Sorry."])
    completion = _complete(backend)
    assert completion.text == "Sorry."
    assert told in backend.requests[1].messages[-1].text
    assert completion.tool_results[0].is_error == told.startswith("error")


def test_calls_end() -> None:
    """After the last round the model has to answer in words; one that calls on all the same is an error."""
    call = _calls(("add", '{"left": 2, "right": 3}'))
    backend = ScriptedBackend(lambda request: "Done." if request.tool_choice == "none" else call)
    assert _complete(backend).text == "Done."
    assert [request.tool_choice for request in backend.requests] == [None, None, None, "none"]
    with pytest.raises(AgentError, match="still calls tools after 3 rounds"):
        _complete(ScriptedBackend(lambda _: call))


def test_calls_of_one_answer_are_bounded() -> None:
    """Calls past the most of one answer are not run, and the model is told so."""
    calls = _calls(*[("add", f'{{"left": 1, "right": {n}}}') for n in range(tool_calls.MAX_CALLS + 2)])
    completion = _complete(ScriptedBackend([calls, "Two."]))
    assert [result.is_error for result in completion.tool_results[-3:]] == [False, True, True]


def test_limits_end_the_loop() -> None:
    """Neither a budget nor a deadline is something the model is told of: they end the run."""
    numbers = itertools.count()
    backend = ScriptedBackend(lambda _: _calls(("add", f'{{"left": 2, "right": {next(numbers)}}}')))
    with pytest.raises(BudgetError):
        _complete(backend, Caller(max_rounds=1000), run_tokens=1500)

    async def wait(_: object) -> object:
        await asyncio.sleep(3600)

    fleet = Fleet(
        ScriptedBackend(lambda _: _calls(("wait", "{}"))), [Caller(["wait"])], [FleetTool("wait", "", {}, wait)]
    )
    with pytest.raises(DeadlineError):
        asyncio.run(fleet.run_agent("caller", "x", timeout_seconds=0.3))


def test_unknown_tool_is_refused_before_the_model_is_asked() -> None:
    """A misspelt tool is an error that names the nearest one."""
    backend = ScriptedBackend([])
    with pytest.raises(RequestError, match="there is no tool 'ad'; did you mean 'add'"):
        _complete(backend, Caller(["ad"]))
    assert backend.requests == []


class Plain(ScriptedBackend):
    """A backend without tools, as the embedded engine's models are: they are told in words, and called in tags."""

    def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        return fulfil(request, self._answer, frozenset({"max_tokens"}), backend=self.name)

    async def _answer(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        async for delta in super().chat(request):
            yield delta


def test_tools_are_emulated_where_a_backend_has_none() -> None:
    """A backend that takes no tools reads of them in its prompt, and its tags are calls."""
    tag = '<tool_call>{"name": "add", "arguments": {"left": 2, "right": 3}}</tool_call>'
    backend = Plain([tag, "Five."])
    completion = _complete(backend)
    assert (completion.text, completion.tool_results[0].text) == ("Five.", "5")
    assert backend.requests[0].tools == []
    assert '"name": "add"' in backend.requests[0].messages[0].text
    assert '<tool_response>{"name": "add", "content": "5"}</tool_response>' in backend.requests[1].messages[-1].text


def _reason(make: Callable[[], Any], **arguments: Any) -> Reasoned:
    async def main() -> object:
        async with pyagent.Fleet(backend=make(), agents=[ReasoningAgent()]) as fleet:
            return await fleet.run_agent("reasoning", Task(text="What is 6 times 7?", arguments=arguments))

    reasoned = asyncio.run(main())
    assert isinstance(reasoned, Reasoned)
    return reasoned


def test_reasoning_calls_the_tools_it_is_given() -> None:
    """The reasoning agent's `tools` are offered to the model, and its steps show the calls."""
    call = _calls(("calculator", '{"question": "6*7"}'))
    backend = ScriptedBackend([call, "The calculator says so.\nAnswer: 42"])
    reasoned = _reason(lambda: backend, tools=["calculator"])
    assert (reasoned.answer, reasoned.strategy) == ("42", "tool-use")
    assert reasoned.steps == ['calculator({"question": "6*7"}): 6*7 = 42', "The calculator says so."]
    none = ScriptedBackend(["Answer: 42"])
    assert _reason(lambda: none).answer == "42"
    assert none.requests[0].tools == []
    with pytest.raises(RequestError, match="tools is for the strategy chain-of-thought"):
        _reason(lambda: ScriptedBackend([]), tools=["calculator"], samples=3)


def test_reasoning_calls_tools_over_http() -> None:
    """An OpenAI-compatible server is offered the tool, streams a call of it, and is sent the result."""
    with openai_server(arguments={"question": "6*7"}) as server:
        reasoned = _reason(lambda: OpenAIBackend(server.url), tools=["calculator"])
        first, second = server.requests
    assert reasoned.answer == "Hello from the fake."
    offered: Any = first["tools"]
    assert offered[0]["function"]["parameters"]["properties"]["question"] == {"type": "string"}
    asked, told = second["messages"][-2:]  # type: ignore[index]
    assert json.loads(asked["tool_calls"][0]["function"]["arguments"]) == {"question": "6*7"}
    assert (told["role"], told["tool_call_id"], told["content"]) == ("tool", "call_abc", "6*7 = 42")
