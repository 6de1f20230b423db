"""Spans by OpenTelemetry, sent to a collector over HTTP; imported only where an endpoint is set (extra `otel`)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pyagent import __version__
from pyagent.core.fleet.tracing import Attributes, Note
from pyagent.core.trace_context import continued_trace, trace_headers


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


class FleetTracer:
    """A fleet's spans. What is open is the trace of this context, which backends pass on."""

    def __init__(self, endpoint: str) -> None:
        self._provider = make_provider(endpoint, shuts_down_on_exit=False)
        self._tracer = tracer_of(self._provider)

    @contextmanager
    def span(self, name: str, attributes: Attributes, parent: Mapping[str, str]) -> Generator[Note]:
        """A span while it is open; its parent's headers, else those of this context, say what it belongs to."""
        outer = TraceContextTextMapPropagator().extract(dict(parent) or trace_headers())
        span = self._tracer.start_span(name, outer, attributes=attributes)

        def note(more: Attributes) -> None:
            span.set_attributes(more)
            if model := more.get("gen_ai.response.model"):
                span.update_name(f"{name} {model}")

        with current(span):
            yield note

    async def close(self) -> None:
        """Send what is left, in a thread that the program's end does not wait for: a collector may be gone."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(sent.set)

        threading.Thread(target=shut_down, name="traces", daemon=True).start()
        await sent.wait()
