"""The stream agent: webhooks added, looked at, tried and replayed; signatures and payloads checked. Asks no model."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from typing import cast

import msgspec

from pyagent.core.config import read_secret
from pyagent.core.emulation.schemas import fault_of
from pyagent.core.errors import Decline, RequestError
from pyagent.core.field_errors import json_error
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import current_access, readable_path
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import JsonObject
from pyagent.core.secrets import is_reference
from pyagent.core.settings.hooks import HookSettings
from pyagent.core.webhooks.actions import (
    ListWebhooks,
    ShowMessages,
    StreamAction,
    ValidatePayload,
    VerifySignature,
    WebhookReport,
)
from pyagent.core.webhooks.incoming import genuine, read_payload
from pyagent.logic.agents.typical_tasks import typical_tasks_of

_MAX_BYTES = 2_000_000
_ASKED = re.compile(
    r"\s*(?:please\s+)?(?:list|show|which|what)\b.{0,40}\bwebhooks?\b.{0,60}", re.IGNORECASE | re.DOTALL
)

_STATES = re.compile(r"\b(waiting|waits?|delivered|dead|failed)\b", re.IGNORECASE)


class StreamAgent:
    """Sees to the webhooks of a run's tenant."""

    name = "stream"
    description = (
        "Lists, adds, tries, removes and replays webhooks, shows what waits and what failed, verifies a webhook's "
        "signature and validates a payload against a JSON schema."
    )
    typical_tasks = typical_tasks_of("stream")
    arguments = StreamAction

    def score(self, task: Task) -> float | None:
        """Asks to see webhooks."""
        if not task.files and len(task.text) < 200 and _ASKED.fullmatch(task.text):
            return Score(0.9, "it asks about webhooks")
        return 0.0 if task.files else None

    async def run(self, context: Context, task: Task) -> WebhookReport:
        """Return what the action of the arguments comes to; a text alone only looks."""
        action = task.arguments_as(cast("type[StreamAction]", StreamAction)) if task.arguments else _look(task.text)
        match action:
            case VerifySignature():
                return await asyncio.to_thread(_verify, action, task)
            case ValidatePayload():
                return await asyncio.to_thread(_validate, action, task)
            case _:
                return await context.webhooks(action)


def _look(text: str) -> ListWebhooks | ShowMessages:
    """Return what a text asks to see; a text never changes anything. Raises `Decline` for one about something else."""
    if "hook" not in text.lower():
        raise Decline("say what to do with webhooks by an action: --action list, add, test, show, replay, verify ...")
    found = _STATES.search(text)
    if found is None:
        return ListWebhooks()
    word = found[1].lower()
    return ShowMessages(state="delivered" if word == "delivered" else "waiting" if word[0] == "w" else "dead")


def _verify(action: VerifySignature, task: Task) -> WebhookReport:
    if current_access().is_limited:
        text = "to verify takes a secret of this machine: at its command line, or in a program of its own"
        raise RequestError(text, param="secret")
    if not is_reference(action.secret):
        raise RequestError("a secret is given as env:NAME or file:PATH, never itself", param="secret")
    secret = read_secret(action.secret)
    if secret is None:
        raise RequestError(f"{action.secret} is not set", param="secret")
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    headers = dict(zip(names, (action.id, action.timestamp, action.signature), strict=True))
    headers |= {"x-hub-signature-256": action.signature}
    hook = HookSettings(secret="", task="", form=action.form, tolerance_seconds=action.tolerance_seconds)
    try:
        genuine(hook, secret, headers, _body(action.body, task), time.time())
    except RequestError as error:
        if error.code != "wrong_signature":
            raise
        return WebhookReport(action="verify", text=f"not genuine: {error}", is_right=False)
    return WebhookReport(action="verify", text="genuine", is_right=True)


def _validate(action: ValidatePayload, task: Task) -> WebhookReport:
    schema = action.schema if action.schema.lstrip().startswith("{") else _read(action.schema).decode(errors="replace")
    fault = _fault(read_payload(_body(action.payload, task)), schema)
    text = "it follows the schema" if fault is None else f"it does not follow the schema: {fault}"
    return WebhookReport(action="validate", text=text, is_right=fault is None)


def _fault(payload: object, schema: str) -> str | None:
    try:
        wanted = msgspec.json.decode(schema, type=JsonObject)
    except (msgspec.DecodeError, RecursionError) as error:
        raise json_error("the schema", error, schema.encode()) from error
    return fault_of(payload, wanted, "schema")


def _body(given: str, task: Task) -> bytes:
    """Return the bytes that are meant: those given, a file's, or the task's text."""
    if given:
        return given.encode()
    if len(task.files) > 1:
        raise RequestError("one file has the body", param="files")
    body = _read(task.files[0]) if task.files else task.text.encode()
    if not body:
        raise RequestError("give the body: as words, by --file, or as an argument", param="body")
    return body


def _read(name: str) -> bytes:
    try:
        with readable_path(name).open("rb") as file:
            body = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise RequestError(f"{name} cannot be read: {error.strerror or error}", param="files") from error
    if len(body) > _MAX_BYTES:
        raise RequestError(f"{name} is over {_MAX_BYTES:,} bytes", param="files")
    return body


class CheckedPayload(msgspec.Struct, frozen=True):
    """A payload and the JSON schema that it is to follow, each as JSON."""

    payload: str
    schema: str


async def _tool(arguments: CheckedPayload) -> str:
    def check() -> str:
        fault = _fault(read_payload(arguments.payload.encode()), arguments.schema)
        return "it follows the schema" if fault is None else f"it does not follow the schema: {fault}"

    return await asyncio.to_thread(check)


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The stream agent."""
    return [StreamAgent()]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """The check of a payload as a tool."""
    description = "Says whether a JSON payload follows a JSON schema, and where it does not."
    return [FleetTool("validate_payload", description, CheckedPayload, _tool, effect="none")]
