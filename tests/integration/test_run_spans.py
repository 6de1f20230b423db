"""A run's spans from HTTP down to the engine: one trace, by OpenTelemetry's names, without text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from support.collector import attributes, collecting
from support.fleets import Custom

import pyagent
from pyagent.core.chain import Chain
from pyagent.core.errors import BackendError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import MemoryJournal
from pyagent.core.messages import ChatDelta, ChatRequest
from pyagent.core.plugins import PluginHost
from pyagent.core.resilience.retry import RetryPolicy
from pyagent.core.runners.factory import RunnerOptions
from pyagent.core.settings import Settings
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import ScriptedBackend, serve

SECRET = "my diagnosis"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Broken(ScriptedBackend):
    """A link that fails with the text of what it was asked."""

    def __init__(self) -> None:
        super().__init__(())
        self.name = "broken"

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        raise BackendError(f"cannot answer {request.messages[-1].text}", backend=self.name)
        yield ChatDelta()


async def ask(context: Context, task: Task) -> object:
    return await context.generate(task.text, sampling=pyagent.SamplingParams(max_tokens=4, ignore_eos=True))


def test_a_run_over_http_is_one_trace_down_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, tiny_model_path: Path
) -> None:
    """The caller's trace holds the request, its run, step, agent and chat, the links that failed, and the engine."""
    native = NativeBackend.of(
        "tiny", lambda: tiny_model_path, EngineOptions(RunnerOptions(threads=1, kv_bytes=1 << 20))
    )
    chain = Chain([Broken(), native], retry_policy=RetryPolicy(num_retries=0))
    with collecting(monkeypatch) as (collector, settings):

        def make() -> pyagent.Fleet:
            return pyagent.Fleet(
                Settings(server=settings),
                backend=chain,
                agents=[Custom("ask", ask)],
                tools=[],
                journal=MemoryJournal(),
                host=PluginHost(),
            )

        agents = AgentBackend(make)
        with (
            serve(create_app(chain, agents=agents, settings=settings)) as url,
            httpx.Client(base_url=url, timeout=60) as http,
        ):
            body = {"task": SECRET, "agent": "ask", "stream": True}
            with http.stream("POST", "/v1/runs", json=body, headers={"traceparent": PARENT}) as response:
                lines = [line for line in response.iter_lines() if line.startswith("event: ")]
            run = response.headers["content-location"].rpartition("/")[2]
        assert lines[-2:] == ["event: run_finished", "event: end"]
        asyncio.run(agents.close())
        asyncio.run(native.close())
        names = ("POST /v1/runs", "invoke_workflow", "step ask", "invoke_agent ask", "engine", "prefill", "decode")
        request, workflow, step, agent, engine, *phases = collector.named(*names)
        (chat,) = [span for span in collector.spans if span.name.startswith("chat ")]
        for inner, outer in ((workflow, request), (step, workflow), (agent, step), (chat, agent), (engine, chat)):
            assert inner.parent_span_id == outer.span_id, inner.name
        assert {phase.parent_span_id for phase in phases} == {engine.span_id}
        assert {span.trace_id.hex() for span in collector.spans} == {PARENT.split("-")[1]}
        assert request.parent_span_id.hex() == PARENT.split("-")[2]
        for span in (workflow, step, agent, chat):
            assert attributes(span)["gen_ai.conversation.id"] == run
        operations = [attributes(span)["gen_ai.operation.name"] for span in (workflow, agent, chat)]
        assert operations == ["invoke_workflow", "invoke_agent", "chat"]
        assert attributes(chat)["gen_ai.provider.name"] == "native"
        assert attributes(chat)["gen_ai.usage.output_tokens"] > 0
        [failed] = chat.events
        told = {entry.key: entry.value.string_value for entry in failed.attributes}
        assert failed.name == "pyagent.link_failed"
        assert told == {"pyagent.backend": "broken", "pyagent.kind": "backend"}
    assert SECRET not in str(collector.spans)


def test_a_call_that_no_link_answers_tells_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat that fails has the links that were asked as events, and is an error by its kind, without text."""
    chain = Chain([Broken()], retry_policy=RetryPolicy(num_retries=0))

    async def main(settings: object) -> None:
        fleet = pyagent.Fleet(
            Settings(server=settings),  # type: ignore[arg-type]
            backend=chain,
            agents=[Custom("ask", ask)],
            tools=[],
            journal=MemoryJournal(),
            host=PluginHost(),
        )
        async with fleet:
            with pytest.raises(BackendError):
                await fleet.run_agent("ask", SECRET)

    with collecting(monkeypatch) as (collector, settings):
        asyncio.run(main(settings))
        (chat,) = collector.named("chat")
        assert [event.name for event in chat.events] == ["pyagent.link_failed"]
        assert attributes(chat)["error.type"] == "BackendError"
    assert SECRET not in str(collector.spans)
