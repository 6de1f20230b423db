"""Spans by OpenTelemetry, sent to a collector over HTTP; imported only where an endpoint is set (extra `otel`)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pyagent import __version__
from pyagent.core.fleet.tracing import Attributes, OpenSpan
from pyagent.core.messages import FailedAttempt, Timings
from pyagent.core.trace_context import continued_trace, trace_headers
from pyagent.infrastructure.observability.engine_spans import tell_engine


def make_provider(endpoint: str, *, shuts_down_on_exit: bool = True) -> TracerProvider:
    """What makes tracers that send to `endpoint`, a collector's base URL; other `OTEL_` variables hold as they are."""
    resource = Resource({"service.name": "pyagent", "service.version": __version__})
    resource = resource.merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=shuts_down_on_exit)
    exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def tracer_of(provider: TracerProvider) -> Tracer:
    """PyAgent's tracer."""
    return provider.get_tracer("pyagent", __version__)


def headers_of(span: Span) -> dict[str, str]:
    """Return what tells a backend that it works for the span."""
    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers, set_span_in_context(span))
    return headers


@contextmanager
def current(span: Span) -> Generator[None]:
    """Make it the trace of what is done meanwhile, here and by backends; then end it, and note an error on it."""
    try:
        with continued_trace(headers_of(span)):
            yield
    except GeneratorExit:  # its reader has read enough
        raise
    except BaseException as error:
        note_error(span, type(error).__name__)
        raise
    finally:
        span.end()


def note_error(span: Span, kind: str) -> None:
    """Say of a span that it failed, and how."""
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)


@dataclass(frozen=True, slots=True)
class _OpenSpan:
    """A fleet's span until it ends."""

    tracer: Tracer
    span: Span
    name: str

    def note(self, attributes: Attributes) -> None:
        """Add attributes; a model that is named becomes a part of the span's name."""
        self.span.set_attributes(attributes)
        if model := attributes.get("gen_ai.response.model"):
            self.span.update_name(f"{self.name} {model}")

    def link_failed(self, attempt: FailedAttempt) -> None:
        """Add an event, by the link's name and the kind of its failure."""
        self.span.add_event("pyagent.link_failed", {"pyagent.backend": attempt.backend, "pyagent.kind": attempt.kind})

    def engine_worked(self, timings: Timings) -> None:
        """Add the engine's span, with those of its phases."""
        if timings.total_seconds:
            tell_engine(self.tracer, set_span_in_context(self.span), timings, time.time_ns())


class FleetTracer:
    """A fleet's spans. What is open is the trace of this context, which backends pass on."""

    def __init__(self, endpoint: str) -> None:
        self._provider = make_provider(endpoint, shuts_down_on_exit=False)
        self._tracer = tracer_of(self._provider)

    @contextmanager
    def span(self, name: str, attributes: Attributes, parent: Mapping[str, str]) -> Generator[OpenSpan]:
        """A span while it is open; its parent's headers, else those of this context, say what it belongs to."""
        outer = TraceContextTextMapPropagator().extract(dict(parent) or trace_headers())
        kind = SpanKind.CLIENT if attributes.get("gen_ai.operation.name") == "chat" else SpanKind.INTERNAL
        span = self._tracer.start_span(name, outer, kind, attributes)
        with current(span):
            yield _OpenSpan(self._tracer, span, name)

    async def close(self) -> None:
        """Send what is left, in a thread that the program's end does not wait for: a collector may be gone."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(sent.set)

        threading.Thread(target=shut_down, name="traces", daemon=True).start()
        await sent.wait()
