"""Does what agents ask of webhooks, and says it in words. Nothing that is told has a secret."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.secrets import strike_text
from pyagent.core.webhooks.actions import (
    AddWebhook,
    EnableWebhook,
    ListWebhooks,
    RemoveWebhook,
    ReplayMessages,
    ShowMessages,
    TestWebhook,
    WebhookAction,
    WebhookReport,
)
from pyagent.core.webhooks.messages import Delivery, Endpoint, checked_events
from pyagent.infrastructure.storage.webhooks.endpoints import SqliteWebhooks
from pyagent.infrastructure.webhooks.deliveries import ping

_MAX_SHOWN = 1_000


async def work(kept: SqliteWebhooks, tenant: str, action: WebhookAction) -> WebhookReport:
    """Return what an action comes to; raises `RequestError` for a webhook or message that the tenant has not."""
    match action:
        case ListWebhooks():
            return _listed("list", kept.endpoints(tenant), "there are no webhooks")
        case AddWebhook():
            return _add(kept, tenant, action)
        case RemoveWebhook() | EnableWebhook():
            return _change(kept, tenant, action)
        case TestWebhook():
            answer = await ping(kept, tenant, action.webhook)
            said = f"took it: status {answer.status}" if answer.is_success else f"did not take it: {answer.text}"
            return WebhookReport(action="test", text=f"{action.webhook} {said}", is_right=answer.is_success)
        case ShowMessages():
            return _show(kept, tenant, action)
        case ReplayMessages():
            return _replay(kept, tenant, action)


def _add(kept: SqliteWebhooks, tenant: str, action: AddWebhook) -> WebhookReport:
    """Add a webhook, unless there is one for this URL and these events: an agent that is run again asks again."""
    events = set(checked_events(action.events))
    same = [one for one in kept.endpoints(tenant) if one.url == action.url and set(one.events) == events]
    if same:
        return _listed("add", same, "")
    added = kept.add(tenant, action.url, action.events).endpoint
    text = f"{line_of(added)}\n`pyagent webhooks rotate {added.id}` makes its secret, and shows it once"
    return WebhookReport(action="add", text=text, webhooks=[without_secrets(added)])


def _change(kept: SqliteWebhooks, tenant: str, action: RemoveWebhook | EnableWebhook) -> WebhookReport:
    if isinstance(action, EnableWebhook):
        return _listed("enable", [kept.enable(tenant, action.webhook)], "")
    kept.remove(tenant, action.webhook)
    return WebhookReport(action="remove", text=f"removed {action.webhook}")


def _show(kept: SqliteWebhooks, tenant: str, action: ShowMessages) -> WebhookReport:
    if not 0 < action.limit <= _MAX_SHOWN:
        raise RequestError(f"limit is from 1 to {_MAX_SHOWN:,}, got {action.limit}", param="limit")
    if action.webhook is not None:
        kept.endpoint(tenant, action.webhook)
    found = kept.outbox.deliveries(tenant, action.state, action.webhook, action.limit)
    text = "\n".join(map(message_line, found)) or f"no messages{f' are {action.state}' if action.state else ''}"
    return WebhookReport(action="show", text=text, messages=found)


def _replay(kept: SqliteWebhooks, tenant: str, action: ReplayMessages) -> WebhookReport:
    if not action.messages and action.since_seconds is None:
        raise RequestError("name messages, or a time by since_seconds", param="messages")
    since = None if action.since_seconds is None else time.time() - action.since_seconds
    count = kept.outbox.replay(tenant, action.messages, since)
    return WebhookReport(action="replay", text=f"{count} messages wait to be sent again")


def _listed(action: str, found: Sequence[Endpoint], none: str) -> WebhookReport:
    text = "\n".join(map(line_of, found)) or none
    return WebhookReport(action=action, text=text, webhooks=[without_secrets(one) for one in found])


def without_secrets(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint without what its URL may hold of a secret."""
    return msgspec.structs.replace(endpoint, url=strike_text(endpoint.url))


def line_of(endpoint: Endpoint) -> str:
    """Return an endpoint as a line."""
    counts = f"{endpoint.num_waiting} waiting, {endpoint.num_dead} dead"
    state = f"disabled: {endpoint.reason}" if endpoint.reason else counts
    return f"{endpoint.id}  {strike_text(endpoint.url)}  {','.join(endpoint.events)}  {state}"


def message_line(one: Delivery) -> str:
    """Return a message as a line."""
    due = f"; next {clock(one.due_at)}" if one.state == "waiting" and one.due_at else ""
    said = f"{one.attempts} attempts: {one.error or 'none failed'}{due}" if one.attempts else one.error
    return f"{one.id}  {one.endpoint}  {clock(one.created_at)}  {one.type}  {one.state}  {said}".rstrip()


def clock(at: float) -> str:
    """Return a time as people read it here."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
