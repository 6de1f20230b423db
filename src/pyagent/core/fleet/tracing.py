"""Spans of a run, its steps, agents, tools and model calls, for OpenTelemetry; without it they cost nothing.

Core knows no tracing library. A `Tracer` opens spans; what is open is told to backends by `core.trace_context`, whose
headers also say what a span belongs to. Names and attributes follow OpenTelemetry's conventions for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/). No text of prompts, answers or tasks is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from pyagent.core.messages import FailedAttempt, Timings

Attributes = Mapping[str, str | int | float | list[str]]


class OpenSpan(Protocol):
    """A span until it ends."""

    def note(self, attributes: Attributes) -> None:
        """Add attributes."""
        ...

    def link_failed(self, attempt: FailedAttempt) -> None:
        """Add the event that a link of the chain was asked, or passed over, and did not answer."""
        ...

    def engine_worked(self, timings: Timings) -> None:
        """Add spans below it for what the engine did, up to now: queue, prefill, decode."""
        ...


class Tracer(Protocol):
    """Opens spans."""

    def span(self, name: str, attributes: Attributes, parent: Mapping[str, str]) -> AbstractContextManager[OpenSpan]:
        """Return a context manager with an open span; an exception that leaves it fails the span.

        `parent` has the headers of the span it belongs to; without any it belongs to the trace of this context.
        """
        ...

    async def close(self) -> None:
        """Send what is left."""
        ...


class _NoSpan:
    def note(self, attributes: Attributes) -> None:
        """Nothing."""

    def link_failed(self, attempt: FailedAttempt) -> None:
        """Nothing."""

    def engine_worked(self, timings: Timings) -> None:
        """Nothing."""


_NO_SPAN = _NoSpan()


class NoTracer:
    """Traces nothing."""

    def span(self, name: str, attributes: Attributes, parent: Mapping[str, str]) -> AbstractContextManager[OpenSpan]:
        """Nothing."""
        return nullcontext(_NO_SPAN)

    async def close(self) -> None:
        """Nothing to send."""
