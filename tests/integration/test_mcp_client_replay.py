"""Runs that used MCP servers are checked from their journal, without the servers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest
from support.fleets import Custom
from support.mcp_fleet import raw

from pyagent.core.fleet import tool_providers
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import Journal, MemoryJournal
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.replay_check import check_replay
from pyagent.core.messages import ChatRequest, FunctionCall, ToolCall
from pyagent.core.settings.mcp import read_mcp_servers
from pyagent.infrastructure.mcp.provider import mcp_providers
from pyagent.testing import Reply, ScriptedBackend


@pytest.fixture(autouse=True)
def _time_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet goes on without a server that is not there after ten seconds, and a busy machine may take longer."""
    monkeypatch.setattr(tool_providers, "OPEN_SECONDS", 60.0)


async def _echoes(context: Context, _: Task) -> object:
    return f"{await context.call_tool('raw__echo', {'text': 'hi'})}!"


async def _offers(context: Context, task: Task) -> object:
    return (await context.complete(task.text, tools=["raw__*"])).text


async def _says_more(context: Context, task: Task) -> object:
    return (await context.complete(f"{task.text}, please", tools=["raw__*"])).text


def _call_echo(request: ChatRequest) -> Reply | str:
    if request.messages[-1].role == "tool":
        return "it echoed"
    return Reply(
        tool_calls=(ToolCall(id="c", function=FunctionCall("raw__echo", '{"text":"hi"}')),), finish_reason="tool_calls"
    )


def _fleet(
    journal: Journal, function: Callable[[Context, Task], Awaitable[object]], command: object = sys.executable
) -> Fleet:
    servers = read_mcp_servers({"raw": raw("plain", command=command)})
    agents = [Custom("worker", function)]
    return Fleet(ScriptedBackend(_call_echo), agents, tool_providers=mcp_providers(servers), journal=journal)


@pytest.mark.parametrize("function", [_echoes, _offers])
def test_a_replay_is_checked_without_the_server(function: Callable[[Context, Task], Awaitable[object]]) -> None:
    """A run whose server is gone is checked from the journal; what only the server could say is named."""

    async def main() -> None:
        journal = MemoryJournal()
        async with _fleet(journal, function) as fleet:
            await fleet.run_agent("worker", "go")
            run = journal.runs()[0].run
            report = await check_replay(fleet, run)  # its tools are known
            assert (report.difference, report.unchecked) == ("", ())
        async with _fleet(journal, function, "/no/such/program") as fleet:
            report = await check_replay(fleet, run)
            assert report.difference == ""
            assert (report.num_agents, report.num_calls) == (1, 3 if function is _offers else 1)
            assert "whether a server has the tool raw__echo now, and takes these arguments" in report.unchecked
            assert ("what worker offered its model in worker" in report.unchecked) is (function is _offers)

    asyncio.run(main())


def test_a_changed_prompt_is_found_without_the_server() -> None:
    """Tools that are not known hide no other difference: what the model is told is compared."""

    async def main() -> None:
        journal = MemoryJournal()
        async with _fleet(journal, _offers) as fleet:
            await fleet.run_agent("worker", "go")
        async with _fleet(journal, _says_more, "/no/such/program") as fleet:
            report = await check_replay(fleet, journal.runs()[0].run)
            assert "asked for something else before" in report.difference

    asyncio.run(main())


def test_a_check_says_where_it_had_to_end_for_want_of_a_server() -> None:
    """An agent that offers a server's tools, of which none was called, cannot be checked; that is no difference."""

    async def main() -> None:
        journal = MemoryJournal()
        async with _fleet(journal, _offers) as fleet:
            fleet.backend = ScriptedBackend(["no need"])
            await fleet.run_agent("worker", "go")
        async with _fleet(journal, _offers, "/no/such/program") as fleet:
            report = await check_replay(fleet, journal.runs()[0].run)
            assert report.difference == ""
            assert "no tool begins with 'raw__'" in report.unchecked[-1]

    asyncio.run(main())
