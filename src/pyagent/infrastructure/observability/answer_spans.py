"""Spans of an answer: the link that gave it, the engine's queue, prefill and decode.

Made when the answer is over, from what it told of itself, below the span of an HTTP request, or of what a node does for
a peer. No text of prompts or answers is in them. Names follow OpenTelemetry's conventions for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/).
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pyagent.core.messages import ChatDelta, ChatRequest, FailedAttempt, Resumption, Usage
from pyagent.core.trace_context import trace_headers
from pyagent.infrastructure.observability.engine_spans import tell_engine
from pyagent.infrastructure.observability.tracing import current, make_provider, tracer_of


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

    def tell(self, tracer: Tracer, span: Span) -> None:
        """Make the spans below `span`, if there was an answer."""
        if self.asked is not None and self.last is not None:
            _tell_link(tracer, span, self, self.asked)


class PeerTracer:
    """The spans of what this node does for its peers: each belongs to the span of the node that asked."""

    def __init__(self, endpoint: str) -> None:
        self._provider = make_provider(endpoint)
        self._tracer = tracer_of(self._provider)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    @contextmanager
    def answering(self, asked: ChatRequest, peer_id: str, node_id: str) -> Generator[AnswerTrace]:
        """Return what is to be told of the answer's deltas; until the end, what is done belongs to its span."""
        outer = TraceContextTextMapPropagator().extract(trace_headers())
        attributes = {"pyagent.node": node_id, "pyagent.peer": peer_id}
        span = self._tracer.start_span("peer chat", outer, SpanKind.SERVER, attributes)
        answer = AnswerTrace()
        answer.ask(asked)
        with current(span):
            try:
                yield answer
            finally:
                answer.tell(self._tracer, span)


def _tell_link(tracer: Tracer, span: Span, answer: AnswerTrace, asked: ChatRequest) -> None:
    """Make the span of the link that answered; those that did not are events of the outer one."""
    for moment, attempt in answer.attempts:
        attributes = {"pyagent.backend": attempt.backend, "pyagent.kind": attempt.kind}
        span.add_event("pyagent.link_failed", attributes, moment)
    for moment, resumed in answer.resumptions:
        attributes = {"pyagent.kind": resumed.kind, "pyagent.backend": resumed.backend}
        span.add_event("pyagent.resumed", attributes, moment)
    first, last = answer.first or ChatDelta(), answer.last or ChatDelta()
    operation, backend = "chat" if asked.messages else "text_completion", last.backend or first.backend
    provider = backend.partition(":")[0] or "pyagent"
    link = tracer.start_span(
        f"{operation} {last.model or asked.model}".strip(),
        set_span_in_context(span),
        SpanKind.CLIENT,
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": provider,
            "pyagent.backend": backend,
            "gen_ai.response.model": last.model,
            "gen_ai.response.finish_reasons": answer.finish_reasons,
            **_asked_attributes(asked),
            **_usage_attributes(last.usage or Usage()),
        },
        start_time=answer.started,
    )
    timings = None if last.usage is None or provider == "peer" else last.usage.timings  # a peer tells of its engine
    if timings is not None and timings.total_seconds:
        tell_engine(tracer, set_span_in_context(link), timings, answer.ended)
    link.end(answer.ended)


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
