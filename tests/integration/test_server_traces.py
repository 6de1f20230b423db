"""Traces, as a collector gets them from the real exporter."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from support.collector import attributes, collecting
from support.native import native_server
from support.server import HI, Model, words

from pyagent.core.config import load_settings
from pyagent.core.errors import BackendError, ConfigError
from pyagent.core.messages import ChatDelta, FailedAttempt, Resumption
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

TAKEN = Resumption("continue", "one:1", "gone")
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


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
    tried = ChatDelta(content="a", attempts=[FailedAttempt("gpu", "on fire", "backend")])
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
    monkeypatch.setenv("PYAGENT_SERVER__OTLP_ENDPOINT", "two:4318")
    with pytest.raises(ConfigError, match=r"otlp_endpoint.*a URL such as http"):
        load_settings()


def test_takeovers_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that another link took over is the last link's span; both failures and the takeover are events."""
    script = [
        ChatDelta(content="a", backend="one:1", attempts=[FailedAttempt("zero", "off")]),
        ChatDelta(content="b", backend="two:2", attempts=[FailedAttempt("one:1", "gone")], resumed=TAKEN),
        *words("c", backend="two:2", model="m"),
    ]
    backend = Model(lambda _: script)
    with collecting(monkeypatch) as (collector, settings), serve(create_app(backend, settings=settings)) as url:
        httpx.post(f"{url}/v1/chat/completions", json={"messages": HI, "stream": True})
        request, link = collector.named("POST /v1/chat/completions", "chat m")
    assert [event.name for event in request.events] == ["pyagent.link_failed"] * 2 + ["pyagent.resumed"]
    assert attributes(link)["pyagent.backend"] == "two:2"
    assert attributes(link)["gen_ai.provider.name"] == "two"
