"""Hints to the prefix cache from the fleet's own knowledge of its agents."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from support.fleets import Custom, ask

from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tools import FleetTool
from pyagent.testing import ScriptedBackend


def test_hints_say_who_waits_for_a_tool_and_who_is_done() -> None:
    """While a tool runs its caller's prompt is retained, for as long as the tool took before; then it is expected."""

    class Nothing(msgspec.Struct):
        pass

    async def look(_: Nothing) -> str:
        await asyncio.sleep(0.05)
        return "seen"

    async def work(context: Context, task: Task) -> object:
        await context.call_tool("look", Nothing())  # before anything was asked: nothing is worth keeping
        await context.generate("what?")
        await context.call_tool("look", Nothing())
        return await context.generate("and now?")

    backend = ScriptedBackend(lambda request: "that")
    fleet = Fleet(backend, [Custom("one", work)], [FleetTool("look", "looks", Nothing, look)])
    asyncio.run(fleet.run_agent("one", "go"))
    request = backend.requests[0]
    assert request.session == f"{request.origin.run}/one:one"
    assert request.origin.agent == "one"
    assert [hint.kind for hint in backend.hints] == ["retain", "retain", "demote", "release"]
    retain, again, demote, release = backend.hints
    assert 0.04 < (retain.expected_seconds or 0) < 10
    assert again.expected_seconds == 5.0
    assert retain.session == again.session == demote.session == request.session
    assert release.run == request.origin.run


def test_hints_keep_the_beginning_that_spawned_agents_share() -> None:
    """The system text of spawned agents is retained once for the run; their parent waits for all of them, once."""

    async def child(context: Context, task: Task) -> object:
        return await context.generate(task.text, system="You are one of many.")

    async def parent(context: Context, task: Task) -> object:
        await context.generate("plan")
        return await context.map(lambda number: context.spawn("child", f"part {number}"), range(4))

    backend = ScriptedBackend(lambda request: "done")
    asyncio.run(Fleet(backend, [Custom("parent", parent), Custom("child", child)]).run_agent("parent", "go"))
    run = backend.requests[0].origin.run
    mine = [hint.kind for hint in backend.hints if hint.session == f"{run}/parent:parent"]
    assert mine == ["retain", "retain", "demote"]
    shared = [(hint.kind, hint.run, hint.messages[0].text) for hint in backend.hints if hint.run and hint.messages]
    assert shared == [("retain", run, "You are one of many.")]
    assert all(hint.messages[0].text == "You are one of many." for hint in backend.hints if hint.messages)
    assert backend.hints[-1].kind == "release"
    assert sum(hint.kind == "demote" for hint in backend.hints) == 5


def test_hints_that_a_backend_cannot_take_hurt_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A run goes on when a plugin's backend fails at a hint; the fault is logged."""

    class Clumsy(ScriptedBackend):
        def hint(self, hint: object) -> None:
            raise RuntimeError("what?")

    assert asyncio.run(Fleet(Clumsy(["fine"]), [Custom("ask", ask)]).run_agent("ask", "hi")) == "fine"
    assert "failed to take a hint" in caplog.text
