"""An agent's memory: the notes of its run, which all its agents share, and those that its tenant keeps across runs.

    context.memory.note("The lease ends in May", importance=0.9)
    prompt = f"{await context.memory.top(tokens=500)}\\n\\n{task.text}"

Notes and what was read of them are journalled by the numbers of their calls (`scopes`), so a resumed run reads what it
read. A note with `scope="fleet"` is kept once, also when its run is resumed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pyagent.core.errors import RequestError
from pyagent.core.fleet.events import NotesRead, NoteTaken
from pyagent.core.fleet.file_access import current_access
from pyagent.core.fleet.notes import (
    MAX_RECALLED_TOKENS,
    Note,
    Notes,
    NoteSpec,
    best_notes,
    with_note,
)
from pyagent.core.fleet.past import asked_of

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

DEFAULT_TOKENS = 500


@dataclass(slots=True)
class RunNotes:
    """The notes of one run. `told` are those of the journal, in order."""

    told: Iterable[NoteTaken] = ()
    notes: list[Note] = field(default_factory=list[Note])
    _ids: set[str] = field(default_factory=set[str])
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        for event in self.told:
            self.add(event)

    def has(self, note_id: str) -> bool:
        """Whether a call's note was taken, perhaps before the run was resumed."""
        return note_id in self._ids

    def add(self, event: NoteTaken) -> None:
        """Add a note, once. One for the fleet is not kept here as well."""
        note = note_of(event)
        if note.id not in self._ids and event.scope == "run":
            self.notes = with_note(self.notes, note)
        self._ids.add(note.id)


@dataclass(frozen=True, slots=True)
class Memory:
    """What an agent notes and reads; `take` and `read` reach the run, which may be elsewhere."""

    take: Callable[[NoteSpec], None]
    read: Callable[[int, str | None], Awaitable[Notes]]

    def note(
        self,
        text: str,
        *,
        importance: float = 0.5,
        expires_seconds: float | None = None,
        scope: Literal["run", "fleet"] = "run",
    ) -> None:
        """Keep a note for the agents of this run, or with scope `fleet` for later runs of this tenant too.

        Raises `RequestError` for a note without text, or too long, and for a fleet's note in a private run.
        """
        spec = NoteSpec(text=text, importance=importance, expires_seconds=expires_seconds, scope=scope)
        spec.check()
        self.take(spec)

    async def top(self, *, tokens: int = DEFAULT_TOKENS, about: str | None = None) -> Notes:
        """Return the notes that fit best in at most so many tokens, best first; `str()` of it is for a prompt.

        They are ranked by importance, recency and relevance to `about`, by default the agent's task.
        """
        if not 1 <= tokens <= MAX_RECALLED_TOKENS:
            raise RequestError(f"tokens is from 1 to {MAX_RECALLED_TOKENS:,}, got {tokens}", param="tokens")
        return await self.read(tokens, about)


def take_note(context: Context, spec: NoteSpec) -> None:
    """Keep an agent's note, unless it was kept before the run was resumed."""
    spec.check()
    run, call = context.run, context.scopes.next_call()
    asked = asked_of("note", spec)
    run.past.check(context, call, "a note", asked)
    if spec.scope == "fleet":
        _check_tenant(context)
    event = NoteTaken(
        run=run.id,
        at=run.notes.clock(),
        step=context.step,
        agent=context.agent,
        text=spec.text,
        importance=spec.importance,
        expires_seconds=spec.expires_seconds,
        scope=spec.scope,
        call=call,
        asked=asked,
    )
    if not run.notes.has(note_of(event).id):
        if spec.scope == "fleet":
            run.journal.memory.keep(run.tenant, note_of(event))
        run.notes.add(event)
    run.emit(event)


async def read_notes(context: Context, tokens: int, about: str | None) -> Notes:
    """Return the notes that fit best, or what this call read before the run was resumed."""
    run, call = context.run, context.scopes.next_call()
    asked = asked_of("notes", tokens, about)
    run.past.check(context, call, "its notes", asked)
    kept = run.past.notes_read(context, call)
    if kept is not None:
        run.listener(kept)
        return Notes(kept.notes)
    await context.check_open()
    kept_for_fleet = run.journal.memory.notes(run.tenant) if _has_tenant(context) else []
    notes = best_notes(
        [*run.notes.notes, *kept_for_fleet], context.task if about is None else about, run.notes.clock(), tokens
    )
    run.emit(NotesRead(run=run.id, step=context.step, agent=context.agent, notes=notes.notes, call=call, asked=asked))
    return notes


def note_of(event: NoteTaken) -> Note:
    """Return the note that an event tells of."""
    return Note(
        id=f"{event.step}:{event.agent}#{event.call}",
        text=event.text,
        importance=event.importance,
        at=event.at,
        expires_at=None if event.expires_seconds is None else event.at + event.expires_seconds,
        agent=event.agent,
        run=event.run,
        scope=event.scope,
    )


def _has_tenant(context: Context) -> bool:
    """Whether the notes of the tenant are the run's to read: a client without a key shares it with others."""
    return not context.run.is_private and (bool(context.run.tenant) or not current_access().is_limited)


def _check_tenant(context: Context) -> None:
    if context.run.is_private:
        raise RequestError("a private run keeps no notes for later runs; use scope run", param="scope")
    if not _has_tenant(context):
        raise RequestError("a client without a key keeps no notes for later runs; use scope run", param="scope")
