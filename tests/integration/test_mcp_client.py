"""MCP servers as tool providers of a real fleet: programs over stdio, the package's own server over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from support import mcp_server
from support.fleets import Custom
from support.waiting import wait_until

from pyagent.core.errors import BackendError, NeedsAnswerError, PyAgentError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet import tool_providers
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.fleet.journal import Journal, MemoryJournal
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.replay_check import check_replay
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import ChatRequest, FunctionCall, ToolCall
from pyagent.core.settings.mcp import read_mcp_servers
from pyagent.infrastructure.mcp import stdio
from pyagent.infrastructure.mcp.client_tools import tool_name
from pyagent.infrastructure.mcp.incoming import MAX_NOTIFICATIONS, MAX_REQUESTS, Answering, Limited
from pyagent.infrastructure.mcp.provider import mcp_providers
from pyagent.logic.agents.assistant import AssistantAgent
from pyagent.testing import Reply, ScriptedBackend
from pyagent.testing.prompt_server import PromptServer

SUPPORT = Path(__file__).parent.parent / "support"
Work = Callable[[Context], Awaitable[Any]]


def raw(mode: str, **more: object) -> dict[str, object]:
    """A server that starts at once and speaks the protocol by hand."""
    command = [sys.executable, "-S", "-E", str(SUPPORT / "raw_mcp_server.py"), mode]
    return {"command": command[0], "args": command[1:], "trust": "all", "startup_seconds": 60, **more}


@pytest.fixture(autouse=True)
def _time_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet goes on without a server that is not there after ten seconds, and a busy machine may take longer."""
    monkeypatch.setattr(tool_providers, "OPEN_SECONDS", 60.0)


def python(folder: Path, **more: object) -> dict[str, object]:
    """The Python package's own server."""
    arguments = {
        "args": [str(SUPPORT / "mcp_server.py")],
        "env": {"STUB_FOLDER": str(folder), "STUB_KEY": "env:STUB_SECRET"},
    }
    return {"command": sys.executable, **arguments, "trust": "all", "startup_seconds": 60, **more}


@asynccontextmanager
async def fleet_of(**servers: object) -> AsyncGenerator[Callable[..., Any]]:
    """A fleet with these servers; what it gives runs a function of an agent's context."""
    async with Fleet(ScriptedBackend([]), [], tool_providers=mcp_providers(read_mcp_servers(servers))) as fleet:

        async def run(work: Work, *, is_client: bool = False, seen: list[ev.Event] | None = None) -> Any:
            async def function(context: Context, _: Task) -> object:
                return await work(context)

            fleet.agents["worker"] = Custom("worker", function)
            access = FileAccess.below(None) if is_client else FileAccess()
            output: object = None
            async for event in fleet.run("work", agent="worker", file_access=access):
                (seen if seen is not None else []).append(event)
                if isinstance(event, ev.RunFinished):
                    output = event.output
            return output

        yield run


def calling(name: str, **arguments: object) -> Work:
    return lambda context: context.call_tool(name, arguments)


async def names(context: Context) -> list[str]:
    return list(context.tools)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - of files and processes too
            await asyncio.sleep(0.01)


def is_alive(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


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


@asynccontextmanager
async def served(app: Any) -> AsyncGenerator[str]:
    """Serve an application with a lifespan on this event loop."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = PromptServer(uvicorn.Config(app, log_level=100, access_log=False, timeout_graceful_shutdown=1))
        job = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await job


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


def test_endless_line_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never ends its line is ended, with the reason; what it wrote is not kept."""
    monkeypatch.setattr(stdio, "MAX_LINE_BYTES", 1 << 20)

    async def main() -> None:
        async with fleet_of(bad=raw("endless", timeout_seconds=20)) as run:
            await run(names)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with pytest.raises(PyAgentError, match="it sent a line of more than 1 MiB"):
                await run(calling("bad__echo", text="x"))
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB

    asyncio.run(main())


def test_flood_of_notifications_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """6,000 notifications are 100 events and 200 lines of log at most, and the answer comes."""
    seen: list[ev.Event] = []

    async def main() -> None:
        async with fleet_of(bad=raw("flood")) as run:
            assert await run(calling("bad__echo", text="x"), seen=seen) == "x"

    with caplog.at_level(logging.DEBUG, "pyagent.mcp"):
        asyncio.run(main())
    assert sum(isinstance(each, ev.Progress) for each in seen) <= 100
    assert sum("says" in record.getMessage() for record in caplog.records) <= 200


def test_requests_beyond_those_that_are_answered_are_dropped() -> None:
    """Of 1,000 pings at once the package's session sees 100, and as many more as it has answered."""

    async def main() -> tuple[int, int]:
        sending, receiving = anyio.create_memory_object_stream[Any](2_000)
        to_server, answers = anyio.create_memory_object_stream[Any](2_000)
        answering = Answering(to_server)
        limited = Limited(receiving, lambda: None, answering)

        async def num_seen() -> int:
            for number in range(1_000):
                sending.send_nowait(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=number, method="ping")))
            sending.send_nowait(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=-1, result={})))
            count = 0
            while isinstance((await limited.receive()).message, JSONRPCRequest):
                count += 1
            return count

        first = await num_seen()
        for number in range(30):
            await answering.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=number, result={})))
        second = await num_seen()
        for stream in (sending, receiving, to_server, answers):
            stream.close()
        return first, second

    assert asyncio.run(main()) == (MAX_REQUESTS, 30)


def test_requests_that_their_server_cancels_give_way_to_others() -> None:
    """What a server cancelled is never answered, and counts no longer; an id that waits already is not taken again."""

    async def main() -> list[int]:
        sending, receiving = anyio.create_memory_object_stream[Any](2_000)
        to_server, answers = anyio.create_memory_object_stream[Any](1)
        limited = Limited(receiving, lambda: None, Answering(to_server))

        async def num_seen(*messages: JSONRPCRequest | JSONRPCNotification) -> int:
            for message in (*messages, JSONRPCResponse(jsonrpc="2.0", id=-1, result={})):
                sending.send_nowait(SessionMessage(message))
            count = 0
            while not isinstance(message := (await limited.receive()).message, JSONRPCResponse):
                count += isinstance(message, JSONRPCRequest)
            return count

        def ping(number: int | str) -> JSONRPCRequest:
            return JSONRPCRequest(jsonrpc="2.0", id=number, method="ping")

        def cancel(number: object) -> JSONRPCNotification:
            return JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params={"requestId": number})

        seen = [await num_seen(*(ping(number) for _ in range(2) for number in range(200)))]
        seen.append(await num_seen(*(cancel(number) for number in (0, 1, "2", 500, None, 1)), cancel([])))
        seen.append(await num_seen(*(ping(number) for number in range(300, 320)), ping("300")))
        for stream in (sending, receiving, to_server, answers):
            stream.close()
        return seen

    assert asyncio.run(main()) == [MAX_REQUESTS, 0, 3]


def test_noise_of_a_program_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that is no message waits for a turn of the event loop; of standard error little is looked at."""
    turns: list[int] = []
    num_turns, num_struck = 0, 0
    parsed, strike_text = stdio._parsed, stdio.strike_text

    async def count_turns() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    def count_struck(text: str, known: Sequence[str] = ()) -> str:
        nonlocal num_struck
        num_struck += 1
        return strike_text(text, known)

    async def main() -> None:
        says = "import sys; sys.stderr.write('a\\n' * 20_000); sys.stdout.write('\\n' * 200)"
        program = stdio.Program("noisy", [sys.executable, "-S", "-c", says], {}, None, ())
        ticking = asyncio.create_task(count_turns())
        async with program.streams() as (incoming, _):
            assert [message async for message in incoming] == []
        ticking.cancel()

    monkeypatch.setattr(stdio, "_parsed", lambda line: turns.append(num_turns) or parsed(line))
    monkeypatch.setattr(stdio, "strike_text", count_struck)
    asyncio.run(main())
    assert len(turns) == len(set(turns)) == 200
    assert num_struck < 3_000


def test_notifications_beyond_a_rate_are_dropped() -> None:
    """Of 10,000 notifications at once the package's session sees 1,000 a second; answers among them all arrive."""

    async def main() -> tuple[int, int]:
        sending, receiving = anyio.create_memory_object_stream[Any](20_000)
        noise = JSONRPCNotification(jsonrpc="2.0", method="notifications/message")
        for number in range(10_000):
            sending.send_nowait(SessionMessage(noise))
            if number % 1_000 == 0:
                sending.send_nowait(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=number, result={})))
        sending.close()
        began = asyncio.get_running_loop().time()
        seen = [each.message async for each in Limited(receiving, lambda: None, Answering(sending))]
        seconds = int(asyncio.get_running_loop().time() - began) + 2
        receiving.close()
        num_answers = sum(isinstance(each, JSONRPCResponse) for each in seen)
        assert len(seen) - num_answers <= MAX_NOTIFICATIONS * seconds < 10_000
        return num_answers, seconds

    assert asyncio.run(main())[0] == 10


def test_lies_about_tools_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Names that would be equal are told apart, a broken or huge schema keeps its tool out alone, texts are cut."""

    async def main() -> dict[str, FleetTool]:
        found: dict[str, FleetTool] = {}

        async def look(context: Context) -> bool:
            found.update(context.run.tools)
            return True

        async with fleet_of(bad=raw("lies")) as run:
            await run(look)
        return found

    found = asyncio.run(main())
    assert len(found) == 8
    assert {"bad__a_b", "bad__talks", "bad__deep70"} < found.keys()
    assert "the tool bad__deep150 cannot be offered" in caplog.text
    assert all(len(name) <= 64 for name in found)
    assert len(found["bad__talks"].description) == 8_000
    assert "its tool 'big' cannot be offered: its schema has more than 100,000 bytes" in caplog.text
    assert "the tool bad__broken cannot be offered" in caplog.text


def test_failed_start_is_named_once_without_secrets(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that ends at once is named in one warning with its last words, and the others work; a call says why."""
    monkeypatch.setenv("MCP_TEST_SECRET", "hush-hush")
    secret = {"env": {"KEY": "env:MCP_TEST_SECRET"}}

    async def main() -> None:
        missing = {"command": "nonesuch", "trust": "all"}
        unset = raw("plain", env={"X": "env:MCP_TEST_UNSET"})
        servers = {"missing": missing, "unset": unset, "wrong": raw("wrong"), "good": raw("noise")}
        async with fleet_of(fails=raw("fails", **secret), **servers) as run:
            assert await run(names) == ["good__echo"]
            await asyncio.sleep(1.2)  # it is tried again meanwhile
            assert await run(calling("good__echo", text="x")) == "x"

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4, told
    assert any("wrong" in text and "ListToolsResult" in text for text in told), told
    assert any("fails" in text and "exit code 1; it said: no: [redacted]" in text for text in told), told
    assert any("its command 'nonesuch' is not found" in text for text in told), told
    assert any("X of the MCP server unset is to be env:MCP_TEST_UNSET, which is not set" in text for text in told), told
    assert "hush" not in caplog.text


def test_server_that_dies_is_begun_again() -> None:
    """A call that a server dies of says that its effect is not known; the next call has a new server."""

    async def main() -> None:
        async with fleet_of(bad=raw("dies")) as run:
            for _ in range(2):
                with pytest.raises(BackendError, match="ended during the call; whether the call had its effect is not"):
                    await run(calling("bad__echo", text="x"))
            with pytest.raises(
                BackendError, match=r"not connected: it ended with exit code 3; it is tried again in \d s"
            ):
                await run(calling("bad__echo", text="x"))

    asyncio.run(main())


def test_call_without_an_answer_ends_in_time() -> None:
    """A server that does not answer a call costs its `timeout_seconds`."""

    async def main() -> None:
        async with fleet_of(bad=raw("silent", timeout_seconds=0.2)) as run:
            with pytest.raises(BackendError, match=r"bad: no answer within 0.2 s, the call was cancelled"):
                await run(calling("bad__echo", text="x"))

    asyncio.run(main())


def test_all_processes_of_a_server_end_with_the_fleet() -> None:
    """Also a server that hears neither the end of its input nor SIGTERM, and its child."""
    processes: list[int] = []

    async def look(context: Context) -> bool:
        processes.extend(map(int, context.run.tools["bad__echo"].description.split()))
        return True

    async def main() -> float:
        async with fleet_of(bad=raw("child")) as run:
            await run(look)
            assert all(map(is_alive, processes))
            began = time.monotonic()
        return time.monotonic() - began

    assert asyncio.run(main()) < 5  # what a provider has for it
    assert len(processes) == 2
    deadline = time.monotonic() + 10
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_alive, processes)), os.listdir("/proc")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_all_processes_of_a_server_end_though_we_are_killed(tmp_path: Path, number: signal.Signals) -> None:
    """By SIGKILL or a closed terminal: a server that hears neither its input's end nor SIGTERM, and a child."""
    told = tmp_path / "processes"
    deaf = f"trap '' TERM HUP INT; sleep 600 & echo $$ $! > {told}; while :; do sleep 600; done"
    command = [sys.executable, "-c", _OPENS_A_PROGRAM, deaf]
    ours = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    assert ours.stdout is not None
    assert ours.stdout.readline() == b"open\n"
    wait_until(lambda: told.exists() and told.read_text().endswith("\n"))
    processes = [int(word) for word in told.read_text().split()]
    assert all(map(is_alive, processes))
    os.killpg(ours.pid, number)
    ours.communicate(timeout=60)
    assert ours.returncode == -number
    wait_until(lambda: not any(map(is_alive, processes)))


_OPENS_A_PROGRAM = """
import asyncio, os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which whoever runs the tests may ignore
from pyagent.infrastructure.mcp.stdio import Program

async def main():
    async with Program("deaf", ["/bin/sh", "-c", sys.argv[1]], os.environ, None, ()).streams():
        print("open", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_program_is_reaped_though_its_end_is_cancelled() -> None:
    """A program whose end is interrupted, as by Ctrl+C, is killed and taken in, and leaves no warning of Python's."""
    program = stdio.Program("s", [sys.executable, "-S", "-c", "import time; time.sleep(60)"], os.environ, None, ())

    async def main() -> str:
        begun = asyncio.Event()

        async def use() -> None:
            async with program.streams():
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(use())
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0.02)  # its end has begun, and is broken off
        task.cancel()
        await asyncio.wait([task])
        return program.explain()

    assert asyncio.run(main()) == "it ended with signal SIGKILL"


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
