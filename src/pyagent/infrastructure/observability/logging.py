"""Structured logs on standard error: lines for people, or one JSON object a line; secrets are struck out.

Core and plugins log with the standard library's `logging`; this module gives those records the same shape. It must not
know the settings: it receives a level and a format. Each warning that would repeat is said once in its scope.

The text of an exception may quote the request it failed on, so tracebacks have types and places, and no texts.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from types import TracebackType
from typing import Literal, TextIO, cast

import structlog

from pyagent.core.secrets import strike_out

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["console", "json"]

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]
_MAX_CAUSES = 8


class _Handler(logging.StreamHandler[TextIO]):
    """Marks our handler, so that configuring twice replaces it."""


def configure_logging(level: Level = "warning", format: Format = "console", stream: TextIO | None = None) -> None:  # noqa: A002 - the setting's name
    """Send PyAgent's records at `level`, and everybody else's warnings, to `stream` (standard error)."""
    target = stream or sys.stderr
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = _Handler(target)
    handler.setFormatter(_formatter(format, is_terminal=target.isatty()))
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.ERROR if level == "error" else logging.WARNING)
    logging.getLogger("pyagent").setLevel(level.upper())


def _shared() -> list[structlog.typing.Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _formatter(format: Format, *, is_terminal: bool) -> logging.Formatter:  # noqa: A002 - the setting's name
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer(default=str)
    if format == "console":
        renderer = structlog.dev.ConsoleRenderer(
            colors=is_terminal, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
        )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_shared(), structlog.stdlib.ExtraAdder(), _without_copy],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.ExceptionRenderer(_traceback_of),
            redact,
            renderer,
        ],
    )


def _traceback_of(exc_info: _ExcInfo) -> str:
    """Return where an exception and its causes were raised, by type; the first cause comes first."""
    error: BaseException | None = exc_info[1]
    parts: list[str] = []
    while error is not None and len(parts) < _MAX_CAUSES:
        frames = "".join(traceback.format_tb(error.__traceback__))
        why = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
        parts.append(f"Traceback (most recent call last):\n{frames}{type(error).__qualname__}{why}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n\nwhich led to\n\n".join(reversed(parts))


def _without_copy(_logger: object, _method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Another handler's formatter may have left the text as an attribute of the record."""
    event.pop("message", None)
    return event


def redact(_logger: object, _method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Strike out secrets by the names of fields and by their looks, and write control characters as escapes."""
    return {name: _escaped(strike_out(value, name)) for name, value in event.items()}


def _escaped(value: object) -> object:
    match value:
        case str():
            return value.translate(_CONTROLS)
        case dict():
            entries = cast("dict[str, object]", value)
            return {key.translate(_CONTROLS): _escaped(inner) for key, inner in entries.items()}
        case list():
            return [_escaped(inner) for inner in cast("list[object]", value)]
        case _:
            return value
