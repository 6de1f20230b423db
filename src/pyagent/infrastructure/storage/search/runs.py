"""What of runs is searched: tasks, results, what models and tools answered, and errors; an index for each tenant.

An index follows the journal: runs that grew are read again, runs that are gone are deleted. Private runs have no
records, so nothing of them is ever here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Protocol  # Any: an event of the kind that the key names

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import text_of
from pyagent.core.fleet.events import (
    AgentFailed,
    AgentFinished,
    AgentStarted,
    Event,
    ModelCalled,
    QuestionAnswered,
    QuestionAsked,
    RunFailed,
    RunFinished,
    RunStarted,
    ToolCalled,
)
from pyagent.core.fleet.journal import JournalRecord, RunSummary
from pyagent.core.search import MAX_PASSAGES, Passage, passages_of
from pyagent.infrastructure.storage.search.index import SqliteIndex

_PREFIX = "runs-"
_MAX_TEXT_CHARACTERS = 200_000
"""Of one result, answer or output."""


class KeptRuns(Protocol):
    """What of a journal the index reads."""

    def runs(self) -> list[RunSummary]:
        """Return the runs kept, newest first."""
        ...

    def num_records(self, run: str) -> int:
        """Return how many records were kept of a run."""
        ...

    def replay(self, run: str, start: int = 0) -> Iterator[JournalRecord]:
        """Return the run's records from `start` on, in order."""
        ...


def index_of_tenant(folder: Path, tenant: str) -> SqliteIndex:
    """Return the index of a tenant's runs."""
    return SqliteIndex(folder, f"{_PREFIX}{blake2b(tenant.encode(errors='replace'), digest_size=8).hexdigest()}")


def follow_runs(folder: Path, journal: KeptRuns, tenants: Sequence[str] | None) -> dict[str, SqliteIndex]:
    """Bring the indexes of these tenants, or of all, up to date with the journal; return them by tenant."""
    runs_of: defaultdict[str, list[str]] = defaultdict(list, {tenant: [] for tenant in tenants or ()})
    for row in journal.runs():
        if tenants is None or row.tenant in tenants:
            runs_of[row.tenant].append(row.run)
    indexes = {tenant: index_of_tenant(folder, tenant) for tenant in runs_of}
    for tenant, runs in runs_of.items():
        _follow(indexes[tenant], journal, runs)
    return indexes


def _follow(index: SqliteIndex, journal: KeptRuns, runs: Sequence[str]) -> None:
    stamps = index.stamps()
    gone = stamps.keys() - set(runs)
    for run in reversed(runs):
        try:
            stamp = str(journal.num_records(run))
            if stamps.get(run) != stamp:
                index.put(run, stamp, passages_of_run(record for record in journal.replay(run)))
                journal.num_records(run)  # raises where it was deleted meanwhile
        except RequestError:
            gone.add(run)
    if gone:
        index.remove(sorted(gone))


def passages_of_run(records: Iterable[JournalRecord]) -> list[Passage]:
    """Return the passages of a run's records; a text that comes again is one passage."""
    seen: set[str] = set()
    found: list[Passage] = []
    for record in records:
        text_of_event = _TEXT_OF.get(type(record.event))
        text = "" if text_of_event is None else text_of_event(record.event)[:_MAX_TEXT_CHARACTERS]
        if text.strip() and text not in seen:
            seen.add(text)
            found += islice(passages_of(text, record.number), MAX_PASSAGES - len(found))
        if len(found) >= MAX_PASSAGES:
            break
    return found


def _text_of_tool(event: ToolCalled) -> str:
    outcome = text_of(event.output) if event.error is None else event.error
    return f"{event.tool} {text_of(event.arguments)}\n{outcome}"


_TEXT_OF: dict[type[Event], Callable[[Any], str]] = {
    RunStarted: lambda event: event.task,
    AgentStarted: lambda event: event.task,
    ModelCalled: lambda event: event.answer,
    ToolCalled: _text_of_tool,
    AgentFinished: lambda event: text_of(event.output),
    RunFinished: lambda event: text_of(event.output),
    AgentFailed: lambda event: event.error,
    RunFailed: lambda event: event.error,
    QuestionAsked: lambda event: event.question.text,
    QuestionAnswered: lambda event: event.answer,
}


def discard_runs(folder: Path) -> None:
    """Delete the indexes of all tenants: one of them is damaged, and they can be made again."""
    for path in folder.glob(f"{_PREFIX}*.db"):
        SqliteIndex(folder, path.stem).discard()


def forget_runs(folder: Path, runs: Sequence[str]) -> None:
    """Delete runs from the indexes, whatever tenant they were of."""
    for path in sorted(folder.glob(f"{_PREFIX}*.db")):
        index = SqliteIndex(folder, path.stem)
        try:
            index.remove(runs)
        finally:
            index.close()
