"""PyAgent as an MCP server, driven by the package's own client: in this process, over HTTP and as a program."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import uvicorn
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult
from support.command_line import COMMAND, fresh_environment
from support.fleets import Custom, Work
from support.server import keys

from pyagent.core.errors import ConfigError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import FileAccess, current_access
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.settings import Server
from pyagent.infrastructure.called_runs import Caller, told_error
from pyagent.infrastructure.mcp import serving
from pyagent.infrastructure.mcp.endpoints import http_app
from pyagent.infrastructure.mcp.offers import offers_of
from pyagent.infrastructure.mcp.serving import AgentServer
from pyagent.infrastructure.mcp.tool_agent import ToolAgent
from pyagent.testing import ScriptedBackend
from pyagent.testing.prompt_server import PromptServer

ERAS = ("legacy", "auto")
"""The handshake of protocols before 2026, and the protocol of 2026."""


OURSELVES = Caller()


class Loud(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    times: int = 1


class Said(msgspec.Struct, frozen=True):
    text: str


async def shout(context: Context, task: Task) -> object:
    context.progress("takes a breath")
    return Said(task.text.upper() + "!" * task.arguments_as(Loud).times)


async def choose(context: Context, task: Task) -> object:
    return "you said " + await context.ask("Which colour?", options=("red", "blue"))


async def who(context: Context, task: Task) -> object:
    return f"{context.tenant} {current_access().is_limited}"


async def fall(context: Context, task: Task) -> object:
    raise RuntimeError("a bug of the agent's")


@tool(effect="none")
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool(needs_approval=True)
async def wipe(name: str) -> None:
    """Delete something."""


def fleet_of(work: Work | None = None) -> Fleet:
    agents = [
        Custom("shout", shout, arguments=Loud),
        Custom("choose", choose),
        Custom("who", who),
        Custom("fall", fall),
    ]
    return Fleet(ScriptedBackend([]), [*agents, Custom("work it", work or Work()), ToolAgent()], [double, wipe])


@asynccontextmanager
async def client_of(
    fleet: Fleet, era: str, *, answer: ElicitResult | None = None, caller: Caller = OURSELVES
) -> AsyncGenerator[Client]:
    """A client in this process, whose person gives an answer if there is one."""
    agents = AgentServer(fleet, offers_of(fleet, ["*"], ["double", "wipe"]), lambda _: caller)

    async def elicit(_: Any, __: Any) -> ElicitResult:
        assert answer is not None
        return answer

    callback: dict[str, Any] = {"elicitation_callback": elicit} if answer else {}
    try:
        async with fleet, Client(agents.server(), mode=era, **callback) as client:  # type: ignore[arg-type]
            yield client
    finally:
        await agents.close()


def text(result: Any) -> str:
    return str(result.content[0].text)


@pytest.mark.parametrize("era", ERAS)
def test_agents_and_chosen_tools_are_offered_and_called(era: str) -> None:
    """Each agent is a tool with a task and its own arguments; progress is told; a result is text and its fields."""
    seen: list[str | None] = []

    async def progress(_: float, __: float | None, message: str | None) -> None:
        seen.append(message)

    async def main() -> None:
        async with client_of(fleet_of(), era) as client:
            tools = {each.name: each for each in (await client.list_tools()).tools}
            assert set(tools) >= {"agent_shout", "agent_choose", "double", "wipe"}
            assert not any("mcp-tool" in name for name in tools)
            assert any(name.startswith("agent_work_it-") for name in tools)
            assert tools["agent_shout"].input_schema["required"] == ["task"]
            arguments = {"task": "hi", "arguments": {"times": 2}}
            done = await client.call_tool("agent_shout", arguments, progress_callback=progress)
            assert (text(done), done.structured_content, done.is_error) == ('{"text":"HI!!"}', {"text": "HI!!"}, False)
            assert text(await client.call_tool("double", {"number": 4})) == "8"
            wrong = await client.call_tool("double", {"number": "x"})
            assert wrong.is_error
            assert "the tool double cannot take these arguments" in text(wrong)
            wrong = await client.call_tool("agent_shout", {"task": "hi", "arguments": {"time": 2}})
            assert "unknown field `time`" in text(wrong)
            with pytest.raises(MCPError, match="there is no tool 'nonesuch'"):
                await client.call_tool("nonesuch", {})

    asyncio.run(main())
    assert "shout begins" in seen


@pytest.mark.parametrize("era", ERAS)
def test_failure_is_told(era: str) -> None:
    """An agent's error reaches the client as one, in a sentence."""

    async def main() -> None:
        async with client_of(fleet_of(), era) as client:
            failed = await client.call_tool("agent_fall", {"task": "x"})
            assert failed.is_error
            assert "fall failed: RuntimeError: a bug of the agent's" in text(failed)

    asyncio.run(main())


def test_bug_of_ours_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """What no error of PyAgent says stays in the log; a limited caller is told no folders."""
    assert "secret" not in told_error(ValueError("a secret"), "agent_x", Caller())
    assert "a secret" in caplog.text
    limited = Caller(files=FileAccess.below(None))
    assert told_error(RequestError("no /etc/hosts here"), "agent_x", limited) == "no hosts here"


@pytest.mark.parametrize("era", ERAS)
def test_question_goes_to_the_clients_person(era: str) -> None:
    """By elicitation, in the form of either protocol; without it the run ends with the question told."""

    async def main() -> None:
        answer = ElicitResult(action="accept", content={"answer": "blue"})
        async with client_of(fleet_of(), era, answer=answer) as client:
            assert text(await client.call_tool("agent_choose", {"task": "x"})) == "you said blue"
        async with client_of(fleet_of(), era, answer=ElicitResult(action="decline")) as client:
            declined = await client.call_tool("agent_choose", {"task": "x"})
            assert declined.is_error
            assert "the person gave no answer to: Which colour?" in text(declined)
        async with client_of(fleet_of(), era, answer=ElicitResult(action="accept", content={"answer": "no"})) as client:
            assert "is one of red, blue, got 'no'" in text(await client.call_tool("agent_choose", {"task": "x"}))
        async with client_of(fleet_of(), era) as client:
            asks = await client.call_tool("agent_choose", {"task": "x"})
            assert asks.is_error
            assert "the run needs an answer: Which colour? (red, blue)" in text(asks)

    asyncio.run(main())


@pytest.mark.parametrize("era", ERAS)
def test_approval_is_asked_and_a_client_without_the_right_cannot_give_it(era: str) -> None:
    """An unsafe tool runs when the person allows it, and never by the word of a client that may not approve."""

    async def main() -> None:
        answer = ElicitResult(action="accept", content={"answer": "allow"})
        async with client_of(fleet_of(), era, answer=answer) as client:
            assert not (await client.call_tool("wipe", {"name": "a"})).is_error
        async with client_of(fleet_of(), era, answer=answer, caller=Caller(may_approve=False)) as client:
            denied = await client.call_tool("wipe", {"name": "a"})
            assert denied.is_error
            assert "a person denied this call of wipe" in text(denied)

    asyncio.run(main())


@pytest.mark.parametrize("era", ERAS)
def test_cancelled_call_ends_its_run(era: str) -> None:
    """Cancelling a call at the client ends the agent, and the fleet has no run left."""

    async def main() -> None:
        work = Work()
        fleet = fleet_of(work)
        async with client_of(fleet, era) as client:
            name = next(each.name for each in (await client.list_tools()).tools if "work" in each.name)
            job = asyncio.create_task(client.call_tool(name, {"task": "x"}))
            await asyncio.wait_for(work.begun.wait(), 30)
            job.cancel()
            await asyncio.wait([job])
            await asyncio.wait_for(work.ended.wait(), 30)
            async with asyncio.timeout(30):
                while fleet._runs:  # noqa: ASYNC110 - what it has no event for
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_run_that_no_client_comes_back_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that asks waits for a time, is taken up by the same call of the same client alone, and then ended."""

    async def main() -> None:
        fleet = fleet_of()
        callers = [Caller("ann"), Caller("bob")]
        agents = AgentServer(fleet, offers_of(fleet, ["choose"], []), lambda _: callers[0])

        async def elicit(_: Any, __: Any) -> ElicitResult:
            raise AssertionError("asked by hand")

        async with fleet, Client(agents.server(), elicitation_callback=elicit) as client:
            call = client.session.call_tool
            asked: Any = await call("agent_choose", {"task": "x"}, allow_input_required=True)
            (question,) = asked.input_requests
            state = {"request_state": asked.request_state, "allow_input_required": True}
            given = {question: ElicitResult(action="accept", content={"answer": "red"})}
            callers.reverse()
            with pytest.raises(MCPError, match="no call waits for this answer"):
                await call("agent_choose", {"task": "x"}, input_responses=given, **state)
            callers.reverse()
            with pytest.raises(MCPError, match="no call waits for this answer"):
                await call("agent_choose", {"task": "y"}, input_responses=given, **state)
            assert text(await call("agent_choose", {"task": "x"}, input_responses=given, **state)) == "you said red"
            monkeypatch.setattr(serving, "WAIT_SECONDS", 0.05)
            asked = await call("agent_choose", {"task": "x"}, allow_input_required=True)
            async with asyncio.timeout(30):
                while fleet._runs:  # noqa: ASYNC110 - what it has no event for
                    await asyncio.sleep(0.01)
            state["request_state"] = asked.request_state
            with pytest.raises(MCPError, match="no call waits for this answer"):
                await call("agent_choose", {"task": "x"}, input_responses=given, **state)

    asyncio.run(main())


def test_what_there_is_not_is_not_offered() -> None:
    """An agent or a tool that is misspelt is refused with the nearest name."""
    fleet = fleet_of()
    with pytest.raises(RequestError, match="there is no agent 'shot'; did you mean 'shout'"):
        offers_of(fleet, ["shot"], [])
    with pytest.raises(RequestError, match="there is no tool 'duoble'; did you mean 'double'"):
        offers_of(fleet, [], ["duoble"])
    assert list(offers_of(fleet, ["shout"], ["double"])) == ["agent_shout", "double"]


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def served(fleet: Fleet, settings: Server, secrets: Sequence[str] = ()) -> AsyncGenerator[str]:
    """Serve a fleet on this event loop; gives the URL."""
    async with fleet, http_app(fleet, offers_of(fleet, ["*"], ["wipe"]), settings, keys(*secrets)) as app:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(app, log_level=100, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
            server = PromptServer(config)
            job = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                async with asyncio.timeout(30):
                    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                        await asyncio.sleep(0.005)
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await job


@asynccontextmanager
async def web_client(url: str, era: str, key: str = "", **more: Any) -> AsyncGenerator[Client]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=era, **more) as client,  # type: ignore[arg-type]
    ):
        yield client


KEYS = ("sk-0123456789abcdef", "sk-fedcba9876543210")


@pytest.mark.parametrize("era", ERAS)
def test_http_clients_are_told_apart_by_their_keys(era: str) -> None:
    """A run is its key's tenant's, and reads below the server's folder; questions work; no key, no answer."""

    async def elicit(_: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"answer": "allow" if "wipe" in params.message else "red"})

    async def main() -> None:
        async with served(fleet_of(), Server(), KEYS) as url:
            for number, key in enumerate(KEYS, 1):
                async with web_client(url, era, key, elicitation_callback=elicit) as client:
                    assert text(await client.call_tool("agent_who", {"task": "x"})) == f"key {number} True"
                    assert text(await client.call_tool("agent_choose", {"task": "x"})) == "you said red"
                    denied = await client.call_tool("wipe", {"name": "a"})
                    assert "a person denied this call of wipe" in text(denied)
            with pytest.raises((MCPError, ExceptionGroup)):
                async with web_client(url, era, "sk-wrong-wrong-wrong") as client:
                    pass

    asyncio.run(main())


def test_http_refuses_pages_other_hosts_and_others_sessions() -> None:
    """A page that is not named, a name that is not this machine's, and another key's session are turned away."""
    initialize = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }
    accept = {"accept": "application/json, text/event-stream"}

    async def main() -> None:
        named = Server(allowed_origins=["https://good.example"])
        async with served(fleet_of(), named) as url, httpx2.AsyncClient(headers=accept) as http:
            for origin, status in (("https://evil.example", 403), ("https://good.example", 200)):
                answer = await http.post(f"{url}/mcp", json=initialize, headers={"origin": origin})
                assert answer.status_code == status, answer.text
            assert (await http.post(f"{url}/mcp", json=initialize, headers={"host": "evil.example"})).status_code == 403
            assert (await http.post(f"{url}/other", json=initialize)).status_code == 404
        async with served(fleet_of(), Server(), KEYS) as url, httpx2.AsyncClient(headers=accept) as http:
            own, other = ({"authorization": f"Bearer {key}"} for key in KEYS)
            assert (await http.post(f"{url}/mcp", json=initialize)).status_code == 401
            begun = await http.post(f"{url}/mcp", json=initialize, headers=own)
            session = {"mcp-session-id": begun.headers["mcp-session-id"]}
            listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
            assert (await http.post(f"{url}/mcp", json=listing, headers=session | other)).status_code == 404
            big = await http.post(f"{url}/mcp", content=b"x" * (5 << 20), headers=own)
            assert big.status_code == 413
        async with served(fleet_of(), named, KEYS) as url, httpx2.AsyncClient() as http:
            asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
            for origin, status in (("https://evil.example", 400), ("https://good.example", 200)):
                told = await http.options(f"{url}/mcp", headers={"origin": origin, **asks})
                assert told.status_code == status, "a browser asks before it sends a key"
                assert told.headers.get("access-control-allow-origin") == (origin if status == 200 else None)
            page = {"origin": "https://good.example", "authorization": f"Bearer {KEYS[0]}", **accept}
            begun = await http.post(f"{url}/mcp", json=initialize, headers=page)
            assert "mcp-session-id" in begun.headers["access-control-expose-headers"]
        with pytest.raises(ConfigError, match="every page of the web"):
            async with served(fleet_of(), Server(allowed_origins=["*"])):
                pass

    asyncio.run(main())


# -- as a program ------------------------------------------------------------------------------------------------------


def test_program_is_driven_over_its_pipes(tmp_path: Path) -> None:
    """`pyagent mcp serve` offers what was chosen, answers, and ends when its input does."""
    words = ["mcp", "serve", "--agent", "math", "--tool", "calculator"]
    environment = fresh_environment(tmp_path)

    async def main() -> tuple[list[str], str, str]:
        program = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], *words], env=environment, cwd=tmp_path)
        async with Client(program) as client:
            names = [each.name for each in (await client.list_tools()).tools]
            by_agent = await client.call_tool("agent_math", {"task": "17 * 3"})
            by_tool = await client.call_tool("calculator", {"question": "2 + 2"})
            return names, text(by_agent), text(by_tool)

    names, by_agent, by_tool = asyncio.run(main())
    assert names == ["agent_math", "calculator"]
    assert "51" in by_agent
    assert "4" in by_tool


def test_wrong_words_are_refused(tmp_path: Path) -> None:
    """A flag of the other way, and an agent that there is not, each end with a sentence."""
    for words, said in (
        (["--port", "1"], "--port is for --http"),
        (["--agent", "mth"], "there is no agent 'mth'; did you mean 'math'?"),
    ):
        done = subprocess.run(
            [*COMMAND, "mcp", "serve", *words],
            env=fresh_environment(tmp_path),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in {1, 2}
        assert said in done.stderr
