"""Quantises a model into a GGUF file, a piece of a tensor at a time; the file is complete or absent.

It is written under another name beside its place, flushed to the disk and renamed. One process writes a file at a time;
what one that was killed left behind, the next one writes over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from array import array
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.core.sizes import format_bytes
from pyagent.infrastructure.models.quantize.gguf_file import Tensor, header, padded, uint32
from pyagent.infrastructure.models.quantize.mixture import TYPE_TO_BASE, TYPE_TO_FILE_TYPE, Mixture, is_matrix
from pyagent.infrastructure.models.quantize.sources import Source, open_source, refuse_quantised

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
        raise ModelError(
            f"{target} is there already; --force writes over it, --output names another", model=str(target)
        )
    model = open_source(source)
    refuse_quantised(model, TYPE_TO_BASE[type_name])
    plan = _plan(model, type_name)
    start = header(_metadata(model, type_name), plan)
    total = len(start) + sum(padded(tensor.num_bytes) for tensor in plan)
    try:
        with _new_file(target, total) as file:
            _Writer(file, model, threads).write(plan, start, total, progress)
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


def _plan(model: Source, type_name: str) -> list[Tensor]:
    tensors = model.tensors()
    is_tied = all(tensor.name != "output.weight" for tensor in tensors)
    mixture = Mixture(type_name, model.num_layers, is_tied, model.num_experts)
    plan: list[Tensor] = []
    for name, dims, _ in tensors:
        kind = mixture.type_of(name, dims[0]) if is_matrix(name, len(dims)) else "F32"
        plan.append(Tensor(name, dims, kind))
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
            values = array("f", bytes(4 * cols * min(most_rows, num_rows - first)))
            self.model.read(tensor.name, first, values)
            try:
                self.file.write(_rust.quantise(tensor.type_name, values, self.threads))
            except ValueError as error:
                text = f"{self.model.path}: tensor '{tensor.name}' cannot be {tensor.type_name}: {error}"
                raise ModelError(text, model=str(self.model.path)) from error
            told()
        self.file.write(bytes(padded(tensor.num_bytes) - tensor.num_bytes))


@contextlib.contextmanager
def _new_file(target: Path, num_bytes: int) -> Generator[BinaryIO]:
    """A file that takes its place when the block ends, and is gone when it fails."""
    free = shutil.disk_usage(target.parent).free
    if free < num_bytes:
        needs = f"{format_bytes(num_bytes)} are needed, {format_bytes(free)} are free"
        raise ModelError(f"the disk of {target.parent} has no room: {needs}", model=str(target))
    partial = target.with_name(f".{target.name}.partial")
    with partial.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ModelError(f"{target} is being written by another process", model=str(target)) from error
        try:
            with partial.open("r+b") as file:
                file.truncate(0)
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
