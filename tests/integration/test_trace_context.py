"""The trace of a request is passed on to the servers behind the links, as they receive it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyagent_ollama.backend import OllamaBackend
from starlette.types import ASGIApp, Receive, Scope, Send
from support.collector import collecting
from support.server import HI, serving

from pyagent.core.backends import Backend
from pyagent.core.chain import Chain
from pyagent.core.chain.settings import LinkSettings
from pyagent.core.trace_context import continue_trace, trace_headers
from pyagent.infrastructure.backends.openai import OpenAIBackend
from pyagent.testing import OllamaServer, OpenAIServer, serve

TRACE_ID, PARENT = "0af7651916cd43dd8448eb211c80319c", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ASKED = {"openai": ("/v1/chat/completions", "/v1/embeddings"), "ollama": ("/api/chat", "/api/embed")}
HEADERS: Any = {"traceparent": PARENT, "tracestate": "vendor=1"}
Seen = list[tuple[str, dict[str, str]]]


@contextmanager
def recorded(app: ASGIApp) -> Iterator[tuple[str, Seen]]:
    """A fake's URL, and the paths and headers that it is asked with."""
    seen: Seen = []

    async def recording(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            seen.append((scope["path"], {name.decode(): value.decode() for name, value in scope["headers"]}))
        await app(scope, receive, send)

    with serve(recording) as url:
        yield url, seen


@contextmanager
def link(kind: str) -> Iterator[tuple[Backend, Seen]]:
    if kind == "openai":
        with recorded(OpenAIServer().app()) as (url, seen):
            yield OpenAIBackend(f"{url}/v1"), seen
    else:
        with recorded(OllamaServer().app()) as (url, seen):
            yield OllamaBackend(url), seen


def told(kind: str, headers: dict[str, str], *, is_hedged: bool = False, **options: Any) -> list[dict[str, str]]:
    """What the server behind a link hears of the trace, with a chat whole and streamed, and with embeddings."""

    async def main(backend: Backend) -> None:
        hedge = LinkSettings(use=backend.name, hedge_seconds=60.0 if is_hedged else None)
        chain = Chain([backend, backend], settings=[hedge, hedge])
        try:
            async with serving(chain, **options) as url, httpx.AsyncClient(base_url=url, verify=False) as http:
                for body in ({"messages": HI}, {"messages": HI, "stream": True}):
                    assert (await http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
                embedded = await http.post("/v1/embeddings", json={"model": "default", "input": "x"}, headers=headers)
                assert embedded.status_code == 200
        finally:
            await chain.close()

    with link(kind) as (backend, seen):
        asyncio.run(main(backend))
    names = ("traceparent", "tracestate")
    heard = [{name: said[name] for name in names if name in said} for path, said in seen if path in ASKED[kind]]
    assert len(heard) == 3
    return heard


@pytest.mark.parametrize(("kind", "is_hedged"), [("openai", False), ("openai", True), ("ollama", False)])
def test_a_callers_trace_is_passed_on(kind: str, is_hedged: bool) -> None:
    """Without tracing of our own the headers go on as they came; a request without a trace, or a bad one, has none."""
    assert told(kind, HEADERS, is_hedged=is_hedged) == [HEADERS] * 3
    assert told(kind, {"traceparent": PARENT}, is_hedged=is_hedged) == [{"traceparent": PARENT}] * 3
    for none in ({}, {"tracestate": "vendor=1"}, {"traceparent": "00-1-2-01", "tracestate": "vendor=1"}):
        assert told(kind, none) == [{}] * 3


@pytest.mark.parametrize("kind", ["openai", "ollama"])
def test_with_tracing_the_servers_work_for_our_span(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where requests are traced, the caller's trace goes on under the request's own span, or a new one begins."""
    with collecting(monkeypatch) as (collector, settings):
        heard = told(kind, HEADERS, otlp_endpoint=settings.otlp_endpoint)
        assert {each["tracestate"] for each in heard} == {"vendor=1"}
        chats = [each["traceparent"].split("-") for each in heard[:2]]
        (last,) = collector.named("POST /v1/embeddings")
        spans = {span.span_id.hex() for span in collector.spans if span.name == "POST /v1/chat/completions"}
        assert ({trace for _, trace, _, _ in chats}, {parent for _, _, parent, _ in chats}) == ({TRACE_ID}, spans)
        assert heard[2]["traceparent"].split("-")[2] == last.span_id.hex()
        collector.spans.clear()
        alone = [each["traceparent"].split("-")[1] for each in told(kind, {}, otlp_endpoint=settings.otlp_endpoint)]
        assert len({TRACE_ID, *alone}) == 4
        collector.named("POST /v1/embeddings")


parents = st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.*") | st.text(max_size=70)


@given(parents, st.text(max_size=9))
def test_only_well_formed_traces_go_on(parent: str, state: str) -> None:
    """Whatever a client says, what goes on are one line of ASCII each, or nothing."""
    continue_trace({"traceparent": parent, "tracestate": state})
    said = trace_headers()
    assert all(text.isascii() and text.isprintable() for text in said.values())
    assert not said or said["traceparent"] == parent
