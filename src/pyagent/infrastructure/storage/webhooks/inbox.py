"""The inbox: messages that came in, kept before their sender is told so, and what became of each.

A message is known by its hook and its id: one that comes again is not kept again. Its text is the task that it begins;
it is dropped when the run is done, and kept with one that failed.
"""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import Literal, cast

import msgspec

from pyagent.core.errors import CapacityError, RequestError
from pyagent.infrastructure.storage.database import Database
from pyagent.infrastructure.storage.webhooks.outbox import usable

InboxState = Literal["waiting", "running", "done", "dead"]
KEPT_SECONDS = 30 * 86_400.0
"""Of what is done or dead; so long a message is known again."""
MAX_DONE = 100_000
"""Of all hooks; the oldest are forgotten sooner."""
_RETRY_SECONDS = 5.0
_SELECT = "SELECT number, hook, id, received_at, state, run, error FROM webhook_inbox"
_FIELDS = ("number", "hook", "id", "received_at", "state", "run", "error")
ID_PREFIX = "in-"


_NEXT = (
    "SELECT MIN(number) FROM webhook_inbox AS waiting WHERE state = 'waiting' GROUP BY hook ORDER BY (SELECT COUNT(*)"
    " FROM webhook_inbox WHERE state = 'running' AND hook = waiting.hook), MIN(number) LIMIT 1"
)


class Received(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that came in, and the run that it began."""

    number: int
    hook: str
    id: str
    received_at: float
    state: InboxState
    run: str = ""
    error: str = ""

    @property
    def name(self) -> str:
        """What people call it by."""
        return f"{ID_PREFIX}{self.number}"


class Inbox:
    """The messages of all hooks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, hook: str, message_id: str, task: str, max_waiting: int) -> tuple[Received, bool]:
        """Keep a message on the disk, unless it is kept; return it, and whether it is new.

        Raises `CapacityError` when as many of its hook wait as may.
        """
        with usable(self._database), self._database.transaction(is_forced=True):
            if (before := self._find(hook, message_id)) is not None:
                return before, False
            count = "SELECT COUNT(*) FROM webhook_inbox WHERE state = 'waiting' AND hook = ?"
            if cast("int", self._database.rows(count, (hook,))[0][0]) >= max_waiting:
                text = f"{max_waiting:,} messages of the hook {hook} wait already (max_waiting)"
                raise CapacityError(text, retry_after_seconds=_RETRY_SECONDS)
            insert = "INSERT INTO webhook_inbox (hook, id, body, received_at, state) VALUES (?, ?, ?, ?, 'waiting')"
            self._database.execute(insert, (hook, message_id, task.encode(errors="replace"), time.time()))
            kept = self._find(hook, message_id)
        assert kept is not None, "it was inserted"
        return kept, True

    def _find(self, hook: str, message_id: str) -> Received | None:
        rows = self._database.rows(f"{_SELECT} WHERE hook = ? AND id = ?", (hook, message_id))
        return _received(rows[0]) if rows else None

    def take(self) -> tuple[Received, str] | None:
        """Return the next message, now running by the id of a run that is its own, and its task.

        It is the one that has waited longest of the hook of which fewest run: hooks take turns, whatever waits.
        """
        with usable(self._database):
            if not self._database.rows("SELECT 1 FROM webhook_inbox WHERE state = 'waiting' LIMIT 1"):
                return None
            with self._database.transaction():
                if not (rows := self._database.rows(f"{_SELECT} WHERE number = ({_NEXT})")):
                    return None
                found = _received(rows[0])
                [(task,)] = self._database.rows("SELECT body FROM webhook_inbox WHERE number = ?", (found.number,))
                run = found.run or run_of(found)
                self._set(found.number, "running", run, "")
        return msgspec.structs.replace(found, state="running", run=run), cast("bytes", task).decode()

    def running(self) -> list[Received]:
        """Return the messages whose runs are under way, or were when their process died."""
        with usable(self._database):
            rows = self._database.rows(f"{_SELECT} WHERE state = 'running' ORDER BY number")
        return [_received(row) for row in rows]

    def settle(self, message: Received, state: InboxState, error: str = "") -> None:
        """Keep what became of a message, unless it is to begin another run by now."""
        with usable(self._database):
            self._database.execute(
                "UPDATE webhook_inbox SET state = ?, error = ?, body = CASE ? WHEN 'done' THEN x'' ELSE body END"
                " WHERE number = ? AND run = ?",
                (state, error[:500], state, message.number, message.run),
            )

    def _set(self, number: int, state: InboxState, run: str, error: str) -> None:
        update = "UPDATE webhook_inbox SET state = ?, run = ?, error = ? WHERE number = ?"
        self._database.execute(update, (state, run, error, number))

    def messages(self, state: InboxState | None = None, limit: int = 100) -> list[Received]:
        """Return the newest messages, newest first."""
        where = "" if state is None else "WHERE state = ?"
        query = f"{_SELECT} {where} ORDER BY number DESC LIMIT ?"
        with usable(self._database):
            return [_received(row) for row in self._database.rows(query, (*([state] if state else []), limit))]

    def counts(self) -> dict[str, int]:
        """Return how many messages wait, are run, and are dead, of all hooks."""
        with usable(self._database):
            rows = self._database.rows("SELECT state, COUNT(*) FROM webhook_inbox GROUP BY state")
        found = dict(cast("list[tuple[str, int]]", rows))
        return {state: found.get(state, 0) for state in ("waiting", "running", "dead")}

    def replay(self, name: str) -> None:
        """Have a dead message begin another run; raises `RequestError` for one that is not there, or not dead."""
        number = name.removeprefix(ID_PREFIX)
        with usable(self._database), self._database.transaction():
            is_number = number.isascii() and number.isdigit() and len(number) < 16
            rows = self._database.rows(f"{_SELECT} WHERE number = ?", (int(number),)) if is_number else []
            if not rows:
                raise RequestError(f"there is no message {name[:80]!r}", param="message", code="message_not_found")
            found = _received(rows[0])
            if found.state != "dead":
                raise RequestError(f"{name} is {found.state}: dead letters are replayed", param="message")
            self._set(found.number, "waiting", run_of(found), "")

    def prune(self, now: float) -> None:
        """Forget messages that were done, or died, a month ago, and those done that are too many."""
        with usable(self._database):
            if self._database.rows("SELECT 1 FROM webhook_inbox LIMIT 1"):
                delete = "DELETE FROM webhook_inbox WHERE state IN ('done', 'dead') AND received_at < ?"
                self._database.execute(delete, (now - KEPT_SECONDS,))
                self._database.execute(
                    "DELETE FROM webhook_inbox WHERE state = 'done' AND number <= (SELECT number FROM webhook_inbox"
                    " WHERE state = 'done' ORDER BY number DESC LIMIT 1 OFFSET ?)",
                    (MAX_DONE,),
                )


def run_of(message: Received) -> str:
    """Return the id of the run that a message begins next: equal each time, another after a run of its own."""
    said = f"{message.hook}\0{message.id}\0{message.run}"
    return f"r-{blake2b(said.encode(), digest_size=12, person=b'pyagent hook').hexdigest()}"


def _received(row: tuple[object, ...]) -> Received:
    return msgspec.convert(dict(zip(_FIELDS, row, strict=True)), Received)
