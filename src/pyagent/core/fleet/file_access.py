"""Which files the agents and tools of a run may read: those of the user that started it.

A person at this machine may name any file. Somebody who reaches an agent over HTTP sees none, or those below one
folder, and is never told what there is beside it: what is not there and what is outside read alike. The access is a
run's own; it goes with its tasks and threads.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from pyagent.core.errors import RequestError


@dataclass(frozen=True, slots=True)
class FileAccess:
    """All files, or when `is_limited` those below `root`, if there is one."""

    is_limited: bool = False
    root: Path | None = None

    @classmethod
    def below(cls, root: Path | None) -> FileAccess:
        """Files below a folder only; none without one."""
        return cls(is_limited=True, root=None if root is None else root.expanduser().resolve())


ALL_FILES = FileAccess()
_ACCESS: ContextVar[FileAccess] = ContextVar("file_access", default=ALL_FILES)


def grant(access: FileAccess) -> None:
    """Give the current task, and those it starts, this access."""
    _ACCESS.set(access)


def current_access() -> FileAccess:
    """Return the access that the current task has."""
    return _ACCESS.get()


def find_path(name: str) -> Path | None:
    """Return the file or folder that a run's task names, links followed; None when there is none that it may read."""
    access = _ACCESS.get()
    try:
        if not access.is_limited:
            path = Path(name).expanduser()
        elif access.root is None:
            return None
        else:
            path = (access.root / name).resolve()
            if not path.is_relative_to(access.root) or not (path.is_file() or path.is_dir()):
                return None  # a named pipe or a device would hold its reader up for ever
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, links in a circle, a null character
        return None


def readable_path(name: str) -> Path:
    """As `find_path`; raises `RequestError` when there is none."""
    access = _ACCESS.get()
    if access.is_limited and access.root is None:
        raise RequestError(
            "agents of this run read no files; server.files_root names a folder for clients", param="path"
        )
    path = find_path(name)
    if path is None:
        raise RequestError(f"there is no file or folder {name!r}", param="path")
    return path


def shown_path(path: str) -> str:
    """Return a path as the run's task may be told of it: below its folder."""
    root = _ACCESS.get().root
    return path if root is None else str(Path(path).relative_to(root))


def short_path(path: str) -> str:
    """Return the path as seen from the working folder, where that is shorter."""
    return min(path, os.path.relpath(path), key=len)
