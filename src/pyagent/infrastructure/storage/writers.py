"""Which processes still write: each holds a lock on a file of its own, which the kernel lets go of when it dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

from pyagent.infrastructure.private_files import make_private_folder


class Writers:
    """The lock files of a folder, and the one of this process, made when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None
        self._name = ""

    def own_name(self) -> str:
        """Return the name of this writer, which `is_alive` until it closes; raises `OSError` when it cannot be made."""
        if self._lock is None:
            make_private_folder(self._folder)
            name = secrets.token_hex(8)
            lock = os.open(self._folder / name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock, self._name = lock, name
        return self._name

    def is_own(self, name: str) -> bool:
        """Whether it is this writer's name."""
        return self._lock is not None and name == self._name

    def is_alive(self, name: str) -> bool:
        """Whether the writer of that name lives; the file of one that does not is deleted."""
        if self.is_own(name):
            return True
        try:
            lock = os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self._folder / name).unlink(missing_ok=True)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def close(self) -> None:
        """Write no more."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                (self._folder / self._name).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None
