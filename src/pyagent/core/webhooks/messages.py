"""What webhooks tell: the kinds of events, the body that is signed, and endpoints and deliveries as they are listed.

A body names a run and how it stands, by ids, states and numbers alone: no text of a task, an answer or an error leaves
by it. The receiver asks `GET /v1/runs/ID` for the rest, with its key. Pure.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, get_args
from urllib.parse import urlsplit

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.events import Event, QuestionAsked, RunFailed, RunFinished, RunResumed, RunStarted
from pyagent.core.fleet.journal import State, state_of
from pyagent.core.messages import JsonObject
from pyagent.core.nearest import did_you_mean
from pyagent.core.settings.webhooks import EVENT_NAMES

EventType = Literal[
    "run.started",
    "run.resumed",
    "run.question",
    "run.finished",
    "run.failed",
    "run.cancelled",
    "run.needs_answer",
]
ALL_EVENTS = "*"
assert (*get_args(EventType), ALL_EVENTS) == EVENT_NAMES, "settings take the events that there are"
PING = "webhook.ping"
MAX_ENDPOINTS = 50
"""Of one tenant."""
_MAX_URL_CHARACTERS = 2_000
_STATE_TO_TYPE: dict[State, EventType] = {
    "done": "run.finished",
    "cancelled": "run.cancelled",
    "needs_answer": "run.needs_answer",
}
TOLD = RunStarted | RunResumed | QuestionAsked | RunFinished | RunFailed
"""The events of a run that webhooks tell of."""

DeliveryState = Literal["waiting", "delivered", "dead"]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where events are sent, and how that goes. `reason` says why it is disabled; empty while it is not."""

    id: str
    url: str
    events: list[str]
    created_at: float
    tenant: str = ""
    reason: str = ""
    failing_since: float | None = None
    num_waiting: int = 0
    num_dead: int = 0
    origin: str = ""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A message for one endpoint: what became of it. `status` and `error` are those of the last attempt."""

    id: str
    endpoint: str
    type: str
    state: DeliveryState
    created_at: float
    attempts: int = 0
    due_at: float | None = None
    status: int | None = None
    error: str = ""


class Message(msgspec.Struct, frozen=True):
    """What is sent: its type, and its body as it is signed."""

    type: str
    body: bytes


def message_of(event: TOLD) -> Message:
    """Return what is told of an event."""
    match event:
        case RunStarted():
            return _message("run.started", event, {"state": "running"})
        case RunResumed():
            return _message("run.resumed", event, {"state": "running"})
        case QuestionAsked():
            question = {"question": event.question.id, "kind": event.question.kind}
            return _message("run.question", event, {"state": "running", **question})
        case RunFinished():
            return _message("run.finished", event, {"state": "done", "totals": msgspec.to_builtins(event.totals)})
        case RunFailed():
            state = state_of(event)
            why = {"reason": event.reason, "error": event.kind, "totals": msgspec.to_builtins(event.totals)}
            return _message(_STATE_TO_TYPE.get(state, "run.failed"), event, {"state": state, **why})


def cancelled_message(run: str, at: float) -> Message:
    """Return what is told of a run that no process works on and that was cancelled."""
    return Message("run.cancelled", _body("run.cancelled", at, {"run": run, "state": "cancelled"}))


def ping_message(endpoint: str, at: float) -> Message:
    """Return a message that only tries an endpoint."""
    return Message(PING, _body(PING, at, {"endpoint": endpoint}))


def _message(kind: EventType, event: Event, data: JsonObject) -> Message:
    return Message(kind, _body(kind, event.at, {"run": event.run, **data}))


def _body(kind: str, at: float, data: JsonObject) -> bytes:
    when = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return msgspec.json.encode({"type": kind, "timestamp": when, "data": data})


def new_endpoint_id() -> str:
    """Return an id that no endpoint has."""
    return f"wh-{secrets.token_hex(4)}"


def new_message_id() -> str:
    """Return an id that no message has; each attempt to deliver it has the same."""
    return f"msg_{secrets.token_hex(12)}"


def wants(events: Sequence[str], kind: str) -> bool:
    """Whether an endpoint for these events is told of this kind."""
    return kind in events or ALL_EVENTS in events


def checked_events(events: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds of events that an endpoint asks for, once each; raises `RequestError` for an unknown one."""
    found = tuple(dict.fromkeys(name for given in events if (name := given.strip())))
    known = EVENT_NAMES
    for name in found:
        if name not in known:
            hint = did_you_mean(name, known, f"there are {', '.join(known)}")
            raise RequestError(f"there is no event {name[:80]!r}; {hint}", param="events")
    if not found:
        raise RequestError(f"name the events to be told of: {', '.join(known)}", param="events")
    return found


def checked_url(url: str, *, allows_private: bool) -> str:
    """Return a URL that webhooks may be sent to; raises `RequestError`. Where it leads is looked at when it is sent."""
    try:
        parts = urlsplit(url)
        is_url = bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_url = urlsplit(""), False
    schemes = ("https", "http") if allows_private else ("https",)
    if (
        not is_url
        or parts.scheme not in {"http", "https"}
        or not (url.isascii() and url.isprintable() and " " not in url)
    ):
        raise RequestError(f"expected a URL such as https://example.org/hook, got {url[:80]!r}", param="url")
    if parts.scheme not in schemes:
        text = f"expected an https:// URL, got {url[:80]!r}; http:// takes webhooks.private, which is for tests"
        raise RequestError(text, param="url")
    if "@" in parts.netloc or parts.fragment or len(url) > _MAX_URL_CHARACTERS:
        text = f"a webhook's URL has no password, no fragment, and at most {_MAX_URL_CHARACTERS:,} characters"
        raise RequestError(text, param="url")
    return url
