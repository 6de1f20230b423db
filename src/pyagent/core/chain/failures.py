"""Why a link did not answer: the kinds that are counted, and the failures that only a chain sees."""

from __future__ import annotations

from typing import ClassVar, Literal

from pyagent.core.errors import (
    BackendError,
    BudgetError,
    CapacityError,
    ContextOverflowError,
    DeadlineError,
    ModelError,
    PyAgentError,
    RequestError,
    UnsupportedError,
)
from pyagent.core.messages import ChatDelta

Failure = Literal[
    "open", "resting", "full", "rate", "money", "timeout", "context", "capacity", "model", "request", "unsupported",
    "filtered", "invalid", "broken_off", "backend", "bug",
]  # fmt: skip
"""Why a link did not answer: it was not asked (the first five), or what it did instead."""


class LinkError(BackendError):
    """What a chain finds wrong with a link's answer."""

    kind: ClassVar[Failure] = "backend"


class FilteredError(LinkError):
    """The link's content filter kept the whole answer back; `head` is what it sent."""

    kind: ClassVar[Failure] = "filtered"

    def __init__(self, backend: str, head: list[ChatDelta]) -> None:
        super().__init__(f"{backend}: its content filter kept the answer back", backend=backend, retryable=False)
        self.head = head


class BrokenOffError(LinkError):
    """An answer that had begun ended without its end."""

    kind: ClassVar[Failure] = "broken_off"


class LateError(LinkError):
    """A link took longer than its own `timeout_seconds`."""

    kind: ClassVar[Failure] = "timeout"


class InvalidAnswerError(LinkError):
    """A link's answer has not the form that was asked for."""

    kind: ClassVar[Failure] = "invalid"


_KINDS: tuple[tuple[type[Exception], Failure], ...] = (
    (ContextOverflowError, "context"),
    (RequestError, "request"),
    (BudgetError, "money"),
    (CapacityError, "capacity"),
    (DeadlineError, "timeout"),
    (ModelError, "model"),
    (UnsupportedError, "unsupported"),
    (PyAgentError, "backend"),
)


def kind_of(error: Exception) -> Failure:
    """Under which kind a link's error counts."""
    if isinstance(error, LinkError):
        return error.kind
    for type_, kind in _KINDS:
        if isinstance(error, type_):
            return kind
    return "bug"


def reason_of(error: Exception) -> str:
    """An error in words; one that is not ours with its type."""
    text = str(error) or "no reason given"
    return text if isinstance(error, PyAgentError) else f"{type(error).__name__}: {text}"
