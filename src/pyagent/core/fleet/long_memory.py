"""Notes that are kept across runs, for a tenant. On disk it is `infrastructure.storage.notes`'s business."""

from __future__ import annotations

import secrets
from collections import defaultdict
from typing import Protocol

import msgspec

from pyagent.core.fleet.agent import unknown_name
from pyagent.core.fleet.notes import Note, with_note


class LongMemory(Protocol):
    """Keeps notes of tenants. Ids are a tenant's own; one never sees another's."""

    def keep(self, tenant: str, note: Note) -> Note:
        """Keep a note; return it with its id. One that says the same is replaced."""
        ...

    def notes(self, tenant: str) -> list[Note]:
        """Return a tenant's notes, oldest first."""
        ...

    def remove(self, tenant: str, note: str) -> None:
        """Delete a note; raises `RequestError` for an unknown one."""
        ...

    def clear(self, tenant: str) -> int:
        """Delete a tenant's notes; return how many there were."""
        ...


class NotesInMemory:
    """Keeps notes as long as the program runs."""

    def __init__(self) -> None:
        self._notes: defaultdict[str, list[Note]] = defaultdict(list)

    def keep(self, tenant: str, note: Note) -> Note:
        """Keep a note."""
        note = msgspec.structs.replace(note, id=new_note_id())
        self._notes[tenant] = with_note(self._notes[tenant], note)
        return note

    def notes(self, tenant: str) -> list[Note]:
        """Return a tenant's notes."""
        return list(self._notes[tenant])

    def remove(self, tenant: str, note: str) -> None:
        """Delete a note."""
        left = [each for each in self._notes[tenant] if each.id != note]
        if len(left) == len(self._notes[tenant]):
            raise unknown_name("note", note, [each.id for each in left])
        self._notes[tenant] = left

    def clear(self, tenant: str) -> int:
        """Delete a tenant's notes."""
        return len(self._notes.pop(tenant, []))


def new_note_id() -> str:
    """Return an id that no other note has."""
    return f"n-{secrets.token_hex(4)}"
