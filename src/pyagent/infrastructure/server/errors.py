"""Errors as a client sees them: a status, and a body in the shape of the API that was called. Pure."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pyagent.core.errors import (
    AdapterError,
    AgentError,
    AwayError,
    BackendError,
    BudgetError,
    CapacityError,
    DeadlineError,
    FieldFault,
    NeedsAnswerError,
    PyAgentError,
    RequestError,
    StalledError,
    UnsupportedError,
)
from pyagent.core.messages import JsonObject

logger = logging.getLogger("pyagent.server")
_MAX_CHARS = 4000
"""Of a message: what a client sent is quoted, and it may have sent megabytes."""
_FOLDERS = re.compile(r"(?<![\w/.:])/(?:[^\s/'\"]+/)+")


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error as a client sees it: the status, what went wrong, and when to try again."""

    status: int
    message: str
    code: str
    kind: str = "invalid_request_error"
    param: str | None = None
    backend: str | None = None
    retry_after_seconds: float | None = None
    faults: tuple[FieldFault, ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the status."""
        headers = {"www-authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after_seconds is not None:
            headers["retry-after"] = str(max(1, round(self.retry_after_seconds)))
        return headers

    @property
    def body(self) -> JsonObject:
        """OpenAI's shape."""
        fault: JsonObject = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": fault | ({"backend": self.backend} if self.backend else {}) | self.details}

    @property
    def details(self) -> JsonObject:
        """Each fault of a request that has several, whatever the API's shape."""
        return {"details": [fault._asdict() for fault in self.faults]} if self.faults else {}

    def body_at(self, path: str) -> bytes:
        """Return the body in the shape of the API whose path was called."""
        body = self.body
        if path.startswith("/api/"):
            body = {"error": self.message, **self.details}
        elif path.startswith(ANTHROPIC_PATH):
            body = self.anthropic_body
        return msgspec.json.encode(body)

    @property
    def anthropic_body(self) -> JsonObject:
        """Anthropic's shape."""
        return {
            "type": "error",
            "error": {
                "type": _ANTHROPIC_TYPES.get(self.status, "api_error"),
                "message": self.message,
                **self.details,
            },
        }


ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


_STATUSES: tuple[tuple[type[Exception], int, str], ...] = (
    (RequestError, 400, "invalid_request_error"),
    (NeedsAnswerError, 409, "needs_answer_error"),
    (CapacityError, 503, "capacity_error"),
    (DeadlineError, 504, "timeout_error"),
    (UnsupportedError, 400, "invalid_request_error"),
    (AdapterError, 400, "invalid_request_error"),
    (BackendError, 502, "backend_error"),
    (StalledError, 502, "stalled_error"),
    (AgentError, 502, "agent_error"),
    (PyAgentError, 500, "server_error"),
)


_CODE_TO_STATUS = {
    **dict.fromkeys(("still_running", "done", "over", "damaged", "run_exists", "not_resumable"), 409),
    "wrong_signature": 401,
    "idempotency_key_reused": 422,
    "journal_unreadable": 503,
}
"""What a run's state forbids, and what is no fault of the request."""


def http_error(error: Exception) -> HttpError:
    """Map an error to its HTTP status, in this one place. A foreign one is our bug: 500, without its text."""
    found = next(((status, kind) for type_, status, kind in _STATUSES if isinstance(error, type_)), None)
    if found is None:
        return refusal(500, "internal error; the server's log has it under the request id", "internal", "server_error")
    status, kind = found
    retry_after = error.retry_after_seconds if isinstance(error, CapacityError) else None
    code = error.code if isinstance(error, RequestError) else kind.removesuffix("_error")
    code = "budget_exhausted" if isinstance(error, BudgetError) else code
    code = "unsupported_parameter" if isinstance(error, UnsupportedError) else code
    code = "adapter_unusable" if isinstance(error, AdapterError) else code
    if code.endswith("_not_found"):
        status = 404
    elif code in _CODE_TO_STATUS:
        status = _CODE_TO_STATUS[code]
    elif code == "admin_key_needed":
        status, kind = 403, "permission_error"
    elif code == "loop_detected":
        status = 508
    elif retry_after is not None and not isinstance(error, AwayError):
        status = 429
    param: str | None = getattr(error, "param", None)
    backend = error.backend if isinstance(error, BackendError) else None
    is_own = (status < 500 and not isinstance(error, AdapterError)) or status == 508
    text = str(error) if is_own else without_folders(str(error))
    text = text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
    faults = error.faults if isinstance(error, RequestError) else ()
    cut = tuple(fault._replace(message=fault.message[:_MAX_CHARS]) for fault in faults)
    return HttpError(status, text, code, kind, param, backend, retry_after, cut)


def without_folders(text: str) -> str:
    """Return an error's text with files by their names alone: their folders are private to this machine."""
    return _FOLDERS.sub(lambda found: "" if Path(found[0]).is_dir() else found[0], text)


def refusal(status: int, message: str, code: str, kind: str = "invalid_request_error") -> HttpError:
    """Return an error of HTTP itself: no such path, wrong method, body too large, no key."""
    return HttpError(status, message, code, kind)


def logged_error(error: Exception, request_id: str) -> HttpError:
    """Return the error as a client sees it; one that is our side's is logged, under the request's id.

    Of failures of links and of full queues only the kind is logged: their texts may quote what was asked.
    """
    told = http_error(error)
    facts: dict[str, object] = {"request_id": request_id, "status": told.status, "code": told.code}
    if not isinstance(error, PyAgentError):
        logger.error("request %s failed", request_id, exc_info=error, extra=facts)
    elif told.status == 500:
        logger.error("request %s failed: %s", request_id, error, extra=facts)
    elif told.status > 500:
        facts |= {"error": type(error).__name__} | ({"backend": told.backend} if told.backend else {})
        logger.warning("request %s failed", request_id, extra=facts)
    return told


SHUTTING_DOWN = refusal(503, "the server is shutting down", "shutdown", "server_error")
