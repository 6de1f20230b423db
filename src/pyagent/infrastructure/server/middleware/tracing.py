"""Traces of HTTP requests by OpenTelemetry; what is below a request's span is made by `observability.answer_spans`.

A plain ASGI wrapper around everything else, there only when `server.otlp_endpoint` is set; without, OpenTelemetry is
not imported. Names follow OpenTelemetry's conventions for HTTP.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from opentelemetry.trace import Span, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyagent.infrastructure.observability.answer_spans import AnswerTrace
from pyagent.infrastructure.observability.tracing import headers_of, make_provider, note_error, tracer_of


def make_tracer(endpoint: str) -> Tracer:
    """Return a tracer that sends to `endpoint`, a collector's base URL."""
    return tracer_of(make_provider(endpoint))


@dataclass(frozen=True, slots=True)
class TracingMiddleware:
    """The wrapper. `paths` are those that name a span; others are named by their method alone."""

    app: ASGIApp
    tracer: Tracer
    paths: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, and tell of it when it is over."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        caller = TraceContextTextMapPropagator().extract(headers)
        path: str = scope["path"]
        name = f"{scope['method']} {path}" if path in self.paths else str(scope["method"])
        attributes = {"http.request.method": scope["method"], "url.path": path, "url.scheme": scope["scheme"]}
        span = self.tracer.start_span(name, caller, SpanKind.SERVER, attributes)
        answer = AnswerTrace()
        state = scope.setdefault("state", {})
        state["trace"], state["trace_headers"] = answer, headers_of(span)

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                _note_status(span, message["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        finally:
            span.set_attribute("pyagent.request_id", state.get("request_id", ""))
            if "outcome" in state:  # it broke off after its status
                note_error(span, state["outcome"])
            answer.tell(self.tracer, span)
            span.end()


def _note_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        note_error(span, str(status))
