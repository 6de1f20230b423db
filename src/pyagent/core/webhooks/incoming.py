"""What comes in by a webhook: whether it is genuine, what it says, and the task that it becomes. Pure.

The body is not read before its signature is found right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, cast

import msgspec

from pyagent.core.emulation.schemas import fault_of
from pyagent.core.errors import RequestError
from pyagent.core.field_errors import json_error
from pyagent.core.messages import JsonObject
from pyagent.core.settings.hooks import HookSettings
from pyagent.core.webhooks.signing import Signed, key_of, verify, verify_github

_PLACE = re.compile(r"\{([A-Za-z_][\w.-]{0,200})\}")
_MAX_EVENT_CHARACTERS = 100
_MISSING = object()


class Incoming(NamedTuple):
    """A genuine message: its id, what kind of event it tells of, its payload, and the task that it begins."""

    id: str
    event: str
    task: str
    is_wanted: bool


def genuine(hook: HookSettings, secret: str, headers: Mapping[str, str], body: bytes, now: float) -> Signed:
    """Return what a message's signature stands for; raises `RequestError` for one that is not right."""
    if hook.form == "github":
        return verify_github(headers, body, [secret.encode()])
    return verify(headers, body, [key_of(secret)], now, hook.tolerance_seconds)


def read_incoming(
    hook: HookSettings, signed: Signed, headers: Mapping[str, str], body: bytes, schema: JsonObject | None
) -> Incoming:
    """Return what a genuine message says; raises `RequestError` for what is no JSON, or not by the hook's schema."""
    payload = read_payload(body)
    event = headers.get("x-github-event", "") if hook.form == "github" else _type_of(payload)
    event = event[:_MAX_EVENT_CHARACTERS]
    if hook.events and event not in hook.events:
        return Incoming(signed.id, event, "", is_wanted=False)
    if schema is not None and (fault := fault_of(payload, schema, "schema")) is not None:
        raise RequestError(f"the payload does not follow the hook's schema: {fault}", param="payload")
    return Incoming(signed.id, event, task_of(hook.task, payload, event), is_wanted=True)


def read_payload(body: bytes) -> object:
    """Return a body's JSON; raises `RequestError` saying where it is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise json_error("the payload", error, body) from error


def task_of(template: str, payload: object, event: str) -> str:
    """Return a task with the payload's values in their places: `{payload}` is all of it, `{issue.title}` one value.

    What is put in is not looked at for places again. Raises `RequestError` naming a place that the payload lacks.
    """

    def value_at(match: re.Match[str]) -> str:
        path = match[1]
        if path in {"payload", "event"}:
            return _text(payload) if path == "payload" else event
        found = payload
        for part in path.split("."):
            found = _inside(found, part)
        if found is _MISSING:
            raise RequestError(f"the payload has no {path[:100]}, which the hook's task asks for", param="payload")
        return _text(found)

    return _PLACE.sub(value_at, template)


def _inside(value: object, part: str) -> object:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).get(part, _MISSING)
    if isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 7:
        entries = cast("list[object]", value)
        return entries[int(part)] if int(part) < len(entries) else _MISSING
    return _MISSING


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _type_of(payload: object) -> str:
    found = cast("dict[str, object]", payload).get("type") if isinstance(payload, dict) else None
    return found if isinstance(found, str) else ""
