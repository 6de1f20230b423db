"""A fleet's spans, as a collector gets them from the real exporter."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
from support.collector import attributes, collecting

import pyagent
from pyagent.core.errors import AgentError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import MemoryJournal
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import ChatDelta, ChatRequest
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Settings
from pyagent.core.trace_context import trace_headers
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import ScriptedBackend, serve

PROGRAM = "import sys; from pyagent.cli.main import main; sys.exit(main())"


class Nothing(msgspec.Struct):
    pass


class Parent:
    name = "parent"
    description = "Asks, calls a tool and spawns."

    async def run(self, context: Context, task: Task) -> str:
        async for _ in context.stream("my secret"):
            await context.spawn("child", "x")
        await context.call_tool("nop", {})
        return "done"


class Child:
    name = "child"
    description = "Asks."

    async def run(self, context: Context, task: Task) -> str:
        return await context.generate("hi")


class Failing:
    name = "failing"
    description = "Fails."

    async def run(self, context: Context, task: Task) -> str:
        raise ValueError("my secret")


class Headers(ScriptedBackend):
    """Notes which trace each request belongs to."""

    def __init__(self) -> None:
        super().__init__(lambda request: "answer")
        self.parents: list[str] = []

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        self.parents.append(trace_headers()["traceparent"].split("-")[2])
        async for delta in super().chat(request):
            yield delta


async def _nop(arguments: Nothing) -> str:
    return "ok"


def fleet(settings: object, backend: ScriptedBackend) -> pyagent.Fleet:
    return pyagent.Fleet(
        Settings(server=settings),  # type: ignore[arg-type]
        backend=backend,
        agents=[Parent(), Child(), Failing()],
        tools=[FleetTool("nop", "does nothing", Nothing, _nop)],
        journal=MemoryJournal(),
        host=PluginHost(),
    )


def test_a_run_is_traced_down_to_tools_and_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's span holds its step's, that its agent's, and that the calls of models, tools and agents below."""
    backend = Headers()

    async def main(settings: object) -> None:
        async with fleet(settings, backend) as made:
            await made.run_agent("parent", "my secret")

    with collecting(monkeypatch) as (collector, settings):
        asyncio.run(main(settings))
        names = ("invoke_workflow", "step parent", "invoke_agent parent", "invoke_agent child", "execute_tool nop")
        run, step, parent, child, tool = collector.named(*names)
        for inner, outer in ((step, run), (parent, step), (child, parent), (tool, parent)):
            assert inner.parent_span_id == outer.span_id
        chats = [span for span in collector.spans if span.name == "chat scripted"]
        assert sorted(span.parent_span_id for span in chats) == sorted([parent.span_id, child.span_id])
        assert {span.span_id.hex() for span in chats} == set(backend.parents), "backends pass the call's span on"
        assert len({span.trace_id for span in collector.spans}) == 1
        assert attributes(chats[0])["gen_ai.usage.output_tokens"] == 1
        assert attributes(run)["pyagent.run"]
    assert "secret" not in str(collector.spans)


def test_failures_are_errors_without_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing agent's span, and those around it, are errors by kind; what the error said stays here."""

    async def main(settings: object) -> None:
        async with fleet(settings, Headers()) as made:
            with pytest.raises(AgentError):
                await made.run_agent("failing", "x")

    with collecting(monkeypatch) as (collector, settings):
        asyncio.run(main(settings))
        for span in collector.named("invoke_workflow", "step failing", "invoke_agent failing"):
            assert attributes(span)["error.type"] == "AgentError"
    assert "secret" not in str(collector.spans)


def test_a_run_over_http_joins_the_trace_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """`agent:NAME` over HTTP: the run's span belongs to the request's."""
    backend = Headers()
    with collecting(monkeypatch) as (collector, settings):
        agents = AgentBackend(lambda: fleet(settings, backend))
        with serve(create_app(backend, agents=agents, settings=settings)) as url:  # type: ignore[arg-type]
            body = {"model": "agent:parent", "messages": [{"role": "user", "content": "go"}]}
            assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200
            asyncio.run(agents.close())
            request, run, agent = collector.named("POST /v1/chat/completions", "invoke_workflow", "invoke_agent parent")
            assert run.parent_span_id == request.span_id
            assert agent.trace_id == request.trace_id


def _pyagent(tmp_path: Path, endpoint: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "agent", "math", "17*23"],
        env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "XDG_DATA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_line_is_traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With OpenTelemetry's variable set, a command's run is sent before the command ends."""
    with collecting(monkeypatch) as (collector, settings):
        assert settings.otlp_endpoint is not None
        done = _pyagent(tmp_path, settings.otlp_endpoint)
        assert (done.returncode, "391" in done.stdout) == (0, True), done.stderr
        collector.named("invoke_workflow", "step math", "invoke_agent math")


def test_a_collector_that_is_gone_costs_no_answer(tmp_path: Path) -> None:
    """Where nobody takes the spans, the command answers and ends."""
    done = _pyagent(tmp_path, "http://127.0.0.1:9")
    assert (done.returncode, "391" in done.stdout) == (0, True), done.stderr
