"""Traces by OpenTelemetry: a request, the link that answered it, the engine's queue, prefill and decode.

A plain ASGI wrapper around everything else, there only when `server.otlp_endpoint` is set; without, OpenTelemetry is
not imported. Spans below the request's are made when it is over, from what the answer told of itself. No text of
prompts or answers is in them. Names follow OpenTelemetry's conventions for HTTP and generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/).
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyagent.core.messages import ChatDelta, ChatRequest, FailedAttempt, Resumption, Timings, Usage
from pyagent.infrastructure.observability.tracing import headers_of, make_provider, tracer_of


def make_tracer(endpoint: str) -> Tracer:
    """Return a tracer that sends to `endpoint`, a collector's base URL."""
    return tracer_of(make_provider(endpoint))


@dataclass(slots=True)
class AnswerTrace:
    """What an answer told of itself."""

    asked: ChatRequest | None = None
    started: int = 0
    first: ChatDelta | None = None
    last: ChatDelta | None = None
    ended: int = 0
    finish_reasons: list[str] = field(default_factory=list[str])
    attempts: list[tuple[int, FailedAttempt]] = field(default_factory=list[tuple[int, FailedAttempt]])
    resumptions: list[tuple[int, Resumption]] = field(default_factory=list[tuple[int, Resumption]])

    def ask(self, asked: ChatRequest) -> None:
        """A backend is asked now."""
        self.asked, self.started = asked, time.time_ns()

    def saw(self, delta: ChatDelta) -> None:
        """A piece of its answer came."""
        self.first = self.first or delta
        self.last, self.ended = delta, time.time_ns()
        self.attempts += [(self.ended, attempt) for attempt in delta.attempts]
        if delta.resumed:
            self.resumptions.append((self.ended, delta.resumed))
        if delta.finish_reason:
            self.finish_reasons.append(delta.finish_reason)


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
                span.set_attribute("error.type", state["outcome"])
                span.set_status(StatusCode.ERROR)
            if answer.asked is not None and answer.first is not None and answer.last is not None:
                self._tell_link(span, answer, answer.asked, answer.first, answer.last)
            span.end()

    def _tell_link(
        self, span: Span, answer: AnswerTrace, asked: ChatRequest, first: ChatDelta, last: ChatDelta
    ) -> None:
        """The span of the link that answered; those that did not are events of the request's."""
        for moment, attempt in answer.attempts:
            attributes = {"pyagent.backend": attempt.backend, "pyagent.kind": attempt.kind}
            span.add_event("pyagent.link_failed", attributes, moment)
        for moment, resumed in answer.resumptions:
            attributes = {"pyagent.kind": resumed.kind, "pyagent.backend": resumed.backend}
            span.add_event("pyagent.resumed", attributes, moment)
        operation, backend = "chat" if asked.messages else "text_completion", last.backend or first.backend
        link = self.tracer.start_span(
            f"{operation} {last.model or asked.model}".strip(),
            set_span_in_context(span),
            SpanKind.CLIENT,
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": backend.partition(":")[0] or "pyagent",
                "pyagent.backend": backend,
                "gen_ai.response.model": last.model,
                "gen_ai.response.finish_reasons": answer.finish_reasons,
                **_asked_attributes(asked),
                **_usage_attributes(last.usage or Usage()),
            },
            start_time=answer.started,
        )
        if last.usage is not None and last.usage.timings is not None and last.usage.timings.total_seconds:
            self._tell_engine(set_span_in_context(link), last.usage.timings, answer.ended)
        link.end(answer.ended)

    def _tell_engine(self, link: Context, timings: Timings, ended: int) -> None:
        """The engine's span, with those of its phases, counted back from the answer's end."""
        begun = ended - _nanoseconds(timings.total_seconds)
        queued = begun + _nanoseconds(timings.queue_seconds)
        first_token = begun + _nanoseconds(timings.first_token_seconds)
        attributes = {"pyagent.preemptions": timings.num_preemptions}
        engine = self.tracer.start_span("engine", link, attributes=attributes, start_time=begun)
        phases = (("queue", begun, queued), ("prefill", queued, first_token), ("decode", first_token, ended))
        for name, start, end in phases:
            self.tracer.start_span(name, set_span_in_context(engine), start_time=start).end(end)
        engine.end(ended)


def _note_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_attribute("error.type", str(status))
        span.set_status(StatusCode.ERROR)


def _asked_attributes(asked: ChatRequest) -> dict[str, str | int | float]:
    sampling = asked.sampling
    attributes: dict[str, str | int | float | None] = {
        "gen_ai.request.model": asked.model or "default",
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.seed": sampling.seed,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _usage_attributes(usage: Usage) -> dict[str, int]:
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.prompt_tokens_details.cached_tokens,
    }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
