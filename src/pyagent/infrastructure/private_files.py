"""Folders and files of this user alone: what people asked and what they were answered stands in them.

Modes 0700 and 0600 from the first byte, whatever the umask is. What stands there from before and is open to others is
closed to them, which is told. No other user can write in folders made on the way. Knows nothing of what files hold.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

logger = logging.getLogger("pyagent.files")


def make_private_folder(folder: Path) -> None:
    """Make a folder that only this user can enter, or close one that is there. Raises `OSError`."""
    missing = [around for around in folder.parents if not around.exists()]
    for around in reversed(missing):
        around.mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    close_to_others(folder)


def close_to_others(path: Path) -> None:
    """Take a file or folder of this user's away from all others; what is not there, or shared as `/tmp` is, stays."""
    try:
        status = path.stat()
        if status.st_uid != os.geteuid() or not status.st_mode & _OTHERS or status.st_mode & stat.S_ISVTX:
            return
        path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
    except OSError as error:  # gone, or on a file system that has no modes
        logger.debug("%s cannot be closed to other users: %s", path, error)
    else:
        is_exposed = not stat.S_ISDIR(status.st_mode) or status.st_mode & _WRITTEN_BY_OTHERS
        level = logging.WARNING if is_exposed else logging.INFO
        logger.log(level, "%s was open to other users of this machine; it is closed to them now", path)


def opened_private(path: str, flags: int) -> int:
    """Open a file; one that is new is this user's alone. An `opener` for `open`."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
