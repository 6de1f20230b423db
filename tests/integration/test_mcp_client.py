"""MCP servers as tool providers of a real fleet: programs over stdio, the package's own server over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support import mcp_server
from support.fleets import Custom
from support.mcp_fleet import calling, fleet_of, names, python, raw, served, until

from pyagent.core.errors import NeedsAnswerError, PyAgentError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet import tool_providers
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import FunctionCall, ToolCall
from pyagent.core.settings.mcp import read_mcp_servers
from pyagent.infrastructure.mcp.client_tools import tool_name
from pyagent.infrastructure.mcp.provider import mcp_providers
from pyagent.logic.agents.assistant import AssistantAgent
from pyagent.testing import Reply, ScriptedBackend


@pytest.fixture(autouse=True)
def _time_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet goes on without a server that is not there after ten seconds, and a busy machine may take longer."""
    monkeypatch.setattr(tool_providers, "OPEN_SECONDS", 60.0)


def test_slow_server_goes_on_and_brings_its_tools_later() -> None:
    """A fleet does not wait for ever for a server, and does not give it up: later runs have its tools."""

    async def main() -> None:
        [provider] = mcp_providers(read_mcp_servers({"slow": raw("plain")}), wait_seconds=0.0)
        async with Fleet(ScriptedBackend([]), [Custom("worker", _names)], tool_providers=[provider]) as fleet:
            assert await fleet.run_agent("worker", "x") == []
            await until(lambda: bool(provider.tools))
            assert await fleet.run_agent("worker", "x") == ["slow__echo"]

    asyncio.run(main())


async def _names(context: Context, _: Task) -> object:
    return list(context.tools)


def test_tools_of_the_packages_server_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over stdio: values, failures, pictures, a small environment with the secret read, a tool that is new, progress
    and a cancellation that reaches the tool."""
    monkeypatch.setenv("STUB_SECRET", "four")
    monkeypatch.setenv("OTHER_SECRET", "not to be seen")

    async def main() -> None:
        async with fleet_of(stub=python(tmp_path)) as run:
            assert await run(calling("stub__add", a=1, b=2)) == "3"
            listed = await run(calling("stub__environment"))
            assert "STUB_KEY" in listed
            assert "SECRET" not in listed
            assert await run(calling("stub__secret")) == "4"
            assert await run(calling("stub__picture")) == "[image of image/png, about 6 bytes, which is not shown]"
            with pytest.raises(PyAgentError, match="stub__fail failed: Error executing tool fail"):
                await run(calling("stub__fail", why="no"))
            with pytest.raises(RequestError, match="'b' is a required property"):
                await run(calling("stub__add", a=1))
            assert await run(calling("stub__long", size=300_000)) == "x" * 200_000 + "\n[cut: 100,000 characters more]"
            assert "stub__grown" not in await run(names)
            assert await run(calling("stub__grow")) == "grown"
            async with asyncio.timeout(30):
                while "stub__grown" not in await run(names):  # noqa: ASYNC110 - a run is the event
                    await asyncio.sleep(0.01)
            assert await run(calling("stub__grown")) == "I am new"
            seen: list[ev.Event] = []
            job = asyncio.create_task(run(calling("stub__slow"), seen=seen))
            await until(lambda: any(isinstance(each, ev.Progress) and "step" in each.text for each in seen))
            job.cancel()
            await asyncio.wait([job])
            await until((tmp_path / "cancelled").exists)

    asyncio.run(main())


def test_server_behind_a_url_is_used() -> None:
    """Over HTTP: its tools are called, and a server that is not there is named with its address alone."""

    async def main() -> None:
        async with served(mcp_server.server.streamable_http_app()) as url:
            web = {"url": f"{url}/mcp", "trust": "annotations", "headers": {"X-Key": "k"}}
            async with fleet_of(web=web) as run:
                assert await run(calling("web__add", a=1, b=2)) == "3"
                with pytest.raises(PyAgentError, match="web__fail"):
                    await run(calling("web__fail", why="no"))

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_answers_of_a_url_that_are_nested_deep_are_read(kind: str) -> None:
    """One schema that is too deep for the package hides its tool alone, as a document and as an event."""
    deep = {"type": "object"}
    for _ in range(120):
        deep = {"type": "object", "properties": {"a": deep}}
    tools = [{"name": name, "inputSchema": schema} for name, schema in (("deep", deep), ("plain", {"type": "object"}))]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        request = json.loads((await receive())["body"] or b"{}")
        known = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "serverInfo": {"name": "s", "version": "1"},
            },
            "tools/list": {"tools": tools},
        }
        if request.get("method") not in known:
            status, body = 405 if scope["method"] == "GET" else 400 if "id" in request else 202, b""
        else:
            answer = {"jsonrpc": "2.0", "id": request["id"], "result": known[request["method"]]}
            status, body = 200, json.dumps(answer).encode()
            body = body if kind == "application/json" else b"event: message\r\ndata: " + body + b"\r\n\r\n"
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]})
        await send({"type": "http.response.body", "body": body})

    async def main() -> None:
        async with served(app) as url, fleet_of(web={"url": url, "startup_seconds": 60}) as run:
            assert await run(names) == ["web__plain"]

    asyncio.run(main())


def test_trust_decides_effects_and_approval() -> None:
    """A server that is not trusted has each call allowed by a person, whatever it says of its tools."""

    async def main() -> list[FleetTool]:
        servers = {trust: raw("plain", trust=trust) for trust in ("none", "annotations", "all")}
        providers = mcp_providers(read_mcp_servers(servers))
        found = [tool for provider in providers for tool in await provider.open()]
        for provider in providers:
            await provider.close()
        return found

    found = asyncio.run(main())
    assert [(each.name, each.effect, each.needs_approval) for each in found] == [
        ("none__echo", "once", True),
        ("annotations__echo", "none", False),
        ("all__echo", "none", False),
    ]


def test_untrusted_call_asks_a_person_and_no_client_of_a_server() -> None:
    """Without an answer the run ends with the question; runs of a server's clients do not have the tools."""

    async def main() -> None:
        async with fleet_of(
            asks=raw("plain", trust="none"), ours=raw("plain"), theirs=raw("plain", clients=True)
        ) as run:
            with pytest.raises(NeedsAnswerError, match="may worker call asks__echo with"):
                await run(calling("asks__echo", text="hi"))
            with pytest.raises(RequestError, match="ours__echo is not for the clients of a server"):
                await run(calling("ours__echo", text="hi"), is_client=True)
            assert await run(calling("theirs__echo", text="hi"), is_client=True) == "hi"

    asyncio.run(main())


def test_change_that_a_server_announces_is_followed() -> None:
    """`notifications/tools/list_changed` of an older protocol brings the new tool to the next run; a call has a key."""

    async def main() -> None:
        async with fleet_of(old=raw("plain")) as run:
            assert await run(names) == ["old__echo"]
            assert len(await run(calling("old__echo", text="key"))) == 32
            await run(calling("old__echo", text="more"))
            async with asyncio.timeout(30):
                while "old__added" not in await run(names):  # noqa: ASYNC110 - a run is the event
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_only_named_tools_are_used(caplog: pytest.LogCaptureFixture) -> None:
    """`tools` is all that is taken of a server, and a name that it does not have is told."""

    async def main() -> list[str]:
        async with fleet_of(old=raw("plain", tools=["nonesuch"])) as run:
            return await run(names)

    assert asyncio.run(main()) == []
    assert "it has no tool 'nonesuch', which its `tools` name" in caplog.text


def test_model_is_offered_the_tools_of_one_server() -> None:
    """`one__*` is every tool of the server `one`; a beginning that no tool has is refused by name."""
    call = ToolCall(id="c", function=FunctionCall(name="one__echo", arguments='{"text":"hi"}'))
    script = [Reply(tool_calls=(call,)), "done"]
    backend = ScriptedBackend(script)

    async def main() -> None:
        providers = mcp_providers(read_mcp_servers({"one": raw("plain"), "two": raw("plain")}))
        async with Fleet(backend, [AssistantAgent()], tool_providers=providers) as fleet:
            done = await fleet.run_agent("assistant", Task(text="x", arguments={"tools": ["one__*"]}))
            assert done.calls == ['one__echo({"text":"hi"}): hi']
            with pytest.raises(RequestError, match="no tool begins with 'three__'; there are one__echo, two__echo"):
                await fleet.run_agent("assistant", Task(text="x", arguments={"tools": ["three__*"]}))

    asyncio.run(main())
    offered = [[tool.function.name for tool in request.tools or []] for request in backend.requests]
    assert offered == [["one__echo"], ["one__echo"]]


def test_what_results_hold_is_text() -> None:
    """Links, embedded texts and bytes, and structured content where no text says it, reach the model as text."""

    async def main() -> str:
        async with fleet_of(raw=raw("blocks")) as run:
            return await run(calling("raw__echo", text="x"))

    assert asyncio.run(main()).splitlines() == [
        "[link to the resource notes: file:///notes]",
        "[resource file:///a]",
        "the text of a",
        "[resource file:///b, about 6 bytes, which are not shown]",
        '{"sum": 3}',
    ]


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        ({"command": "x", "url": "http://h"}, "expected either `command` or `url` in the MCP server s"),
        ({}, "expected either `command` or `url`"),
        ({"comand": "x"}, "expected 'command' in the MCP server s, got 'comand'"),
        ({"command": "x", "headers": {"a": "b"}}, "expected no `headers` in the MCP server s, which is started by"),
        ({"command": "x", "env": {"A": 1}}, "expected a text, env:NAME or file:PATH for 'A', as env of"),
        ({"url": "ftp://h"}, "expected a URL such as"),
        ({"url": "https://user:sk-secret@h"}, "expected a URL such as"),
        ({"url": "http://h", "headers": {"A": "sk-secret\n"}}, "expected a line of printable ASCII"),
        ({"command": "x", "trust": "yes"}, "expected 'none', 'annotations' or 'all', as trust of"),
        ("x", "expected a table with `command` or `url`"),
    ],
)
def test_wrong_server_is_refused_in_a_sentence(server: object, sentence: str) -> None:
    """What is wrong is named by server and key, and no secret is repeated."""
    with pytest.raises(ValueError, match=r"^expected") as caught:
        read_mcp_servers({"s": server})
    assert sentence in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_names_of_tools_do_not_collide() -> None:
    """No server's name ends or breaks at the mark between server and tool, and what is written anew gets its own."""
    for name in ("a__b", "a_", "_a", "", "a b", "x" * 33):
        with pytest.raises(ValueError, match="as an MCP server's name"):
            read_mcp_servers({name: {"command": "x"}})
    made = [tool_name("s", tool) for tool in ("a b", "a_b", "a\tb", "x" * 80, "x" * 81, "")]
    assert len(set(made)) == len(made)
