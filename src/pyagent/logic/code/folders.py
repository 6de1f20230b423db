"""Which folders and files below a path are the code itself: no hidden ones, caches, environments or links."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

_SKIPPED = frozenset({"__pycache__", "node_modules"})
_CACHE_TAG = "CACHEDIR.TAG"
"""Marks a folder as a cache (bford.info/cachedir): those of Cargo, pytest and others."""


def is_skipped(folder: Path) -> bool:
    """Whether a folder is hidden, a cache, an environment of Python, or what a package manager fetched."""
    is_named = folder.name in _SKIPPED or folder.name.startswith(".")
    return is_named or (folder / "pyvenv.cfg").is_file() or (folder / _CACHE_TAG).is_file()


def files_below(root: Path, is_wanted: Callable[[str], bool]) -> Iterator[Path]:
    """Yield the files below a folder whose name is wanted, in a fixed order; a file itself whatever its name."""
    if root.is_file():
        yield root
    for folder, inner, names in os.walk(root, followlinks=False):
        inner[:] = sorted(name for name in inner if not is_skipped(Path(folder, name)))
        for name in sorted(names):
            file = Path(folder, name)
            if is_wanted(name) and not file.is_symlink():
                yield file
