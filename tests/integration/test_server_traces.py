"""Traces, as a collector gets them from the real exporter."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.native import native_server
from support.server import HI, Model, words

from pyagent.core.config import load_settings
from pyagent.core.errors import BackendError
from pyagent.core.messages import Attempt, ChatDelta
from pyagent.core.settings import Server
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """A collector that keeps the spans it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = [entry.value.string_value for entry in resource.resource.attributes if entry.key == "service.name"]
            self.services.update(names)
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def named(self, *names: str) -> list[Any]:
        """The spans of these names, when all have come."""
        deadline = time.monotonic() + 10
        while True:
            found = {span.name: span for span in self.spans}
            if set(names) <= set(found):
                return [found[name] for name in names]
            assert time.monotonic() < deadline, f"only {sorted(found)} came"
            time.sleep(0.02)


@contextmanager
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Collector, Server]]:
    """A collector, and settings that send to it."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return None

    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield collector, Server(otlp_endpoint=f"http://127.0.0.1:{server.server_port}/")
        finally:
            server.shutdown()
            thread.join()


def attributes(span: Any) -> dict[str, Any]:
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in span.attributes}


def test_a_request_is_traced_to_the_engine(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request's span continues the caller's trace and holds the link's, the engine's and its phases, in order."""
    with collecting(monkeypatch) as (collector, settings), native_server(tiny_model_path, settings=settings) as url:
        headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
        body = {"model": "tiny", "messages": HI, "max_tokens": 4, "temperature": 0}
        for is_streamed in (False, True):
            collector.spans.clear()
            asked = httpx.post(f"{url}/v1/chat/completions", json=body | {"stream": is_streamed}, headers=headers)
            assert asked.status_code == 200
            names = ("POST /v1/chat/completions", "chat tiny", "engine", "queue", "prefill", "decode")
            request, link, engine, queue, prefill, decode = collector.named(*names)
            assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
            assert request.parent_span_id.hex() == PARENT_ID
            for inner, outer in ((link, request), (engine, link), (queue, engine), (prefill, engine), (decode, engine)):
                assert inner.parent_span_id == outer.span_id
            assert queue.end_time_unix_nano == prefill.start_time_unix_nano
            assert prefill.end_time_unix_nano == decode.start_time_unix_nano
            assert request.start_time_unix_nano <= link.start_time_unix_nano
            assert link.end_time_unix_nano <= request.end_time_unix_nano
            told = attributes(link)
            assert (told["gen_ai.operation.name"], told["gen_ai.provider.name"]) == ("chat", "native")
            assert (told["gen_ai.request.model"], told["gen_ai.request.max_tokens"]) == ("tiny", 4)
            assert told["gen_ai.usage.output_tokens"] == 4
            assert attributes(request)["http.response.status_code"] == 200
            assert attributes(request)["pyagent.request_id"] == asked.headers["x-request-id"]
    assert collector.services == {"pyagent"}
    assert "hi" not in {str(value) for span in collector.spans for value in attributes(span).values()}


def test_failures_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links that failed are events of the request; an answer that broke off, and a 502, are errors."""
    tried = ChatDelta(content="a", attempts=[Attempt("gpu", "on fire")])
    for script, error in (
        ([tried, *words()], None),
        ([tried, BackendError("gone", backend="b")], "broken_off"),
        ([BackendError("gone", backend="b")], "502"),
    ):
        backend = Model(lambda _, script=script: script)  # type: ignore[misc]
        with collecting(monkeypatch) as (collector, settings), serve(create_app(backend, settings=settings)) as url:
            httpx.post(f"{url}/v1/chat/completions", json={"messages": HI, "stream": True})
            (request,) = collector.named("POST /v1/chat/completions")
        assert attributes(request).get("error.type") == error
        if error != "502":
            assert [event.name for event in request.events] == ["pyagent.link_failed"]


def test_the_standard_variable_sets_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry's own variable is read, ours goes before it, and nothing is traced without either."""
    assert load_settings().settings.server.otlp_endpoint is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://one:4318")
    loaded = load_settings()
    assert loaded.settings.server.otlp_endpoint == "http://one:4318"
    assert loaded.sources["server.otlp_endpoint"] == "env OTEL_EXPORTER_OTLP_ENDPOINT"
    monkeypatch.setenv("PYAGENT_SERVER__OTLP_ENDPOINT", "http://two:4318")
    assert load_settings().settings.server.otlp_endpoint == "http://two:4318"
