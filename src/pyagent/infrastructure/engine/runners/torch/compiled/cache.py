"""Compiled code on disk, so that the next start reads what this one compiled.

Torch names entries by the graph, its own version and code, the device and its options: what changed is compiled anew,
and what was compiled before stays until there is too much. Entries are code that is run when it is read: the folder is
the user's alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import torch

from pyagent.core.errors import ConfigError

KEY = "engine.compile"
_MOST_BYTES = 1 << 30
_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def open_cache(folder: Path) -> None:
    """Have torch keep compiled code in a folder, less what is too much. Raises `ConfigError` for another user's."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_uid != os.getuid():
            text = (
                f"{KEY}: {folder} keeps code that is run, and belongs to another user; remove it, or set {KEY} to off"
            )
            raise ConfigError(text, key=KEY)
        folder.chmod(stat.S_IRWXU)
        prune(folder, _MOST_BYTES)
    except OSError as error:
        text = f"{KEY}: {folder}, where compiled code is kept, cannot be written: {error}; mend it, or set {KEY} to off"
        raise ConfigError(text, key=KEY) from error
    os.environ.setdefault(_VARIABLE, str(folder / f"torch-{torch.__version__}"))


def prune(folder: Path, most_bytes: int) -> None:
    """Remove the files written longest ago, until those that are left take no more."""
    files = [(path.stat(), path) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    files.sort(key=lambda one: one[0].st_mtime, reverse=True)
    total = 0
    for found, path in files:
        total += found.st_size
        if total > most_bytes:
            path.unlink(missing_ok=True)
