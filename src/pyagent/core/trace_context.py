"""The trace that a request belongs to, as the headers of W3C Trace Context, for backends that pass it on.

A context variable: a request's tasks inherit it, so the chain need not know of it. See https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import MappingProxyType

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]{0,200})?")
_MAX_STATE_CHARS = 512
_NONE: Mapping[str, str] = MappingProxyType({})
_headers: ContextVar[Mapping[str, str]] = ContextVar("trace headers", default=_NONE)


def missing_packages(error: ImportError) -> str:
    """Say what to install where OpenTelemetry, which traces need, is not there."""
    packages = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
    return f"traces need packages that are not installed: pip install {packages} ({error})"


def trace_headers() -> dict[str, str]:
    """Return the headers that tell another server which trace it works for; none where there is no trace."""
    return dict(_headers.get())


def continue_trace(said: Mapping[str, str]) -> None:
    """Take the trace from headers for what is done now and in tasks begun from here; one that is malformed is none."""
    _headers.set(_checked(said))


@contextmanager
def continued_trace(said: Mapping[str, str]) -> Generator[None]:
    """Take the trace from headers inside; afterwards that of before holds again."""
    token = _headers.set(_checked(said))
    try:
        yield
    finally:
        with suppress(ValueError):  # a generator that another task closes
            _headers.reset(token)


def _checked(said: Mapping[str, str]) -> Mapping[str, str]:
    parent, state = said.get("traceparent", ""), said.get("tracestate", "")
    if not _PARENT.fullmatch(parent):
        return _NONE
    if state and state.isascii() and state.isprintable() and len(state) <= _MAX_STATE_CHARS:
        return {"traceparent": parent, "tracestate": state}
    return {"traceparent": parent}
