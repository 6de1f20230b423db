"""What adapters are known by: the content of their files, so that cached keys and values are never another's."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

_CHUNK_BYTES = 1 << 20
_CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.tensors", "adapter_model.bin")
"""The first that is there is read."""


def adapter_id_of(path: Path) -> int:
    """Return 64 bits of a digest of a folder's or file's content, never 0. Raises `OSError`."""
    digest = blake2b(digest_size=8)
    for file in _files(path) if path.is_dir() else [path]:
        if not file.is_file():
            raise OSError(f"{file} is no file")
        digest.update(file.stat().st_size.to_bytes(8, "little"))
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    return int.from_bytes(digest.digest(), "little") or 1


def _files(folder: Path) -> list[Path]:
    """Return what is read of a folder; what torch saved only where there is nothing else."""
    weights = [folder / name for name in _WEIGHTS]
    return [folder / _CONFIG, next((file for file in weights if file.exists()), weights[0])]


def stack_id_of(paths: Sequence[Path]) -> tuple[list[Path], int]:
    """Return adapters that add up in the order of their contents, and their id together: its own where it is one.

    Sums depend on their order in the last bit: in this one neither they nor the id depend on names. Raises `OSError`.
    """
    ids = [adapter_id_of(path) for path in paths]
    ordered = sorted(range(len(paths)), key=ids.__getitem__)
    if len(ids) == 1:
        return [*paths], ids[0]
    digest = blake2b(digest_size=8, person=b"stack")
    for place in ordered:
        digest.update(ids[place].to_bytes(8, "little"))
    return [paths[place] for place in ordered], int.from_bytes(digest.digest(), "little") or 1
