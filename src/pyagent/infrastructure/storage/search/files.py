"""The texts of a folder's files, searched by passages. An index follows its folder: by size and time of each file, and
where these changed by content.

Only what `Folder` reads is found: text in UTF-8, no links, nothing outside.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from pyagent.core.errors import RequestError
from pyagent.core.search import MAX_PASSAGES, passages_of
from pyagent.infrastructure.storage.search.index import SqliteIndex
from pyagent.infrastructure.tools.folder import Folder

_PREFIX = "files-"
_MAX_FOLDERS = 16
MAX_FILES = 20_000
_MAX_FILE_CHARACTERS = 1_000_000


def index_of_folder(folder: Path, root: Path) -> SqliteIndex:
    """Return the index of the files below `root`; those of folders that were not searched for long are deleted."""
    name = f"{_PREFIX}{blake2b(os.fsencode(root), digest_size=8).hexdigest()}"
    kept = sorted(folder.glob(f"{_PREFIX}*.db"), key=_used_at, reverse=True)
    for path in kept[_MAX_FOLDERS:]:
        if path.stem != name:
            SqliteIndex(folder, path.stem).discard()
    return SqliteIndex(folder, name)


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def follow_folder(index: SqliteIndex, root: Path) -> str:
    """Bring an index up to date with the files below `root`; return what is left out, in words."""
    folder, stamps = Folder(root), index.stamps()
    listed = list(islice(folder.files(), MAX_FILES + 1))
    for name in listed[:MAX_FILES]:
        stamp = _stamp(root / name)
        if stamps.get(name) != stamp:
            _put(index, folder, name, stamp)
    gone = sorted(stamps.keys() - set(listed[:MAX_FILES]))
    if gone:
        index.remove(gone)
    return f"only the first {MAX_FILES:,} files are searched" if len(listed) > MAX_FILES else ""


def _put(index: SqliteIndex, folder: Folder, name: str, stamp: str) -> None:
    text = ""
    with suppress(RequestError):  # not text, too long, or gone: nothing of it is found
        text = folder.read(name)
    index.put(name, stamp, list(islice(passages_of(text[:_MAX_FILE_CHARACTERS], is_lined=True), MAX_PASSAGES)))


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size}:{status.st_mtime_ns}"
