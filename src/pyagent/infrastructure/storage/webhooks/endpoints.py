"""Endpoints of webhooks: where a tenant's events are sent, and the secrets that sign them.

Secrets stand here as they are, since they sign; the file is its owner's alone (0600). A person is shown one once, by
`add`, `reveal` or `rotate`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import unknown_name
from pyagent.core.secrets import is_reference
from pyagent.core.settings.webhooks import Webhooks
from pyagent.core.webhooks.messages import MAX_ENDPOINTS, Endpoint, checked_events, checked_url, new_endpoint_id
from pyagent.core.webhooks.schedule import Schedule
from pyagent.core.webhooks.signing import new_secret
from pyagent.infrastructure.storage.database import Database
from pyagent.infrastructure.storage.webhooks.inbox import Inbox
from pyagent.infrastructure.storage.webhooks.outbox import Outbox, usable, valid_secrets
from pyagent.infrastructure.storage.writers import Writers

if TYPE_CHECKING:
    from pyagent.core.webhooks.actions import WebhookAction, WebhookReport

_OLD_SECRET_SECONDS = 86_400.0
_ENDPOINTS = """SELECT e.id, e.tenant, e.url, e.events, e.created_at, e.reason, e.failing_since, e.origin,
(SELECT COUNT(*) FROM webhook_messages m WHERE m.endpoint = e.id AND m.state IN ('waiting', 'passed')),
(SELECT COUNT(*) FROM webhook_messages m WHERE m.endpoint = e.id AND m.state = 'dead')
FROM webhook_endpoints e"""


class Added(NamedTuple):
    """An endpoint that is new, or has a new secret, and the secret: it is not told again."""

    endpoint: Endpoint
    secret: str


class SqliteWebhooks:
    """The endpoints of all tenants in one file, each tenant's apart; the `outbox` to them, and the `inbox`."""

    def __init__(
        self, database: Database, writers: Writers, settings: Webhooks | None = None, schedule: Schedule | None = None
    ) -> None:
        settings = settings or Webhooks()
        self.allows_private = settings.private
        self._declared = settings.endpoints
        self._is_prepared = not self._declared
        self.outbox = Outbox(database, writers, schedule, self._prepare)
        self.inbox = Inbox(database)
        self._database = database

    def add(self, tenant: str, url: str, events: Sequence[str], secret: str = "") -> Added:
        """Have events told to a URL; `secret` is a reference to one, else one is made. Raises `RequestError`."""
        url, kinds = checked_url(url, allows_private=self.allows_private), checked_events(events)
        if secret and not is_reference(secret):
            raise RequestError("a secret is given as env:NAME or file:PATH, never itself", param="secret")
        endpoint, made = new_endpoint_id(), secret or new_secret()
        self._prepare()
        with usable(self._database), self._database.transaction():
            if len(self.endpoints(tenant)) >= MAX_ENDPOINTS:
                raise RequestError(f"there are {MAX_ENDPOINTS} webhooks, as many as may be; remove one", param="url")
            self._database.execute(
                "INSERT INTO webhook_endpoints (id, tenant, url, events, secret, created_at) VALUES (?, ?, ?, ?, ?, ?)",
                (endpoint, tenant, url, ",".join(kinds), made, time.time()),
            )
        return Added(self.endpoint(tenant, endpoint), made)

    def _prepare(self) -> None:
        """Have the endpoints of the settings, as they stand there; those that were taken out stay until removed."""
        if self._is_prepared:
            return
        self._is_prepared = True
        with usable(self._database), self._database.transaction():
            for name, one in self._declared.items():
                self._database.execute(
                    "INSERT INTO webhook_endpoints (id, tenant, url, events, secret, created_at, origin)"
                    " VALUES (?, ?, ?, ?, ?, ?, 'settings') ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant,"
                    " url = excluded.url, events = excluded.events, secret = excluded.secret",
                    (name, one.tenant, one.url, ",".join(one.events), one.secret, time.time()),
                )

    def endpoints(self, tenant: str) -> list[Endpoint]:
        """Return a tenant's endpoints, oldest first."""
        self._prepare()
        with usable(self._database):
            rows = self._database.rows(f"{_ENDPOINTS} WHERE e.tenant = ? ORDER BY e.rowid", (tenant,))
        return [_endpoint(row) for row in rows]

    def endpoint(self, tenant: str, endpoint: str) -> Endpoint:
        """Return one of a tenant's endpoints; raises `RequestError` for one that is not there, or another's."""
        self._prepare()
        with usable(self._database):
            rows = self._database.rows(f"{_ENDPOINTS} WHERE e.tenant = ? AND e.id = ?", (tenant, endpoint))
        if not rows:
            error = unknown_name("webhook", endpoint[:80], [one.id for one in self.endpoints(tenant)])
            raise RequestError(str(error), param="webhook", code="webhook_not_found")
        return _endpoint(rows[0])

    def num_disabled(self) -> int:
        """Return how many endpoints are disabled, of all tenants."""
        with usable(self._database):
            rows = self._database.rows("SELECT COUNT(*) FROM webhook_endpoints WHERE reason != ''")
        return cast("int", rows[0][0]) if rows else 0

    def remove(self, tenant: str, endpoint: str) -> None:
        """Forget an endpoint, its secret and its messages; raises `RequestError` as `endpoint` does."""
        self.endpoint(tenant, endpoint)
        if endpoint in self._declared:
            text = f"{endpoint} stands in the settings: take [webhooks.endpoints.{endpoint}] out of them first"
            raise RequestError(text, param="webhook")
        with usable(self._database):
            with self._database.transaction():
                self._database.execute("DELETE FROM webhook_messages WHERE endpoint = ?", (endpoint,))
                self._database.execute("DELETE FROM webhook_endpoints WHERE id = ?", (endpoint,))
            self._database.shrink()

    def enable(self, tenant: str, endpoint: str) -> Endpoint:
        """Send to an endpoint again that is disabled; raises `RequestError` as `endpoint` does."""
        self.endpoint(tenant, endpoint)
        update = "UPDATE webhook_endpoints SET reason = '', failing_since = NULL, paused_until = 0 WHERE id = ?"
        with usable(self._database):
            self._database.execute(update, (endpoint,))
        return self.endpoint(tenant, endpoint)

    def rotate(self, tenant: str, endpoint: str) -> Added:
        """Return an endpoint with a new secret; for a day messages are signed by the old one, too."""
        found = self.endpoint(tenant, endpoint)
        with usable(self._database), self._database.transaction():
            [(secret,)] = self._database.rows("SELECT secret FROM webhook_endpoints WHERE id = ?", (endpoint,))
            if is_reference(secret):
                raise RequestError(f"the secret of {endpoint} is {secret}: change it there", param="webhook")
            made = new_secret()
            self._database.execute(
                "UPDATE webhook_endpoints SET secret = ?, old_secret = ?, old_until = ? WHERE id = ?",
                (made, secret, time.time() + _OLD_SECRET_SECONDS, endpoint),
            )
        return Added(found, made)

    async def do(self, tenant: str, action: WebhookAction) -> WebhookReport:
        """Do what an agent asks of a tenant's webhooks."""
        from pyagent.infrastructure.webhooks.desk import work

        return await work(self, tenant, action)

    def signing_secrets(self, tenant: str, endpoint: str) -> tuple[str, tuple[str, ...]]:
        """Return an endpoint's URL and the secrets that sign for it now."""
        self.endpoint(tenant, endpoint)
        with usable(self._database):
            query = "SELECT url, secret, old_secret, old_until FROM webhook_endpoints WHERE id = ?"
            [(url, *kept)] = cast("list[tuple[str, str, str, float]]", self._database.rows(query, (endpoint,)))
        return url, valid_secrets(*cast("tuple[str, str, float]", tuple(kept)))


def _endpoint(row: Sequence[object]) -> Endpoint:
    names = (
        "id",
        "tenant",
        "url",
        "events",
        "created_at",
        "reason",
        "failing_since",
        "origin",
        "num_waiting",
        "num_dead",
    )
    told = dict(zip(names, row, strict=True))
    return msgspec.convert(told | {"events": str(told["events"]).split(",")}, Endpoint)
