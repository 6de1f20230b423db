"""A server with a fleet of small agents, whose runs a test holds up and lets go."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
from starlette.types import Receive, Scope, Send
from support.fleets import Custom, ask, echo
from support.server import keys
from support.waiting import until

from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import readable_path
from pyagent.core.fleet.journal import Journal
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.fleet.tracing import Tracer
from pyagent.core.messages import ChatRequest
from pyagent.core.settings import Server
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import ScriptedBackend, serve

ALICE, BOB, ADMIN = "sk-alice-0123456789", "sk-bob-9876543210", "sk-admin-0123456789"


class Command(msgspec.Struct):
    text: str


@dataclass
class World:
    """What the agents wait for, and what they did."""

    may_go: threading.Event = field(default_factory=threading.Event)
    ran: list[str] = field(default_factory=list[str])
    is_broken: bool = False

    def agents(self) -> list[Custom]:
        """Return the agents, each named by what it does."""

        async def gate(context: Context, task: Task) -> object:
            self.ran.append("gate")
            context.progress("at the gate")
            await until(self.may_go.is_set)
            return f"through with {task.text}"

        async def flaky(context: Context, task: Task) -> object:
            self.ran.append("flaky")
            if self.is_broken:
                raise ValueError("broken in /usr/lib/machine.py")
            return "mended"

        async def curious(context: Context, task: Task) -> object:
            return f"so it is {await context.ask('Which colour?', options=('red', 'blue'))}"

        async def careful(context: Context, task: Task) -> object:
            return await context.call_tool("shell", Command(task.text))

        async def reader(context: Context, task: Task) -> object:
            return readable_path(task.files[0]).read_text(encoding="utf-8")

        async def teller(context: Context, task: Task) -> object:
            pieces = [piece async for piece in context.stream(task.text)]
            return "".join(pieces)

        functions = (gate, flaky, curious, careful, reader, teller, echo, ask)
        return [Custom(function.__name__, function) for function in functions]

    def fleet(self, journal: Journal, tracer: Tracer | None = None) -> Fleet:
        """Return a fleet of them."""

        async def shell(arguments: Command) -> str:
            self.ran.append(arguments.text)
            return f"did {arguments.text}"

        def reply(request: ChatRequest) -> str:
            if request.messages[0].text.startswith("You plan"):
                return json.dumps({"step_1": {"agent": "echo", "task": "planned"}})
            return f"answer to {request.messages[-1].text}"

        tool = FleetTool("shell", "does it", Command, shell, needs_approval=True)
        return Fleet(ScriptedBackend(reply), self.agents(), [tool], journal=journal, tracer=tracer)


@dataclass
class RunServer:
    """A server under test: clients of it, and its agents."""

    url: str
    world: World
    agents: AgentBackend

    def client(self, secret: str = "") -> httpx.Client:
        """Return a client with a key."""
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)


class _Loop:
    """Notes the server's event loop."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.loop = asyncio.get_running_loop()
        await self.app(scope, receive, send)


@contextmanager
def run_server(
    folder: Path,
    *,
    world: World | None = None,
    has_keys: bool = False,
    root: Path | None = None,
    settings: Server = Server(),  # noqa: B008 - frozen
    tracer: Tracer | None = None,
) -> Generator[RunServer]:
    """Serve a fleet whose journal is in a folder; at the end its runs are left as they are."""
    world = world or World()
    journal = SqliteJournal(folder)
    agents = AgentBackend(lambda: world.fleet(journal, tracer), root, settings.run_rate)
    secrets = keys(ALICE, BOB, admin=ADMIN) if has_keys else []
    app = _Loop(create_app(ScriptedBackend([]), agents=agents, api_keys=secrets, settings=settings))
    with serve(app) as url:
        try:
            yield RunServer(url, world, agents)
        finally:
            if app.loop is not None:
                asyncio.run_coroutine_threadsafe(agents.close(), app.loop).result(30)
    journal.close()


def started(http: httpx.Client, agent: str, task: str = "x", **more: object) -> dict[str, Any]:
    """Start a run, and return it as it is told."""
    headers = more.pop("headers", {})
    answer = http.post("/v1/runs", json={"task": task, "agent": agent} | more, headers=headers)  # type: ignore[arg-type]
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()


def events_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Read server-sent events: each event's data, with its `id` where it has one."""
    number: int | None = None
    for line in response.iter_lines():
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("data: "):
            yield json.loads(line[6:]) | ({} if number is None else {"id": number})
            number = None


def followed(http: httpx.Client, run: str, query: str = "", **headers: str) -> list[dict[str, Any]]:
    """Return all events of a run, until it ends."""
    with http.stream("GET", f"/v1/runs/{run}/events{query}", headers=headers) as response:
        assert response.status_code == 200, response.read()
        return list(events_of(response))


def ended(http: httpx.Client, run: str) -> dict[str, Any]:
    """Wait for a run's end, and return the run."""
    assert followed(http, run)[-1]["event"] == "end"
    return http.get(f"/v1/runs/{run}").json()


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the kinds of events."""
    return [event["event"] for event in events]
