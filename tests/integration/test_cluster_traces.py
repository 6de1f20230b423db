"""Traces across nodes, as a collector gets them: what a peer does belongs to the span of the node that asked."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.collector import Collector, attributes, collecting
from support.native import options
from support.nodes import is_connected, join, running_node
from support.server import HI, Model, words
from support.waiting import until

import pyagent
from pyagent.core.errors import BackendError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import MemoryJournal
from pyagent.core.messages import ChatRequest
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Server, Settings
from pyagent.infrastructure.cluster.node import Node
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.observability.answer_spans import PeerTracer
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Asker:
    name = "asker"
    description = "Asks its node's model."

    async def run(self, context: Context, task: Task) -> str:
        return await context.generate("hi")


def _near(request: ChatRequest) -> list[Any]:
    text = f"there is no model {request.model!r}"
    return words() if request.model == "near" else [RequestError(text, code="model_not_found")]


async def post(node: Node, settings: Server, model: str) -> httpx.Response:
    """Ask a node over HTTP, as the part of a caller's trace."""
    app = httpx.ASGITransport(create_app(node.chain, node=node, settings=settings))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=app, base_url="http://127.0.0.1:8321", timeout=60) as http:
        headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
        body = {"model": model, "messages": HI, "max_tokens": 3, "temperature": 0}
        return await http.post("/v1/chat/completions", json=body, headers=headers)


async def asked(
    folder: Path, settings: Server, links: list[Any], agents: Any, *models: str, meets_twin: bool = False
) -> list[httpx.Response]:
    """Ask the first of two nodes for models of the second, which tells its part to the same collector."""
    assert settings.otlp_endpoint
    async with AsyncExitStack() as stack:
        join(folder / "a", None)
        a = await stack.enter_async_context(running_node(folder / "a", [Model(_near, ["near"])]))
        join(folder / "b", a)
        tracer = PeerTracer(settings.otlp_endpoint)
        stack.callback(tracer.close)
        seeds = [f"127.0.0.1:{a.door_port}"]
        given = {"offer": ["native", "agents", "test"], "tracer": tracer, "agents": agents}
        b = await stack.enter_async_context(running_node(folder / "b", links, seeds=seeds, **given))
        await until(lambda: is_connected(a, 1))
        if meets_twin:
            cloned = b.keys.node_id
            b._met_twin(is_to_change=True)  # as its door does, of a clone of its disk
            await until(lambda: b.keys.node_id != cloned and (peer := a.router.get(b.keys.node_id)) and peer.is_usable)
        return [await post(a, settings, model) for model in models]


def below(collector: Collector, span: Any) -> list[Any]:
    return [one for one in collector.spans if one.parent_span_id == span.span_id]


def test_engine_of_a_peer_is_in_the_request_s_trace(
    tmp_path: Path, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The origin's span holds its link and the peer's span; the engine's phases are told once, by the peer."""
    engine = NativeBackend.of("tiny", lambda: tiny_model_path, options())

    async def work(settings: Server) -> None:
        assert [one.status_code for one in await asked(tmp_path, settings, [engine], None, "tiny")] == [200]
        await engine.close()

    with collecting(monkeypatch) as (collector, settings):
        asyncio.run(work(settings))
        request, peer, computed, *_ = collector.named(
            "POST /v1/chat/completions", "peer chat", "engine", "queue", "prefill", "decode"
        )
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    assert request.parent_span_id.hex() == PARENT_ID
    assert {attributes(span).get("pyagent.backend") for span in below(collector, request)} == {"peer:b", None}
    assert peer.parent_span_id == request.span_id
    [link] = below(collector, peer)
    assert attributes(link)["gen_ai.provider.name"] == "native"
    assert attributes(link)["gen_ai.usage.output_tokens"] == 3
    assert computed.parent_span_id == link.span_id
    assert [span.name for span in collector.spans].count("engine") == 1
    assert request.start_time_unix_nano <= peer.start_time_unix_nano <= peer.end_time_unix_nano


def test_run_of_an_agent_on_a_peer_is_in_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent that a peer runs, and the model it asks there, are below the peer's span."""
    model = Model(lambda _: words("yes", backend="m", model="far"), ["far"])

    async def work(settings: Server) -> None:
        def fleet() -> pyagent.Fleet:
            given = {"agents": [Asker()], "journal": MemoryJournal(), "host": PluginHost()}
            return pyagent.Fleet(Settings(server=settings), backend=model, **given)  # type: ignore[arg-type]

        agents = AgentBackend(fleet)  # type: ignore[arg-type]
        [answer] = await asked(tmp_path, settings, [model], agents, "agent:asker")
        assert answer.status_code == 200, answer.text
        await agents.close()

    with collecting(monkeypatch) as (collector, settings):
        asyncio.run(work(settings))
        names = ("POST /v1/chat/completions", "peer chat", "invoke_workflow", "invoke_agent asker", "chat far")
        request, peer, run, agent, *_ = collector.named(*names)
    assert (peer.parent_span_id, run.parent_span_id) == (request.span_id, peer.span_id)
    assert [span.name for span in below(collector, agent)] == ["chat far"]
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}


def test_failure_on_a_peer_is_told_by_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer's span is an error where its links failed, without the error's text."""
    failing = Model(lambda _: [BackendError("my secret", backend="m")], ["far"])
    failing.name = "test:far"

    async def work(settings: Server) -> None:
        [answer] = await asked(tmp_path, settings, [failing], None, "far")
        assert answer.status_code >= 500

    with collecting(monkeypatch) as (collector, settings):
        asyncio.run(work(settings))
        collector.named("POST /v1/chat/completions", "peer chat")
    peers = [span for span in collector.spans if span.name == "peer chat"]
    assert {attributes(span).get("error.type") for span in peers} == {"BackendError"}
    assert "secret" not in str([span for span in peers if not span.events])


def test_node_that_took_new_keys_goes_on_tracing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that met its clone, and is another node of the cluster now, tells its part of traces as before."""

    async def work(settings: Server) -> None:
        far = Model(lambda _: words(), ["far"])
        far.name = "test:far"
        answers = await asked(tmp_path, settings, [far], None, "far", meets_twin=True)
        assert [answer.status_code for answer in answers] == [200]

    with collecting(monkeypatch) as (collector, settings):
        asyncio.run(work(settings))
        request, peer = collector.named("POST /v1/chat/completions", "peer chat")
    assert peer.parent_span_id == request.span_id
