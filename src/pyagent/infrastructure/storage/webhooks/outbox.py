"""The outbox: a row for each message of each endpoint, and what became of it.

An event's messages are written in the transaction that keeps the event, so that neither is there without the other. A
delivery is one process's at a time: its endpoint is leased by a writer's name, which the death of the process voids. A
message goes out at least once, always with the same id. One that waits and holds up no other any more is `passed`.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.webhooks.messages import (
    TOLD,
    Delivery,
    DeliveryState,
    Message,
    cancelled_message,
    message_of,
    new_message_id,
    wants,
)
from pyagent.core.webhooks.schedule import Answer, Schedule
from pyagent.infrastructure.storage.database import Database
from pyagent.infrastructure.storage.writers import Writers

MAX_MESSAGES = 10_000
"""Of one endpoint that wait, died, or were delivered: one too many to wait is dead at once, the oldest others go."""
DELIVERED_SECONDS, DEAD_SECONDS = 7 * 86_400.0, 30 * 86_400.0
_MESSAGES = """SELECT m.id, m.endpoint, m.type, REPLACE(m.state, 'passed', 'waiting'), m.created_at, m.attempts,
m.due_at, m.status, m.error FROM webhook_messages m JOIN webhook_endpoints e ON e.id = m.endpoint"""
_WAITED_FOR = """SELECT id FROM webhook_endpoints e WHERE reason = '' AND paused_until <= ? AND EXISTS (
SELECT 1 FROM webhook_messages m WHERE m.endpoint = e.id AND m.state IN ('waiting', 'passed'))"""
_LEASE = """SELECT url, leased_by, secret, old_secret, old_until FROM webhook_endpoints
WHERE id = ? AND reason = '' AND paused_until <= ?"""
_NEXT = "SELECT number, id, body, attempts, due_at FROM webhook_messages WHERE endpoint = ? AND state ="


class Claim(NamedTuple):
    """A message to deliver now, with all that it takes. Secrets may be references to where they are."""

    endpoint: str
    url: str
    secrets: tuple[str, ...]
    number: int
    id: str
    body: bytes
    attempts: int


class Outbox:
    """The messages of all tenants. What is asked for a tenant is of its own endpoints alone."""

    def __init__(
        self, database: Database, writers: Writers, schedule: Schedule | None, prepare: Callable[[], None]
    ) -> None:
        """`prepare` is called before endpoints are looked at."""
        self._prepare = prepare
        self._database = database
        self._writers = writers
        self._schedule = schedule or Schedule()

    def tell(self, tenant: str, event: TOLD) -> None:
        """Write the messages of a run's event, in the transaction under way."""
        if rows := self._listening(tenant):
            self._write(rows, message_of(event))

    def tell_cancelled(self, tenant: str, run: str) -> None:
        """Write the messages of a run that was cancelled while no process worked on it."""
        if rows := self._listening(tenant):
            self._write(rows, cancelled_message(run, time.time()))

    def _listening(self, tenant: str) -> list[tuple[str, str, str]]:
        self._prepare()
        rows = self._database.rows("SELECT id, events, reason FROM webhook_endpoints WHERE tenant = ?", (tenant,))
        return cast("list[tuple[str, str, str]]", rows)

    def _write(self, endpoints: Sequence[tuple[str, str, str]], message: Message) -> None:
        now = time.time()
        for endpoint, events, reason in endpoints:
            if wants(events.split(","), message.type):
                error = "the endpoint is disabled" if reason else ""
                if not error and self._num_waiting(endpoint) >= MAX_MESSAGES:
                    error = f"{MAX_MESSAGES:,} messages wait already"
                state: DeliveryState = "dead" if error else "waiting"
                self._database.execute(
                    "INSERT INTO webhook_messages (id, endpoint, type, body, created_at, due_at, state, error,"
                    " attempts) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
                    (new_message_id(), endpoint, message.type, message.body, now, now, state, error),
                )

    def _num_waiting(self, endpoint: str) -> int:
        query = "SELECT COUNT(*) FROM webhook_messages WHERE endpoint = ? AND state IN ('waiting', 'passed')"
        return cast("int", self._database.rows(query, (endpoint,))[0][0])

    def claim(self, now: float, busy: Collection[str], most: int = 16) -> list[Claim]:
        """Lease endpoints that have a message due, but those `busy` here; return these messages, one of each.

        Of one endpoint they come in their order, as long as the first was not tried too often.
        """
        claims: list[Claim] = []
        self._prepare()
        with usable(self._database):
            for (endpoint,) in self._database.rows(_WAITED_FOR, (now,)):
                if len(claims) < most and endpoint not in busy and self._next(str(endpoint), now) is not None:
                    claim = self._claim(str(endpoint), now)
                    claims += [claim] if claim is not None else []
        return claims

    def _claim(self, endpoint: str, now: float) -> Claim | None:
        with self._database.transaction():
            rows = self._database.rows(_LEASE, (endpoint, now))
            if not rows or (message := self._next(endpoint, now)) is None:
                return None
            url, leased_by, *kept = cast("tuple[str, str, str, str, float]", rows[0])
            own = self._writers.own_name()
            if leased_by not in {"", own} and self._writers.is_alive(leased_by):
                return None
            self._database.execute("UPDATE webhook_endpoints SET leased_by = ? WHERE id = ?", (own, endpoint))
        number, message_id, body, attempts = message
        secrets = valid_secrets(*cast("tuple[str, str, float]", tuple(kept)))
        return Claim(endpoint, url, secrets, number, message_id, body, attempts)

    def _next(self, endpoint: str, now: float) -> tuple[int, str, bytes, int] | None:
        """Return the message whose turn it is: one that was passed by and is due, else the first, when it is due."""
        passed_by = self._database.rows(f"{_NEXT} 'passed' AND due_at <= ? ORDER BY number LIMIT 1", (endpoint, now))
        first = self._database.rows(f"{_NEXT} 'waiting' ORDER BY number LIMIT 1", (endpoint,))
        for row in [*passed_by, *first]:
            *message, due_at = cast("tuple[int, str, bytes, int, float]", row)
            if due_at <= now:
                return cast("tuple[int, str, bytes, int]", tuple(message))
        return None

    def settle(self, claim: Claim, answer: Answer, now: float) -> Delivery | None:
        """Keep what an attempt came to, and give the endpoint free; return the message, None when it was removed."""
        with usable(self._database), self._database.transaction():
            rows = self._database.rows("SELECT failing_since FROM webhook_endpoints WHERE id = ?", (claim.endpoint,))
            if not rows:
                return None
            if answer.is_success:
                self._delivered(claim, answer, now)
            else:
                self._failed(claim, answer, cast("float", rows[0][0] or now), now)
            self.release(claim.endpoint)
            found = self._database.rows(f"{_MESSAGES} WHERE m.number = ?", (claim.number,))
        return _delivery(found[0]) if found else None

    def _delivered(self, claim: Claim, answer: Answer, now: float) -> None:
        self._database.execute(
            "UPDATE webhook_messages SET state = 'delivered', attempts = attempts + 1, status = ?, error = '',"
            " due_at = ? WHERE number = ?",
            (answer.status, now, claim.number),
        )
        self._database.execute(
            "UPDATE webhook_endpoints SET failing_since = NULL, paused_until = 0 WHERE id = ?", (claim.endpoint,)
        )

    def _failed(self, claim: Claim, answer: Answer, failing_since: float, now: float) -> None:
        attempts = claim.attempts + 1
        verdict = self._schedule.after_failure(attempts, answer, failing_since, now)
        waits = "waiting" if attempts < self._schedule.num_ordered else "passed"
        state = "dead" if verdict.due_at is None else waits
        self._database.execute(
            "UPDATE webhook_messages SET state = ?, attempts = ?, status = ?, error = ?, due_at = ? WHERE number = ?",
            (state, attempts, answer.status, answer.text[:500], verdict.due_at or now, claim.number),
        )
        self._database.execute(
            "UPDATE webhook_endpoints SET failing_since = ?, paused_until = ?, reason = ? WHERE id = ?",
            (failing_since, verdict.paused_until, verdict.disabled[:500], claim.endpoint),
        )
        if verdict.disabled:
            self._database.execute(
                "UPDATE webhook_messages SET state = 'dead', error = 'the endpoint is disabled'"
                " WHERE endpoint = ? AND state IN ('waiting', 'passed')",
                (claim.endpoint,),
            )

    def release(self, endpoint: str) -> None:
        """Let other processes deliver to an endpoint."""
        self._database.execute("UPDATE webhook_endpoints SET leased_by = '' WHERE id = ?", (endpoint,))

    def deliveries(
        self, tenant: str, state: DeliveryState | None = None, endpoint: str | None = None, limit: int = 100
    ) -> list[Delivery]:
        """Return a tenant's newest messages, newest first."""
        clauses, values = ["e.tenant = ?"], [tenant]
        for column, value in (("REPLACE(m.state, 'passed', 'waiting')", state), ("m.endpoint", endpoint)):
            if value is not None:
                clauses.append(f"{column} = ?")
                values.append(value)
        query = f"{_MESSAGES} WHERE {' AND '.join(clauses)} ORDER BY m.number DESC LIMIT ?"
        with usable(self._database):
            return [_delivery(row) for row in self._database.rows(query, (*values, limit))]

    def counts(self) -> dict[str, int]:
        """Return how many messages wait, and how many are dead, of all tenants."""
        with usable(self._database):
            rows = self._database.rows("SELECT state, COUNT(*) FROM webhook_messages GROUP BY state")
        found = Counter(dict(cast("list[tuple[str, int]]", rows)))
        return {"waiting": found["waiting"] + found["passed"], "dead": found["dead"]}

    def replay(
        self, tenant: str, messages: Sequence[str] = (), since: float | None = None, endpoint: str | None = None
    ) -> int:
        """Send messages again, by their ids, or all dead ones since a time, of one endpoint or all; return how many.

        Raises `RequestError` for an unknown one, and for one whose endpoint is disabled.
        """
        with usable(self._database), self._database.transaction():
            found = [self._replayable(tenant, message, endpoint) for message in messages]
            if since is not None:
                query = (
                    "SELECT m.number FROM webhook_messages m JOIN webhook_endpoints e ON e.id = m.endpoint"
                    " WHERE e.tenant = ? AND m.state = 'dead' AND m.created_at >= ? AND e.reason = ''"
                )
                query, values = (
                    (query, (tenant, since))
                    if endpoint is None
                    else (f"{query} AND e.id = ?", (tenant, since, endpoint))
                )
                found += [cast("int", number) for (number,) in self._database.rows(query, values)]
            for number in dict.fromkeys(found):
                update = "UPDATE webhook_messages SET state = 'waiting', attempts = 0, due_at = ? WHERE number = ?"
                self._database.execute(update, (time.time(), number))
        return len(dict.fromkeys(found))

    def _replayable(self, tenant: str, message: str, of: str | None) -> int:
        query = (
            "SELECT m.number, e.id, e.reason FROM webhook_messages m JOIN webhook_endpoints e ON e.id = m.endpoint"
            " WHERE e.tenant = ? AND m.id = ?"
        )
        rows = cast("list[tuple[int, str, str]]", self._database.rows(query, (tenant, message)))
        if not rows or of not in {None, rows[0][1]}:
            raise RequestError(f"there is no message {message[:80]!r}", param="message", code="message_not_found")
        number, endpoint, reason = rows[0]
        if reason:
            raise RequestError(f"{endpoint} is disabled: {reason}; enable it first", param="message")
        return number

    def prune(self, now: float) -> None:
        """Delete messages that were delivered a week ago or died a month ago, and those of both that are too many."""
        with usable(self._database):
            if not self._database.rows("SELECT 1 FROM webhook_messages LIMIT 1"):
                return
            delete = "DELETE FROM webhook_messages WHERE state = ? AND due_at < ?"
            with self._database.transaction():
                self._database.execute(delete, ("delivered", now - DELIVERED_SECONDS))
                self._database.execute(delete, ("dead", now - DEAD_SECONDS))
                self._database.execute(
                    "DELETE FROM webhook_messages WHERE number IN (SELECT number FROM (SELECT number, ROW_NUMBER() OVER"
                    " (PARTITION BY endpoint, state ORDER BY number DESC) AS place FROM webhook_messages"
                    " WHERE state IN ('dead', 'delivered')) WHERE place > ?)",
                    (MAX_MESSAGES,),
                )


@contextmanager
def usable(database: Database) -> Generator[None]:
    """Map what SQLite says to an error that names the file."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        text = f"the webhooks in {database.path} cannot be used: {error}"
        raise RequestError(text, param="webhook", code="journal_unreadable") from error


def valid_secrets(secret: str, old_secret: str, old_until: float) -> tuple[str, ...]:
    """Return the secrets that sign now, the newest first."""
    return (secret, old_secret) if old_secret and old_until > time.time() else (secret,)


def _delivery(row: Sequence[object]) -> Delivery:
    names = ("id", "endpoint", "type", "state", "created_at", "attempts", "due_at", "status", "error")
    return msgspec.convert(dict(zip(names, row, strict=True)), Delivery)
