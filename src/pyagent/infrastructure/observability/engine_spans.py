"""Spans of what an engine did for an answer, made from its timings when the answer is over."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import Tracer, set_span_in_context

from pyagent.core.messages import Timings


def tell_engine(tracer: Tracer, link: Context, timings: Timings, ended: int) -> None:
    """Make the engine's span, with those of its phases, counted back from the answer's end."""
    begun = ended - _nanoseconds(timings.total_seconds)
    queued = begun + _nanoseconds(timings.queue_seconds)
    first_token = begun + _nanoseconds(timings.first_token_seconds)
    attributes = {"pyagent.preemptions": timings.num_preemptions}
    engine = tracer.start_span("engine", link, attributes=attributes, start_time=begun)
    phases = (("queue", begun, queued), ("prefill", queued, first_token), ("decode", first_token, ended))
    for name, start, end in phases:
        tracer.start_span(name, set_span_in_context(engine), start_time=start).end(end)
    engine.end(ended)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
