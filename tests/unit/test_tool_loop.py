"""The loop of a model that calls tools: order, repetition, approval, agents as tools, handoffs, long conversations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from support.fleets import Custom, events_of

from pyagent.core.errors import ContextOverflowError, NeedsAnswerError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.history import CLEARED, compacted
from pyagent.core.fleet.journal import MemoryJournal
from pyagent.core.fleet.model_call import Completion
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import ChatRequest, FunctionCall, Message, ToolCall
from pyagent.core.token_estimate import estimated_prompt_tokens
from pyagent.testing import Reply, ScriptedBackend


def calls(*made: tuple[str, dict[str, Any]]) -> Reply:
    functions = [FunctionCall(name, json.dumps(arguments)) for name, arguments in made]
    return Reply(text="", tool_calls=tuple(ToolCall(id=f"c{n}", function=each) for n, each in enumerate(functions)))


class Watched:
    """Tools that note when they begin and end."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.num_free = 0

        @tool(effect="none")
        async def look(key: int) -> str:
            """Look."""
            self.num_free += 1
            self.seen.append(f"look {key}")
            for _ in range(1_000):
                if self.num_free >= 2:
                    break
                await asyncio.sleep(0.001)
            self.seen.append(f"looked {key}")
            return f"saw {key}"

        @tool
        async def write(key: int) -> str:
            """Write."""
            self.seen.append(f"write {key}")
            await asyncio.sleep(0)
            self.seen.append(f"wrote {key}")
            return "ok"

        @tool(needs_approval=True)
        async def shell(command: str) -> str:
            """Run."""
            self.seen.append(command)
            return "ran"

        self.tools = [look, write, shell]


def fleet_of(script: Any, tools: Sequence[FleetTool], offered: Sequence[str] = ("*",), *others: Custom) -> Fleet:
    async def run(context: Context, task: Task) -> object:
        return await context.complete(task.text, tools=offered, max_rounds=30)

    return Fleet(ScriptedBackend(script), [Custom("caller", run), *others], tools)


def run(fleet: Fleet, answer: Callable[[ev.Question], str] | None = None) -> tuple[Completion, list[ev.Event]]:
    async def main() -> list[ev.Event]:
        seen: list[ev.Event] = []
        async for event in fleet.run("go", agent="caller", waits_for_answers=answer is not None):
            seen.append(event)
            if answer and isinstance(event, ev.QuestionAsked):
                fleet.answer(event.run, event.question.id, answer(event.question))
        return seen

    seen = asyncio.run(main())
    finished = seen[-1]
    assert isinstance(finished, ev.RunFinished)
    assert isinstance(finished.output, Completion)
    return finished.output, seen


def test_calls_without_effects_run_side_by_side_and_others_in_order() -> None:
    """Reads overlap; writes wait for those before them, and results keep the order of the calls."""
    watched = Watched()
    script = [calls(("look", {"key": 1}), ("look", {"key": 2}), ("write", {"key": 3}), ("write", {"key": 4})), "Done."]
    completion, _ = run(fleet_of(script, watched.tools))
    assert set(watched.seen[:2]) == {"look 1", "look 2"}
    assert watched.seen[4:] == ["write 3", "wrote 3", "write 4", "wrote 4"]
    assert [result.text for result in completion.tool_results] == ["saw 1", "saw 2", "ok", "ok"]


def test_equal_call_is_not_run_for_ever() -> None:
    """A third equal call is told so and not run; a model that does nothing else has to answer in words."""
    watched = Watched()
    watched.num_free = 2
    same = calls(("look", {"key": 1}))
    script = lambda request: "Done." if request.tool_choice == "none" else same  # noqa: E731
    completion, _ = run(fleet_of(script, watched.tools))
    assert watched.seen.count("look 1") == 2
    assert completion.text == "Done."
    assert [result.is_error for result in completion.tool_results] == [False, False, True, True, True]
    assert "made before" in completion.tool_results[-1].text


def test_equal_call_is_run_again_after_an_effect() -> None:
    """Looking again is no repetition once something was written; writing the same for ever is."""
    watched = Watched()
    watched.num_free = 2
    script = [*(calls(("look", {"key": 1}), ("write", {"key": n})) for n in range(4)), "Done."]
    completion, _ = run(fleet_of(script, watched.tools))
    assert watched.seen.count("look 1") == 4
    assert not any(result.is_error for result in completion.tool_results)
    again = Watched()
    completion, _ = run(fleet_of([*[calls(("write", {"key": 1}))] * 3, "Done."], again.tools))
    assert again.seen.count("write 1") == 2


@pytest.mark.parametrize(
    ("answers", "seen"), [(["allow", "allow"], ["a", "b"]), (["always"], ["a", "b"]), (["deny", "allow"], ["b"])]
)
def test_unsafe_tool_runs_only_when_allowed(answers: list[str], seen: list[str]) -> None:
    """A person is shown the arguments, and allows a call, all calls of a tool, or denies; the model is told."""
    watched, left = Watched(), list(answers)
    asked: list[ev.Question] = []

    def answer(question: ev.Question) -> str:
        asked.append(question)
        return left.pop(0)

    script = [calls(("shell", {"command": "a"})), calls(("shell", {"command": "b"})), "Done."]
    completion, _ = run(fleet_of(script, watched.tools), answer)
    assert watched.seen == seen
    assert (asked[0].kind, asked[0].options) == ("approval", ("allow", "always", "deny"))
    assert 'may caller call shell with {"command":"a"}?' in asked[0].text
    assert not left
    assert completion.tool_results[0].is_error == (answers[0] == "deny")


def test_unsafe_tool_does_not_run_where_none_can_allow_it() -> None:
    """Where no answer can come the run ends before the tool runs; wrong arguments are told before anybody is asked."""
    watched = Watched()
    fleet = fleet_of([calls(("shell", {"command": 1})), calls(("shell", {"command": "a"}))], watched.tools)
    seen, error = asyncio.run(events_of(fleet, "go", agent="caller"))
    assert isinstance(error, NeedsAnswerError)
    assert len([event for event in seen if isinstance(event, ev.QuestionAsked)]) == 1
    assert watched.seen == []


def test_approved_tools_need_no_approval() -> None:
    """A fleet may approve tools by name."""
    watched = Watched()

    async def ask(context: Context, task: Task) -> object:
        return await context.call_tool("shell", {"command": "a"})

    fleet = Fleet(ScriptedBackend(()), [Custom("caller", ask)], watched.tools, approved_tools=["shell"])
    assert asyncio.run(fleet.run_agent("caller", "go")) == "ran"


async def _double(context: Context, task: Task) -> object:
    return f"{task.text} {task.text}"


def test_agents_are_tools() -> None:
    """The model gives other agents tasks, side by side, and reads their results."""
    script = [calls(("agent_double", {"task": "a"}), ("agent_double", {"task": "b"})), "Done."]
    completion, seen = run(fleet_of(script, [], ("agent:double",), Custom("double", _double)))
    assert [result.text for result in completion.tool_results] == ["a a", "b b"]
    assert sum(isinstance(event, ev.AgentStarted) and event.agent == "double" for event in seen) == 2


def test_agents_as_tools_take_no_slot_while_they_wait() -> None:
    """A fleet of one slot runs an agent that calls tools, called as a tool."""

    async def inner(context: Context, task: Task) -> object:
        return await context.call_tool("write", {"key": 1})

    fleet = fleet_of([calls(("agent_inner", {"task": "a"})), "Done."], Watched().tools, ("agent:inner",))
    fleet.agents["inner"] = Custom("inner", inner)
    fleet.limits = type(fleet.limits)(max_concurrency=1)
    assert run(fleet)[0].tool_results[0].text == "ok"


def test_handoff_gives_the_conversation_to_another_agent() -> None:
    """The other agent reads what was said, its result is the answer, and calls after the handoff are not run."""
    given: list[Task] = []

    async def take(context: Context, task: Task) -> object:
        given.append(task)
        return {"refund": 3}

    watched = Watched()
    script = [calls(("transfer_to_billing", {"task": "a refund"}), ("write", {"key": 1}))]
    completion, _ = run(fleet_of(script, watched.tools, ("write", "handoff:billing"), Custom("billing", take)))
    assert (completion.output, completion.text) == ({"refund": 3}, '{"refund":3}')
    assert given[0].text == "a refund"
    assert [message.text for message in given[0].history] == ["go"]
    assert watched.seen == []


def test_user_is_asked_by_the_model() -> None:
    """`ask_user` is among all tools where an answer can come, and not elsewhere."""
    backend_script = [calls(("ask_user", {"question": "Which?", "options": ["x", "y"]})), "Done."]
    fleet = fleet_of(backend_script, Watched().tools)
    completion, _ = run(fleet, lambda question: question.options[1])
    assert completion.tool_results[0].text == "y"
    quiet = fleet_of(["Done."], Watched().tools)
    run(quiet)
    offered = [each.function.name for each in quiet.backend.requests[0].tools]  # type: ignore[attr-defined]
    assert offered == ["look", "write", "shell"]


@tool(effect="none")
async def page(number: int) -> str:
    """Read a page."""
    return f"page {number} " + "word " * 2_400


def test_long_conversation_is_compacted_once_in_a_while() -> None:
    """Old results go first, prompts fit, and between compactions each prompt begins with the one before."""
    script = [*(calls(("page", {"number": n})) for n in range(24)), "Done."]
    fleet = fleet_of(script, [page])
    completion, seen = run(fleet)
    assert len(completion.tool_results) == 24
    shortened = [event for event in seen if isinstance(event, ev.HistoryCompacted)]
    assert 1 <= len(shortened) <= 4
    assert all(event.tokens_after <= 16_000 < 32_000 < event.tokens_before for event in shortened)
    requests: list[ChatRequest] = fleet.backend.requests  # type: ignore[attr-defined]
    rewritten = sum(after.messages[: len(before.messages)] != before.messages for before, after in pairwise(requests))
    assert rewritten == len(shortened)
    last = requests[-1].messages
    assert last[0].text == "go"
    assert last[-1].text.startswith("page 23")
    assert any(message.text == CLEARED for message in last)


@pytest.mark.parametrize("max_tokens", [6_000, 2_500, 400])
def test_a_compaction_spares_the_beginning_and_the_newest_results(max_tokens: int) -> None:
    """Whatever has to go, the system's and the user's words stay, and older results go before the last."""
    told = [Message("system", "be brief"), Message("user", "the task")]
    messages = list(told)
    for number in range(12):
        call = ToolCall(id=f"c{number}", function=FunctionCall("page", f'{{"number": {number}}}'))
        result = Message("tool", f"page {number} " + "x" * 2_000, name="page", tool_call_id=call.id)
        messages += [Message("assistant", None, tool_calls=[call]), result]
    shorter = compacted(messages, 2, [], max_tokens)
    assert estimated_prompt_tokens(shorter, []) <= max_tokens
    assert shorter[:2] == told
    assert shorter[-1].text.startswith("page 11 x")
    is_cleared = [message.text == CLEARED for message in shorter if message.role == "tool"]
    assert is_cleared == sorted(is_cleared, reverse=True)


def test_conversation_too_long_for_the_model_is_shortened_and_asked_again() -> None:
    """An overflow that the backend reports is met by a shorter conversation, however often."""

    numbers = iter(range(100))

    def script(request: ChatRequest) -> Reply | str | Exception:
        if sum(len(message.text) for message in request.messages) > 40_000:
            raise ContextOverflowError("too long", num_tokens=10_000, limit=8_000)
        number = next(numbers)
        return "Done." if number == 12 else calls(("page", {"number": number}))

    completion, seen = run(fleet_of(script, [page]))
    assert completion.text == "Done."
    assert any(isinstance(event, ev.HistoryCompacted) for event in seen)


def test_approval_survives_a_restart() -> None:
    """A run that ended for want of an answer goes on with it in another fleet, and repeats nothing."""
    watched = Watched()
    script = [calls(("write", {"key": 1})), calls(("shell", {"command": "a"})), "Done."]
    journal = MemoryJournal()

    def fleet(replies: Sequence[Any]) -> Fleet:
        made = fleet_of(replies, watched.tools)
        made.journal = journal
        return made

    async def main() -> list[ev.Event]:
        seen, error = await events_of(fleet(script[:2]), "go", agent="caller")
        assert isinstance(error, NeedsAnswerError)
        failed = seen[-1]
        assert isinstance(failed, ev.RunFailed)
        assert failed.reason == "needs_answer"
        assert watched.seen == ["write 1", "wrote 1"]
        answers = {error.question: "allow"}
        return [event async for event in fleet(script[2:]).resume(failed.run, answers=answers)]

    seen = asyncio.run(main())
    assert watched.seen == ["write 1", "wrote 1", "a"]
    finished = seen[-1]
    assert isinstance(finished, ev.RunFinished)
    assert isinstance(finished.output, Completion)
    assert [result.text for result in finished.output.tool_results] == ["ok", "ran"]
