"""SQLite files that this process has open: nothing else here may open one of them, be it to read it.

Closing a descriptor takes away all locks that the process holds on the file, by whatever descriptor (fcntl(2)). Another
process would then delete the log that is still written to, and what is written is lost. Any thread may call.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

_ENDS = ("", "-wal", "-shm")


class OpenFile(Protocol):
    """What has a SQLite file open, and its log and the log's index beside it."""

    path: Path


_OPEN: WeakSet[OpenFile] = WeakSet()
_LOCK = threading.Lock()


def note_opened(file: OpenFile) -> None:
    """Take in that a file is open, until it is told to be closed, or gone."""
    with _LOCK:
        _OPEN.add(file)


def note_closed(file: OpenFile) -> None:
    """Take in that a file is closed."""
    with _LOCK:
        _OPEN.discard(file)


def is_live(status: os.stat_result, name: str) -> bool:
    """Whether what stands under a name is one of those files, by this name or, as a hard link, by another."""
    with _LOCK:
        paths = [f"{file.path}{end}" for file in _OPEN for end in _ENDS]
    near = [path for path in paths if status.st_nlink > 1 or os.path.basename(path) == name]
    return any(_is_same(path, status) for path in near)


def _is_same(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), status)
    except OSError:
        return False
