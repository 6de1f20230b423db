"""What tells a model's weights apart from all others: a hash of its files, whatever they are called.

Of the files that were loaded: they are looked at before they are loaded, and hashed only where they are still the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_READ_BYTES = 1 << 20
_OF_FOLDER = ("*.safetensors", "model.tensors", "pytorch_model*.bin", "config.json")
"""What a folder's KV depends on; its tokenizer does not change what tokens do."""


class WeightFile(NamedTuple):
    """A file as it was found: another one in its place, or one that was written to, is not equal."""

    path: Path
    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def found(cls, path: Path, told: os.stat_result) -> WeightFile:
        """Return a file by what the system tells of it."""
        return cls(path, told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns)


WeightFiles = tuple[WeightFile, ...]


def find_weights(path: Path) -> WeightFiles:
    """Return a GGUF file, or those of a folder, as they are now; none where they cannot be looked at."""
    try:
        return tuple(WeightFile.found(file, file.stat()) for file in _files(path))
    except OSError:
        return ()  # what loads them says it


def hash_weights(files: WeightFiles, is_closed: Callable[[], bool] = lambda: False) -> str:
    """Return the hash of files that are as they were found; empty where `is_closed` says to stop. Raises `OSError`."""
    if not files:
        raise OSError("no files of weights were found")
    digest = hashlib.blake2b(digest_size=16, person=b"pyagent weights")
    buffer = bytearray(_READ_BYTES)
    for file in files:
        with file.path.open("rb", buffering=0) as opened:
            while (num_bytes := opened.readinto(buffer)) and not is_closed():
                digest.update(memoryview(buffer)[:num_bytes])
            _check_same(file, opened.fileno())  # now: it may be written to while it is read
    return "" if is_closed() else digest.hexdigest()


def _check_same(file: WeightFile, opened: int) -> None:
    if WeightFile.found(file.path, os.fstat(opened)) != file:
        raise OSError(f"{file.path} was changed or replaced after it was loaded; load the model again")


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        for pattern in _OF_FOLDER:
            yield from sorted(path.glob(pattern))
