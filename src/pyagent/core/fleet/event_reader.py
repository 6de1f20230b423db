"""Events of a run from any point on, until it ends: of one that is over, under way here, or under way elsewhere.

The journal is what is read, so a slow reader holds up no run, and its place is all that it has in memory. Pieces of
text are not in the journal: a reader gets those that come while it follows a run of this process, up to `_MAX_TEXTS` of
them while it does not read; the whole answer is in `ModelCalled`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol

from pyagent.core.fleet.events import Event, TextDelta
from pyagent.core.fleet.journal import JournalRecord, RunSummary
from pyagent.core.fleet.run import Run

POLL_SECONDS = 0.25
_MAX_TEXTS = 1_000
_PAGE = 256
_ROUNDING_SECONDS = 1e-5
"""By which a record's time may be less than it was: journals keep microseconds."""


class Records(Protocol):
    """The part of a journal that is read."""

    def replay(self, run: str, start: int = 0) -> Iterator[JournalRecord]:
        """Return the run's records from `start` on."""
        ...

    def summary(self, run: str) -> RunSummary | None:
        """Return a run's row; None when there is no such run."""
        ...


class NumberedEvent(NamedTuple):
    """An event with its number in the run; None for a piece of text, which has none. Without an event: nothing came."""

    number: int | None
    event: Event | None


class _Hearing:
    """What a run under way here tells while its journal is read."""

    def __init__(self) -> None:
        self.texts: deque[TextDelta] = deque(maxlen=_MAX_TEXTS)
        self.came = asyncio.Event()
        self.has_records = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self.texts.append(event)
        else:
            self.has_records = True
        self.came.set()

    def texts_before(self, at: float) -> Iterator[NumberedEvent]:
        """Take the texts that came before a time."""
        while self.texts and self.texts[0].at <= at:
            yield NumberedEvent(None, self.texts.popleft())


async def read_events(
    records: Records,
    under_way: Callable[[str], Run | None],
    run: str,
    start: int = 0,
    *,
    quiet_seconds: float = float("inf"),
) -> AsyncGenerator[NumberedEvent, None]:
    """Yield a run's events from the number `start` on, and those that come, until it is not running.

    `under_way` gives the run where it is this process's. When nothing came for `quiet_seconds`, that is yielded.
    """
    hearing, heard_at = _Hearing(), time.monotonic()
    here: Run | None = None
    try:
        while True:
            if (found := under_way(run)) is not here:
                _move(hearing, here, found)
                here = found
            row = records.summary(run)
            hearing.came.clear()
            hearing.has_records = False
            async for numbered in _kept(records, run, start, hearing):
                heard_at = time.monotonic()
                if numbered.number is not None:
                    start = numbered.number + 1
                yield numbered
            if hearing.has_records:
                continue
            for numbered in hearing.texts_before(float("inf")):
                heard_at = time.monotonic()
                yield numbered
            if row is None or row.state != "running":
                return
            await _wait(hearing)
            if time.monotonic() - heard_at > quiet_seconds:
                heard_at = time.monotonic()
                yield NumberedEvent(None, None)
    finally:
        _move(hearing, here, None)


async def _kept(records: Records, run: str, start: int, hearing: _Hearing) -> AsyncGenerator[NumberedEvent, None]:
    """Yield what the journal has from a number on, with the texts between."""
    if (row := records.summary(run)) is None:
        return
    replay = records.replay(row.run, start)
    while page := await asyncio.to_thread(lambda: list(islice(replay, _PAGE))):
        for record in page:
            for text in hearing.texts_before(record.event.at + _ROUNDING_SECONDS):
                yield text
            yield NumberedEvent(record.number, record.event)


def _move(hearing: _Hearing, here: Run | None, there: Run | None) -> None:
    """Hear another run than before: a run that is resumed is another object."""
    if here is not None:
        here.followers.discard(hearing)
    if there is not None:
        there.followers.add(hearing)


async def _wait(hearing: _Hearing) -> None:
    """Wait until something came; not for ever, as it may come to the journal alone."""
    try:
        async with asyncio.timeout(POLL_SECONDS):
            await hearing.came.wait()
    except TimeoutError:
        pass
