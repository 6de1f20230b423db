"""Quantises a model into a GGUF file, a piece of a tensor at a time; the file is complete or absent.

It is written under another name beside its place, flushed to the disk and renamed. One process writes a file at a time;
what one that was killed left behind, the next one writes over.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from array import array
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.infrastructure.models.new_place import lock_alone, refuse_no_room
from pyagent.infrastructure.models.quantize.gguf_file import Tensor, header, padded, uint32
from pyagent.infrastructure.models.quantize.mixture import TYPE_TO_BASE, TYPE_TO_FILE_TYPE, Mixture, is_matrix
from pyagent.infrastructure.models.quantize.sources import Source, is_part, open_source, refuse_quantised

_PIECE_VALUES = 4 << 20
"""Numbers in memory at a time: as 32-bit floats 16 MiB, and what they become."""
Progress = Callable[[int, int], None]
"""Told how many of how many bytes are written."""


class Quantized(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was written. Bytes of tensors are those of `bits_per_weight`."""

    path: str
    type: str
    bytes_before: int
    bytes_after: int
    num_weights: int
    bits_per_weight: float
    types: dict[str, int]
    seconds: float


def quantize_model(  # noqa: PLR0913 - each is a choice of the user's
    source: Path, target: Path, type_name: str, *, overwrites: bool, threads: int, progress: Progress
) -> Quantized:
    """Write `target`; raises `ModelError` for a model that cannot be, and where the disk has no room for it."""
    started = time.monotonic()
    if target.exists() and not target.is_file():  # a folder, or a device, which a rename would take away
        raise ModelError(f"{target} is not a regular file; --output names one", model=str(target))
    if target.exists() and not overwrites:
        raise _taken(target)
    _refuse_own(source, target)
    model = open_source(source)
    refuse_quantised(model, TYPE_TO_BASE[type_name])
    plan = _plan(model, type_name)
    if not plan:
        raise ModelError(f"{source} has no tensors; give a whole model", model=str(source))
    start = header(_metadata(model, type_name), plan)
    total = len(start) + _tensor_bytes(plan)
    try:
        with _new_file(target, total, overwrites=overwrites) as file:
            _Writer(file, model, threads).write(plan, start, total, progress)
    except _rust.ModelFileError as error:
        raise ModelError(str(error), model=str(source)) from error
    except OSError as error:
        raise ModelError(f"{target} cannot be written: {error.strerror or error}", model=str(target)) from error
    num_weights, num_bytes = sum(one.num_values for one in plan), sum(one.num_bytes for one in plan)
    return Quantized(
        path=str(target),
        type=type_name,
        bytes_before=model.file_bytes,
        bytes_after=total,
        num_weights=num_weights,
        bits_per_weight=8 * num_bytes / num_weights,
        types=_count_types(plan),
        seconds=time.monotonic() - started,
    )


def planned_bytes(source: Path, type_names: Sequence[str]) -> dict[str, int]:
    """Return how large the file of each type would be; writes nothing. Raises `ModelError` as quantising would."""
    model = open_source(source)
    sizes: dict[str, int] = {}
    start_bytes = 0
    for name in type_names:
        refuse_quantised(model, TYPE_TO_BASE[name])
        plan = _plan(model, name)
        # Of every type it is as long, and a large vocabulary is in it.
        start_bytes = start_bytes or len(header(_metadata(model, name), plan))
        sizes[name] = start_bytes + _tensor_bytes(plan)
    return sizes


def _tensor_bytes(plan: Sequence[Tensor]) -> int:
    return sum(padded(tensor.num_bytes) for tensor in plan)


def _plan(model: Source, type_name: str) -> list[Tensor]:
    tensors = model.tensors()
    is_tied = all(tensor.name != "output.weight" for tensor in tensors)
    mixture = Mixture(type_name, model.num_layers, is_tied, model.num_experts)
    plan: list[Tensor] = []
    for name, dims, own in tensors:
        kind = mixture.type_of(name, dims[0]) if is_matrix(name, len(dims)) else "F32"
        plan.append(Tensor(name, dims, own if name in model.kept else kind))
    return plan


def _metadata(model: Source, type_name: str) -> dict[str, bytes]:
    own = {"general.quantization_version": uint32(2), "general.file_type": uint32(TYPE_TO_FILE_TYPE[type_name])}
    return model.metadata | own


def _count_types(plan: Sequence[Tensor]) -> dict[str, int]:
    names = [tensor.type_name for tensor in plan]
    return {name: names.count(name) for name in dict.fromkeys(names)}


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes a model's tensors into a file."""

    file: BinaryIO
    model: Source
    threads: int

    def write(self, plan: Sequence[Tensor], start: bytes, total: int, progress: Progress) -> None:
        """Write all of it. The model is compared before the first matrix; what is computed comes before, and counts."""
        self.file.write(start)
        self.file.truncate(total)
        first = next((tensor for tensor in plan if len(tensor.dims) > 1), None)
        for tensor in plan:
            if tensor is first:
                self.file.flush()
                self.model.check(Path(self.file.name))
            self._write_tensor(tensor, lambda: progress(self.file.tell(), total))
        progress(total, total)

    def _write_tensor(self, tensor: Tensor, told: Callable[[], None]) -> None:
        cols = tensor.dims[0] if tensor.dims else 1
        num_rows = tensor.num_values // cols
        most_rows = max(1, _PIECE_VALUES // cols)
        for first in range(0, num_rows, most_rows):
            self.file.write(self._rows(tensor, cols, first, min(most_rows, num_rows - first)))
            told()
        self.file.write(bytes(padded(tensor.num_bytes) - tensor.num_bytes))

    def _rows(self, tensor: Tensor, cols: int, first: int, count: int) -> bytes:
        """Return rows of a tensor as they are written."""
        if tensor.name in self.model.kept:
            return self.model.kept[tensor.name](first, count)
        values = array("f", bytes(4 * cols * count))
        self.model.read(tensor.name, first, values)
        try:
            return _rust.quantise(tensor.type_name, values, self.threads)
        except ValueError as error:
            text = f"{self.model.path}: tensor '{tensor.name}' cannot be {tensor.type_name}: {error}"
            raise ModelError(text, model=str(self.model.path)) from error


@contextlib.contextmanager
def _new_file(target: Path, num_bytes: int, *, overwrites: bool) -> Generator[BinaryIO]:
    """A file that takes its place when the block ends, and is gone when it fails."""
    refuse_no_room(target, num_bytes)
    partial = target.with_name(f".{target.name}.partial")
    with open(partial, "r+b", opener=_open_own) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ModelError(f"{partial} is not a regular file; remove it", model=str(target))
        lock_alone(file.fileno(), partial, target)
        try:
            file.truncate(0)
            yield file
            file.flush()
            os.fsync(file.fileno())
            _put(partial, target, overwrites=overwrites)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _open_own(path: str, flags: int) -> int:
    """Open a file, made if it is not there; not one that a link leads to, and without waiting for a pipe's reader."""
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _put(partial: Path, target: Path, *, overwrites: bool) -> None:
    """Give a file its name: where it must not take another's, by a link, which is never made over a file."""
    if not overwrites:
        try:
            os.link(partial, target)
        except FileExistsError as error:
            raise _taken(target) from error
        except OSError:  # a file system without links
            if target.exists():
                raise _taken(target) from None
        else:
            partial.unlink()
            return
    partial.replace(target)


def _taken(target: Path) -> ModelError:
    return ModelError(f"{target} is there already; --force writes over it, --output names another", model=str(target))


def _refuse_own(source: Path, target: Path) -> None:
    """Refuse to write over a file of the model that is read."""
    beside = source if source.is_dir() else source.parent
    if target.exists() and any(file.samefile(target) for file in beside.iterdir() if is_part(file, source)):
        raise ModelError(f"{target} is of the model that is read; --output names another", model=str(target))
