"""What tells a model's weights apart from all others: a hash of its files, whatever they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

_READ_BYTES = 1 << 20
_OF_FOLDER = ("*.safetensors", "config.json")
"""What a folder's KV depends on; its tokenizer does not change what tokens do."""


def hash_weights(path: Path, is_closed: Callable[[], bool] = lambda: False) -> str:
    """Return the hash of a GGUF file or safetensors folder; empty where `is_closed` says to stop. Raises `OSError`."""
    digest = hashlib.blake2b(digest_size=16, person=b"pyagent weights")
    buffer = bytearray(_READ_BYTES)
    for file in _files(path):
        with file.open("rb", buffering=0) as opened:
            while (num_bytes := opened.readinto(buffer)) and not is_closed():
                digest.update(memoryview(buffer)[:num_bytes])
    return "" if is_closed() else digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        for pattern in _OF_FOLDER:
            yield from sorted(path.glob(pattern))
