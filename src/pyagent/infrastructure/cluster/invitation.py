"""The open invitation of a node: a join code, kept in a file beside the cluster's, until it is used, tried out or old.

`pyagent cluster invite` writes it, and the door of whichever process runs here answers it. A try is written down before
the exchange begins, so that no number of connections at once, or broken off, gives more than three.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from pyagent.core.cluster.join_code import CODE_CHARS, code_from
from pyagent.infrastructure.cluster.private_file import locked, read_private, write_private

VALID_SECONDS = 600.0
MAX_TRIES = 3
_FILE = "invitation.json"

Outcome = Literal["open", "used", "tried out", "expired", "replaced", "none"]


class Invitation(msgspec.Struct, frozen=True):
    """A code and what became of it. `made_at` is in seconds of the system's clock."""

    code: str
    made_at: float
    num_tries: int = 0
    used_by: str = ""

    def __repr__(self) -> str:
        return f"Invitation(made_at={self.made_at}, num_tries={self.num_tries}, used_by={self.used_by!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return what tracebacks of `rich` show; a struct's own shows the code."""
        return [("made_at", self.made_at), ("num_tries", self.num_tries), ("used_by", self.used_by)]

    def outcome(self, now: float) -> Outcome:
        """Return whether it may still be used, or why not. A clock that was set back ends it too."""
        if self.used_by:
            return "used"
        if self.num_tries >= MAX_TRIES:
            return "tried out"
        return "open" if 0 <= now - self.made_at < VALID_SECONDS else "expired"


class InvitationFile:
    """The file of a node's invitation; a new one replaces the one before."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._file = folder / _FILE
        self._clock = clock

    def make(self) -> Invitation:
        """Open a new invitation."""
        invitation = Invitation(code_from(secrets.token_bytes(CODE_CHARS)), self._clock())
        with locked(self._folder):
            write_private(self._file, invitation)
        return invitation

    def find(self) -> Invitation | None:
        """Return the invitation, open or not; None where there was none."""
        return read_private(self._file, Invitation, "remove it and invite again with `pyagent cluster invite`")

    def find_open(self) -> Invitation | None:
        """Return the invitation if it may still be used."""
        found = self.find()
        return found if found is not None and found.outcome(self._clock()) == "open" else None

    def outcome(self, invitation: Invitation | None = None) -> Outcome:
        """Return what became of an invitation; without one, of the last that was made."""
        found = self.find()
        if found is None:
            return "none"
        if invitation is not None and found.code != invitation.code:
            return "replaced"
        return found.outcome(self._clock())

    def withdraw(self, invitation: Invitation) -> None:
        """End an invitation that is still open; one that was made since stays."""
        with locked(self._folder):
            if self.outcome(invitation) == "open":
                self._file.unlink(missing_ok=True)

    def note_try(self, code: str) -> bool:
        """Write down a try of a code, before it is made; False where the invitation is no longer open."""
        with locked(self._folder):
            found = self.find_open()
            if found is None or found.code != code:
                return False
            write_private(self._file, msgspec.structs.replace(found, num_tries=found.num_tries + 1))
        return True

    def use(self, code: str, node_id: str) -> bool:
        """Use it up for a node whose try was right; False where another node did, or it is too old."""
        with locked(self._folder):
            found = self.find()
            if found is None or found.code != code or found.used_by:
                return False
            if not 0 <= self._clock() - found.made_at < VALID_SECONDS:
                return False
            write_private(self._file, msgspec.structs.replace(found, used_by=node_id))
        return True
