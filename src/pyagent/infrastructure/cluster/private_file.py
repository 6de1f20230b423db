"""Files that hold secrets: mode 0600 from their first byte, replaced as a whole, and read as hostile input.

Knows nothing of what the files mean. Invariant: a reader sees the old content or the new, never half of either, and
whatever a file holds ends in a value or in a `ClusterError`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

import msgspec

from pyagent.core.errors import ClusterError

MAX_FILE_BYTES = 4 << 20
NODE_LOCK = "node.lock"
"""Held by the one node that runs on a folder: two processes with its keys would be one id twice."""
_OTHERS = 0o077
_MAX_SHOWN = 300
_ELSEWHERE = "run this as the user whose file it is, or set paths.data"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_FOLDER = frozenset({errno.ENOTDIR, errno.EEXIST})
T = TypeVar("T")

logger = logging.getLogger(__name__)


class FileError(ClusterError):
    """A file of this node itself cannot be read or written: no peer is to blame, and its user is to be told."""


def is_there(file: Path) -> bool:
    """Whether there is a file. Raises `FileError` where that cannot be found out, as in a folder of another user."""
    try:
        file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise FileError(f"{shortened(file)} cannot be read: {error.strerror}; {_ELSEWHERE}") from error
    return True


def shortened(file: Path) -> str:
    """Return a path as an error may hold it: the end of one that is very long."""
    text = str(file)
    return text if len(text) <= _MAX_SHOWN else f"...{text[-_MAX_SHOWN:]}"


def read_private(file: Path, kind: type[T], advice: str) -> T | None:
    """Return what the file holds, as `kind`; None where there is no file.

    A file that others may read is closed to them, and that is told. Raises `ClusterError`, which ends in `advice`.
    """
    if not is_there(file):
        return None
    try:
        # neither through a link, which would close another file to others, nor at a pipe, which would wait for ever
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise FileError(f"{file} is no regular file; {advice}")
            _close_to_others(file, opened.fileno())
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise FileError(f"{file} is longer than {MAX_FILE_BYTES >> 20} MiB, which it never should be; {advice}")
        return msgspec.json.decode(content, type=kind)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise FileError(f"{shortened(file)} cannot be read: {error.strerror}; {_ELSEWHERE}") from error
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FileError(f"{file} cannot be read: {_without_values(error)}; {advice}") from None


def write_private(file: Path, value: object) -> None:
    """Replace the file's content in one step. Raises `ClusterError` where that cannot be done."""
    with _written_beside(file, msgspec.json.encode(value)) as partial:
        partial.replace(file)


def check_room(file: Path, num_bytes: int) -> None:
    """Raise `ClusterError` where the file could not be replaced by one of so many bytes."""
    with _written_beside(file, bytes(num_bytes)) as partial:
        partial.unlink()


@contextlib.contextmanager
def _written_beside(file: Path, content: bytes) -> Generator[Path]:
    """A new file beside another, with this content on the disk; nothing is left of it where that cannot be done."""
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(partial, flags, 0o600), "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        yield partial
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise _unwritable(file, error) from error


def _unwritable(file: Path, error: OSError) -> FileError:
    told = f"{shortened(file)} cannot be written: {error.strerror}"
    if error.errno in _FULL:
        return FileError(f"{told}; make room on its disk")
    if error.errno in _NO_FOLDER:
        return FileError(f"{told}; what stands where a folder is to be must go, or set paths.data")
    return FileError(f"{told}; make its folder writable, or set paths.data")


@contextlib.contextmanager
def locked(folder: Path, name: str = ".lock", *, refusal: str = "") -> Generator[None]:
    """Alone with a folder's files among all processes; the lock of a process that dies ends with it.

    Another process is waited for, unless there is a `refusal`: what `ClusterError` says then.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unwritable(folder / name, error) from error
    try:
        _lock(lock, refusal)
        yield
    finally:
        os.close(lock)


def _lock(lock: int, refusal: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if refusal else 0))
    except BlockingIOError as error:
        raise ClusterError(refusal) from error
    except OSError as error:
        raise ClusterError(f"a file cannot be locked: {error.strerror}") from error


def _close_to_others(file: Path, descriptor: int) -> None:
    if os.fstat(descriptor).st_mode & _OTHERS:
        logger.warning("%s could be read by other users of this machine; it is closed to them now", file)
        os.fchmod(descriptor, 0o600)


def _without_values(error: Exception) -> str:
    """Say what is wrong; the text of an error of ours or of the file's format holds no content of the file."""
    return (error.strerror or "input/output error") if isinstance(error, OSError) else str(error)
