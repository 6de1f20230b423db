"""A file replaced whole, in an open folder: the new content is written beside it and renamed into its place.

A reader, also one after a crash, sees the old content or the new. What the old file was is kept: mode, owner,
extended attributes. Knows no names outside the folder that is given.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import suppress

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ATTRIBUTES = {errno.ENOTSUP, errno.ENODATA, errno.EPERM, errno.EACCES}


def status_at(folder: int, leaf: str) -> os.stat_result | None:
    """Return what stands under a name, links not followed; None when nothing does."""
    try:
        return os.stat(leaf, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def replace_at(folder: int, leaf: str, data: bytes, partial: str, *, is_folder_synced: bool = True) -> None:
    """Write `data` as `partial`, then put that in the place of `leaf`. Raises `OSError`, and then nothing changed."""
    old = status_at(folder, leaf)
    with suppress(FileNotFoundError):  # what a process that was killed left
        os.unlink(partial, dir_fd=folder)
    descriptor = os.open(partial, _CREATE, 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o777, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if old is not None:
                _become(descriptor, folder, leaf, old)
            os.fsync(descriptor)
        os.rename(partial, leaf, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial, dir_fd=folder)
        raise
    if is_folder_synced:
        os.fsync(folder)


def _become(descriptor: int, folder: int, leaf: str, old: os.stat_result) -> None:
    """Give the new file the old one's owner, attributes and mode; the mode last, as a new owner takes bits of it."""
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    if sys.platform == "linux":
        _copy_attributes(descriptor, folder, leaf)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _copy_attributes(descriptor: int, folder: int, leaf: str) -> None:
    source = os.open(leaf, _READ, dir_fd=folder)
    try:
        for name in _attributes(source):
            try:
                os.setxattr(descriptor, name, os.getxattr(source, name))
            except OSError as error:
                if not name.startswith("security.") or error.errno not in _NO_ATTRIBUTES:
                    raise  # an access list, or what a person wrote: a file without it is another
    finally:
        os.close(source)


def _attributes(descriptor: int) -> list[str]:
    try:
        return os.listxattr(descriptor)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES:
            return []
        raise
