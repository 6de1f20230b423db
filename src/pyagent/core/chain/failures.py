"""Why a link did not answer: the kinds that are counted, and the failures that only a chain sees.

An error's text may quote the request (an upstream's complaint, a parser's dump): it is told to the caller whose request
it was and to no other. What a link remembers for others is `public_reason`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, cast

from pyagent.core.errors import (
    AwayError,
    BackendError,
    BudgetError,
    CapacityError,
    ContextOverflowError,
    DeadlineError,
    InvalidOutputError,
    ModelError,
    MovedError,
    PyAgentError,
    RequestError,
    UnsupportedError,
)
from pyagent.core.messages import ChatDelta, FailedAttempt

Failure = Literal[
    "open", "cooldown", "full", "rate", "money", "timeout", "context", "moved", "capacity", "model", "request",
    "unsupported", "filtered", "empty", "invalid", "broken_off", "backend", "bug",
]  # fmt: skip
"""Why a link did not answer: it was not asked (the first five), or what it did instead."""

NO_LINK = "no_link"
"""The code of a request that no link of a chain may see: another node's chain has other links and rules."""
NOT_TRANSFERABLE = "not_transferable"
"""The code of a request that a link cannot be sent at all."""
_OF_ONE_LINK = frozenset({"model_not_found", "loop_detected", NO_LINK, NOT_TRANSFERABLE})
"""Codes of refusals that say nothing of another link, nor of the request."""
_ATTEMPTS = "_chain_attempts"
_AWAY_SECONDS = 5.0
"""When to ask again for the model of a node that is away: a restarted one is back within seconds."""


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


class EmptyAnswerError(LinkError):
    """The link's answer ended without a word; `head` is what it sent."""

    kind: ClassVar[Failure] = "empty"

    def __init__(self, backend: str, head: list[ChatDelta]) -> None:
        super().__init__(f"{backend}: its answer is empty", backend=backend, retryable=False)
        self.head = head


_KINDS: tuple[tuple[type[Exception], Failure], ...] = (
    (ContextOverflowError, "context"),
    (InvalidOutputError, "invalid"),
    (RequestError, "request"),
    (BudgetError, "money"),
    (MovedError, "moved"),
    (CapacityError, "capacity"),
    (DeadlineError, "timeout"),
    (ModelError, "model"),
    (UnsupportedError, "unsupported"),
    (PyAgentError, "backend"),
)


def kind_of(error: Exception) -> Failure:
    """Return the kind under which a link's error is counted."""
    if isinstance(error, LinkError):
        return error.kind
    for type_, kind in _KINDS:
        if isinstance(error, type_):
            return kind
    return "bug"


def reason_of(error: Exception) -> str:
    """Return an error's text; that of a foreign error begins with its type."""
    text = str(error) or "no reason given"
    return text if isinstance(error, PyAgentError) else f"{type(error).__name__}: {text}"


def public_reason(error: Exception) -> str:
    """Return an error for others than the request's caller: its kind, HTTP status and type, never its text."""
    first: BaseException = error
    seen = {id(first)}
    while first.__cause__ is not None and id(first.__cause__) not in seen:  # a plugin may raise one from itself
        first = first.__cause__
        seen.add(id(first))
    is_plain = isinstance(first, PyAgentError)
    status: int | None = getattr(error, "status", None)
    facts = ([f"HTTP {status}"] if status is not None else []) + ([] if is_plain else [type(first).__name__])
    return kind_of(error) + (f" ({', '.join(facts)})" if facts else "")


def away_error(model: str, link: str) -> AwayError:
    """Return the error of a request for a model whose link is away."""
    has = "" if model == link else f", which has the model {model[:200]!r},"
    text = f"{link}{has} takes no requests now; try again, or ask for another model"
    return AwayError(text, retry_after_seconds=_AWAY_SECONDS)


def no_node_error(links: Sequence[str]) -> AwayError:
    """Return the error of a request that only other nodes could answer, none of which does now."""
    text = f"no node of the cluster takes requests now ({', '.join(links) or 'none is connected'}); try again"
    return AwayError(text, retry_after_seconds=_AWAY_SECONDS)


def no_model_error(model: str) -> RequestError:
    """Return the error of a request for a model that no link has."""
    return RequestError(f"no link has the model {model[:200]!r}", param="model", code="model_not_found")


def error_of_all(errors: Sequence[Exception], attempts: Sequence[FailedAttempt]) -> Exception:
    """Return the error of a request that no link answered. Alone, a link's own error says it best.

    Links that lack the model, or may not see the request, have no say in it where others do.
    """
    errors = [error for error in errors if not is_of_one_link(error)] or errors
    if len(errors) == 1 and isinstance(errors[0], PyAgentError):
        return errors[0]
    reasons = "; ".join(dict.fromkeys(f"{attempt.backend}: {attempt.reason}" for attempt in attempts))
    message = f"no link of the chain answered: {reasons}"
    if errors and all(isinstance(error, BudgetError) for error in errors):
        return BudgetError(message, resource="usd")
    if errors and all(isinstance(error, CapacityError) for error in errors):
        waits = [getattr(error, "retry_after_seconds", None) for error in errors]
        return CapacityError(message, retry_after_seconds=min(filter(None, waits), default=None))
    if errors and all(isinstance(error, RequestError) for error in errors):
        last = cast("RequestError", errors[-1])
        return RequestError(message, param=last.param or "model", code=last.code)
    unsupported = [error.fields for error in errors if isinstance(error, UnsupportedError)]
    if unsupported and len(unsupported) == len(errors):
        return UnsupportedError(message, backend="chain", fields=[name for names in unsupported for name in names])
    wrapped = BackendError(message, backend="chain", retryable=any(getattr(e, "retryable", False) for e in errors))
    wrapped.__cause__ = errors[-1] if errors else None
    return wrapped


def with_attempts(error: Exception, attempts: Sequence[FailedAttempt]) -> Exception:
    """Return the error with the attempts that led to it, for `attempts_of`."""
    vars(error)[_ATTEMPTS] = tuple(attempts)
    return error


def attempts_of(error: Exception) -> Sequence[FailedAttempt]:
    """Return which links did not answer, where a chain raised the error."""
    return cast("Sequence[FailedAttempt]", vars(error).get(_ATTEMPTS, ()))


def is_passed_by(error: Exception) -> bool:
    """Return whether to ask the next link: not where it would find the same fault, or have the same effects again."""
    if any(getattr(one, "has_begun", False) for one in (error, error.__cause__)):
        return False
    if isinstance(error, RequestError):
        return isinstance(error, ContextOverflowError | InvalidOutputError) or is_of_one_link(error)
    return True


def is_of_one_link(error: Exception) -> bool:
    """Return whether an error says nothing of another link, nor of the request."""
    return isinstance(error, RequestError) and error.code in _OF_ONE_LINK
