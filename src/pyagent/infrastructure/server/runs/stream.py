"""A run's events as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

    id: 12
    event: tool_called
    data: {"event":"tool_called","run":"r-7f3a",...}

Who reconnects with `Last-Event-ID` misses none. Pieces of text have no id: they are not kept. While nothing happens a
comment comes now and then, so that a connection that is dead is noticed. The last event is `end`, with the state.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from pyagent.core.fleet.event_reader import read_events
from pyagent.core.fleet.journal import RunSummary
from pyagent.infrastructure.server.errors import HttpError
from pyagent.infrastructure.server.runs.access import Runs, told_event

MEDIA_TYPE = "text/event-stream"
HEARTBEAT_SECONDS = 15.0
_HEARTBEAT = b": still running\n\n"


async def server_sent(
    runs: Runs, row: RunSummary, start: int, *, cancels: bool = False, heartbeat_seconds: float = HEARTBEAT_SECONDS
) -> AsyncGenerator[bytes, None]:
    """Yield a run's events from a number on until it ends; `cancels` it when the reader goes before."""
    journal, has_ended = runs.journal_of(row.run), False
    reading = read_events(journal, runs.fleet.under_way, row.run, start, quiet_seconds=heartbeat_seconds)
    try:
        async with aclosing(reading) as events:
            async for number, event in events:
                yield _HEARTBEAT if event is None else _event(told_event(event), number)
        has_ended = True
        now = journal.summary(row.run)
        state = "deleted" if now is None else now.state
        yield _event({"event": "end", "run": row.run, "state": state}, None)
    finally:
        if cancels and not has_ended and (here := runs.fleet.under_way(row.run)) is not None:
            here.cancel()


def _event(told: dict[str, object], number: int | None) -> bytes:
    lines = [] if number is None else [b"id: %d" % number]
    lines += [b"event: " + str(told["event"]).encode(), b"data: " + msgspec.json.encode(told)]
    return b"\n".join(lines) + b"\n\n"


def failed(error: HttpError) -> bytes:
    """Return an error for a client that has a part of the events."""
    return b"event: error\ndata: " + msgspec.json.encode(error.body) + b"\n\n"
