"""A key's webhooks: added, listed, tried, removed, and their messages replayed. Another key's are not there."""

from __future__ import annotations

import time
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pyagent.core.errors import RequestError
from pyagent.core.messages import JsonObject
from pyagent.core.secrets import strike_text
from pyagent.core.webhooks.messages import DeliveryState, Endpoint
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.api_keys import tenant_of
from pyagent.infrastructure.server.service import Service, json_response
from pyagent.infrastructure.server.validation import decode
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.infrastructure.storage.webhooks.endpoints import SqliteWebhooks

_STATES: tuple[DeliveryState, ...] = ("waiting", "delivered", "dead")
_MAX_LISTED = 1_000
_MAX_REPLAYED = 1_000


class WebhookBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/webhooks: where to, and the events to tell of. The answer has the secret, once."""

    url: str
    events: list[str]


class ReplayBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/webhooks/ID/replay: messages by their ids, or all dead ones of the last `since_seconds`."""

    messages: list[str] = []
    since_seconds: float | None = None


class NothingBody(msgspec.Struct, forbid_unknown_fields=True):
    """A body without fields."""


async def create(service: Service, request: Request) -> Response:
    """POST /v1/webhooks: have events of one's own runs told to a URL; the secret that signs them is told now alone."""
    kept = await _kept(service)
    body = await service.read(request, partial(decode, kind=WebhookBody, refused={}))
    added = kept.add(tenant_of(request), body.url, body.events)
    where = {"location": f"/v1/webhooks/{added.endpoint.id}"}
    return json_response(_told(added.endpoint) | {"secret": added.secret}, 201, where)


async def list_webhooks(service: Service, request: Request) -> Response:
    """GET /v1/webhooks: the caller's webhooks, without their secrets."""
    found = (await _kept(service)).endpoints(tenant_of(request))
    return json_response({"object": "list", "data": [_told(one) for one in found]})


async def show(service: Service, request: Request) -> Response:
    """GET /v1/webhooks/{id}: one of the caller's webhooks."""
    return json_response(_told(_named(await _kept(service), request)))


async def delete(service: Service, request: Request) -> Response:
    """DELETE /v1/webhooks/{id}: forget a webhook, its secret and its messages."""
    kept = await _kept(service)
    found = _named(kept, request)
    kept.remove(tenant_of(request), found.id)
    return json_response({"id": found.id, "object": "webhook", "deleted": True})


async def messages(service: Service, request: Request) -> Response:
    """GET /v1/webhooks/{id}/messages: the newest messages; `?state=` waiting, delivered or dead, `?limit=`."""
    kept, query = await _kept(service), request.query_params
    found, state, limit = _named(kept, request), query.get("state"), query.get("limit", "100")
    if state is not None and state not in _STATES:
        raise RequestError(f"state is one of {', '.join(_STATES)}, got {state[:40]!r}", param="state")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 5 and 0 < int(limit) <= _MAX_LISTED):
        raise RequestError(f"limit is from 1 to {_MAX_LISTED}, got {limit[:40]!r}", param="limit")
    listed = kept.outbox.deliveries(tenant_of(request), state, found.id, int(limit))
    return json_response({"object": "list", "data": msgspec.to_builtins(listed)})


async def replay(service: Service, request: Request) -> Response:
    """POST /v1/webhooks/{id}/replay: send messages again, by the ids that they had."""
    kept = await _kept(service)
    body = await service.read(request, partial(decode, kind=ReplayBody, refused={}))
    found, tenant = _named(kept, request), tenant_of(request)
    if len(body.messages) > _MAX_REPLAYED or not (body.messages or body.since_seconds):
        raise RequestError(f"name 1 to {_MAX_REPLAYED} messages, or since_seconds", param="messages")
    since = None if body.since_seconds is None else time.time() - body.since_seconds
    return json_response({"num_replayed": kept.outbox.replay(tenant, body.messages, since, found.id)})


async def ping(service: Service, request: Request) -> Response:
    """POST /v1/webhooks/{id}/test: send a `webhook.ping` now, once, and tell what it came to."""
    from pyagent.infrastructure.webhooks.deliveries import ping as send_ping

    kept = await _kept(service)
    await service.read(request, partial(decode, kind=NothingBody, refused={}))
    answer = await send_ping(kept, tenant_of(request), _named(kept, request).id)
    error = "" if answer.is_success else answer.text
    return json_response({"delivered": answer.is_success, "status": answer.status, "error": error})


async def rotate(service: Service, request: Request) -> Response:
    """POST /v1/webhooks/{id}/rotate: make a new secret, told now alone; for a day the old one signs, too."""
    kept = await _kept(service)
    await service.read(request, partial(decode, kind=NothingBody, refused={}))
    added = kept.rotate(tenant_of(request), _named(kept, request).id)
    return json_response(_told(added.endpoint) | {"secret": added.secret})


async def enable(service: Service, request: Request) -> Response:
    """POST /v1/webhooks/{id}/enable: send again to a webhook that was disabled because it took nothing."""
    kept = await _kept(service)
    await service.read(request, partial(decode, kind=NothingBody, refused={}))
    return json_response(_told(kept.enable(tenant_of(request), _named(kept, request).id)))


async def _kept(service: Service) -> SqliteWebhooks:
    journal = (await service.agents.made()).journal if isinstance(service.agents, AgentBackend) else None
    if not isinstance(journal, SqliteJournal):
        raise RequestError("this server has no fleet with a journal on disk, and so no webhooks", code="no_fleet")
    return journal.webhooks


def _named(kept: SqliteWebhooks, request: Request) -> Endpoint:
    return kept.endpoint(tenant_of(request), str(request.path_params["id"]))


def _told(endpoint: Endpoint) -> JsonObject:
    told: JsonObject = {"object": "webhook", **msgspec.to_builtins(endpoint), "url": strike_text(endpoint.url)}
    told.pop("tenant", None)
    return told
