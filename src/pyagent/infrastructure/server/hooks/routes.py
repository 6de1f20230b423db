"""POST /v1/hooks/NAME: a message from outside, in whose signature alone it is trusted.

The order is what keeps strangers out: a bounded body, its signature in constant time, then JSON, the hook's schema, and
the disk; only then is its sender told that it was taken. The run comes after that.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pyagent.core.config import read_secret
from pyagent.core.errors import ConfigError, RequestError
from pyagent.core.messages import JsonObject
from pyagent.core.settings.hooks import HookSettings
from pyagent.core.webhooks.incoming import Incoming, genuine, read_incoming
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.body import read_pieces
from pyagent.infrastructure.server.service import Service, json_response

_MAX_SCHEMA_BYTES = 1_000_000


class HookBody(msgspec.Struct):
    """The body of POST /v1/hooks/NAME: what the hook's schema says."""


async def receive(service: Service, request: Request) -> Response:
    """POST /v1/hooks/{id}: take a signed message, which begins a run of the hook's task, once."""
    name = str(request.path_params["id"])
    hook = service.settings.hooks.get(name)
    if hook is None or not isinstance(service.agents, AgentBackend):
        raise RequestError(f"there is no hook {name[:80]!r} (server.hooks)", param="hook", code="hook_not_found")
    body = b"".join(await read_pieces(request, service.settings, hook.max_bytes))
    signed = genuine(hook, _secret(name, hook), request.headers, body, time.time())
    incoming: Incoming = await asyncio.to_thread(
        lambda: read_incoming(hook, signed, request.headers, body, _schema(name, hook))
    )
    if not incoming.is_wanted:
        return json_response({"id": incoming.id, "state": "ignored"}, 202)
    runs = await service.agents.hook_runs(service.settings.hooks)
    kept, _ = runs.inbox.keep(name, incoming.id, incoming.task, hook.max_waiting)
    runs.wake()
    return json_response({"id": kept.id, "state": "accepted"}, 202)


def _secret(name: str, hook: HookSettings) -> str:
    secret = read_secret(hook.secret)
    if secret is None:
        text = f"the secret of the hook {name} is to be {hook.secret}, which is not set"
        raise ConfigError(text, key="server.hooks")
    return secret


def _schema(name: str, hook: HookSettings) -> JsonObject | None:
    """Return the hook's schema, read anew each time: it may be mended while the server runs."""
    if not hook.schema:
        return None
    try:
        text = Path(hook.schema).expanduser().read_bytes()[:_MAX_SCHEMA_BYTES]
        return msgspec.json.decode(text, type=dict[str, object])
    except (OSError, msgspec.DecodeError) as error:
        text = f"the schema of the hook {name} cannot be read: {error}"
        raise ConfigError(text, key="server.hooks") from error
