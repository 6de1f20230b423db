"""Spans of a run, its steps, agents, tools and model calls, for OpenTelemetry; without it they cost nothing.

Core knows no tracing library. A `Tracer` opens spans; what is open is told to backends by `core.trace_context`, whose
headers also say what a span belongs to. Names and attributes follow OpenTelemetry's conventions for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/). No text of prompts, answers or tasks is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Attributes = Mapping[str, str | int | float | list[str]]
Note = Callable[[Attributes], None]
"""Adds attributes to an open span."""


class Tracer(Protocol):
    """Opens spans."""

    def span(self, name: str, attributes: Attributes, parent: Mapping[str, str]) -> AbstractContextManager[Note]:
        """Return a context manager with an open span; an exception that leaves it fails the span.

        `parent` has the headers of the span it belongs to; without any it belongs to the trace of this context.
        """
        ...

    async def close(self) -> None:
        """Send what is left."""
        ...


class NoTracer:
    """Traces nothing."""

    def span(self, name: str, attributes: Attributes, parent: Mapping[str, str]) -> AbstractContextManager[Note]:
        """Nothing."""
        return nullcontext(_ignore)

    async def close(self) -> None:
        """Nothing to send."""


def _ignore(_attributes: Attributes) -> None:
    return None
