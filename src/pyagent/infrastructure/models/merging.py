"""Merges adapters into a model's folder of safetensors, a piece of a tensor at a time.

The model's files are copied but for the tensors that adapters add to: sizes, headers and types are the same. The new
folder is complete or absent: it is written under another name beside its place, flushed to the disk and renamed. One
process writes a folder at a time; what one that was killed left behind, the next one writes over.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.infrastructure.models.hub_files import STEP_FILE
from pyagent.infrastructure.models.new_place import lock_alone, refuse_no_room

_PIECE_BYTES = 16 << 20
"""Bytes of the model in memory at a time, beside what they become and one tensor's additions."""
_OTHER_WEIGHTS = (".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".tensors", ".index.json")
"""How names of files end that hold the model's weights without the adapter, or say where those are."""
_INDEX = "model.safetensors.index.json"
_SHARD = ".safetensors"
Progress = Callable[[int, int], None]
"""Told how many of how many bytes are written."""


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that was written; `left_out` are files that hold weights without the adapters."""

    path: str
    num_bytes: int
    num_tensors: int
    copied: list[str]
    left_out: list[str]
    seconds: float


def merge_adapters(source: Path, adapters: Sequence[Path], target: Path, *, threads: int, progress: Progress) -> Merged:
    """Write `target`; raises `ModelError` for what cannot be merged, and where the disk has no room for it."""
    started = time.monotonic()
    if not source.is_dir():
        text = f"{source} is a GGUF file; merge into the folder of safetensors that it was made of, then write it anew "
        raise ModelError(f"{text}with `pyagent models quantize`", model=str(source))
    _refuse_taken(target)
    if target.resolve().is_relative_to(source.resolve()):
        raise ModelError(f"{target} is in the model's folder; --output names another place", model=str(target))
    try:
        merge = _rust.AdapterMerge.open(source, adapters)
        shards = [_Shard(path, size, tensors) for path, size, tensors in merge.shards()]
        copied, left_out = _others(source, {shard.path for shard in shards})
        total = sum(shard.num_bytes for shard in shards) + sum(file.stat().st_size for file in copied)
        with _new_folder(target, total) as folder:
            _Writer(merge, threads, total, progress).write(folder, source, shards, copied)
    except _rust.ModelFileError as error:
        raise ModelError(str(error), model=str(source)) from error
    except OSError as error:
        raise ModelError(f"{target} cannot be written: {error.strerror or error}", model=str(target)) from error
    return Merged(
        path=str(target),
        num_bytes=total,
        num_tensors=sum(len(shard.tensors) for shard in shards),
        copied=[str(file.relative_to(source)) for file in copied],
        left_out=[str(file.relative_to(source)) for file in left_out],
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True, slots=True)
class _Shard:
    """A file of the model; of the tensors in it that adapters add to, name, first byte, byte after the last, rows."""

    path: Path
    num_bytes: int
    tensors: Sequence[tuple[str, int, int, int]]


def _others(source: Path, shards: set[Path]) -> tuple[list[Path], list[Path]]:
    """Return the other files of a folder and of those in it: which are copied, and which have weights of their own.

    Folders in it hold modules that stand behind the model, such as the pooling of a model that embeds.
    """
    copied: list[Path] = []
    left_out: list[Path] = []
    for place, folders, names in os.walk(source):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if link := next((path for path in (Path(place, name) for name in folders) if path.is_symlink()), None):
            raise ModelError(f"{link} is a link to a folder; put the folder itself in its place", model=str(source))
        for file in (Path(place, name) for name in sorted(names)):
            if file in shards or not file.is_file():
                continue
            is_weights = file.name.endswith(_OTHER_WEIGHTS) and file.name != _INDEX
            is_weights |= file.parent == source and file.suffix == _SHARD
            is_weights &= not STEP_FILE.fullmatch(file.relative_to(source).as_posix())
            (left_out if is_weights else copied).append(file)
    return copied, left_out


@dataclass(slots=True)
class _Writer:
    """Writes a model's files."""

    merge: _rust.AdapterMerge
    threads: int
    total: int
    progress: Progress
    done: int = 0

    def write(self, folder: Path, source: Path, shards: Sequence[_Shard], others: Sequence[Path]) -> None:
        """Write all of them, each flushed to the disk."""
        for shard in shards:
            with self._file(folder / shard.path.name) as file, shard.path.open("rb") as old:
                self._write_shard(file, old, shard)
        for other in others:
            path = folder / other.relative_to(source)
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._file(path) as file, other.open("rb") as old:
                self._copy(file, old, 0, other.stat().st_size)

    @contextlib.contextmanager
    def _file(self, path: Path) -> Generator[BinaryIO]:
        with path.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def _write_shard(self, file: BinaryIO, old: BinaryIO, shard: _Shard) -> None:
        place = 0
        for name, start, end, num_rows in shard.tensors:
            self._copy(file, old, place, start)
            added = self.merge.tensor(name)
            for first, count in _pieces(num_rows, (end - start) // num_rows):
                self._put(file, added.rows(first, count, self.threads))
            place = end
        self._copy(file, old, place, shard.num_bytes)

    def _copy(self, file: BinaryIO, old: BinaryIO, start: int, end: int) -> None:
        old.seek(start)
        while start < end:
            data = old.read(min(_PIECE_BYTES, end - start))
            if not data:
                raise OSError(errno.EIO, f"{old.name} has become shorter meanwhile")
            self._put(file, data)
            start += len(data)

    def _put(self, file: BinaryIO, data: bytes) -> None:
        file.write(data)
        self.done += len(data)
        self.progress(self.done, self.total)


def _pieces(num_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    most = max(1, _PIECE_BYTES // row_bytes)
    for first in range(0, num_rows, most):
        yield first, min(most, num_rows - first)


@contextlib.contextmanager
def _new_folder(target: Path, num_bytes: int) -> Generator[Path]:
    """A folder that takes its place when the block ends, and is gone when it fails."""
    refuse_no_room(target, num_bytes)
    partial = target.with_name(f".{target.name}.partial")
    with _own(partial, target):
        try:
            yield partial
            _refuse_taken(target)
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial)
            raise


@contextlib.contextmanager
def _own(partial: Path, target: Path) -> Generator[None]:
    """Have an empty folder for oneself. Raises `ModelError` where another process has it."""
    with contextlib.suppress(FileExistsError):
        partial.mkdir()
    try:
        folder = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError as error:
        raise ModelError(f"{partial} is no folder; remove it", model=str(target)) from error
    try:
        lock_alone(folder, partial, target)
        for left in partial.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        yield
    finally:
        os.close(folder)


def _refuse_taken(target: Path) -> None:
    if os.path.lexists(target):
        raise ModelError(f"{target} is there already; --output names another", model=str(target))
