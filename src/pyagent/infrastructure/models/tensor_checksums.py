"""The checksums that a file of tensorizer's has of each of its tensors, compared with what is in the file.

The file is read in blocks and not mapped: one that becomes shorter meanwhile is an error.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.infrastructure.models.names import TENSORIZER_FILE

_BLOCK_BYTES = 1 << 20


def checksum_kinds(folder: Path) -> list[str]:
    """Return the kinds of checksums that a folder's own file of weights has; none for other files."""
    file = _file_of(folder)
    return sorted({kind for *_, places in _sums(file) for kind, _, _ in places}) if file else []


def check_tensors(folder: Path) -> bool:
    """Compare all of them; False where the folder's weights have none. Raises `ModelError` naming the tensor.

    A tensor without a checksum among others that have one is a fault: tensorizer gives one to all or to none.
    """
    file = _file_of(folder)
    tensors = _sums(file) if file else []
    if file is None or not any(places for *_, places in tensors):
        return False
    try:
        with file.open("rb") as opened:
            for name, header, start, end, places in tensors:
                _check_tensor(opened, name, range(header, start), end, places)
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}", model=str(folder)) from error
    except ValueError as error:
        raise ModelError(f"{file} is damaged: {error}; download it again", model=str(folder)) from error
    return True


def _file_of(folder: Path) -> Path | None:
    file = folder / TENSORIZER_FILE
    return file if file.is_file() and not any(folder.glob("*.safetensors")) else None


def _sums(file: Path) -> list[tuple[str, int, int, int, list[tuple[str, int, int]]]]:
    try:
        return _rust.tensor_checksums(file)
    except _rust.ModelFileError as error:
        raise ModelError(str(error), model=str(file.parent)) from error


def _check_tensor(opened: BinaryIO, name: str, header: range, end: int, places: Sequence[tuple[str, int, int]]) -> None:
    """Raise `ValueError` where a tensor is not what its checksums are of; they are zeros in what they are of."""
    if not places:
        raise ValueError(f"tensor {name!r:.200} has no checksum, as others have")
    opened.seek(header.start)
    told = bytearray(_read(opened, len(header)))
    expected: dict[str, bytes] = {}
    for kind, first, after in places:
        place = slice(first - header.start, after - header.start)
        expected[kind] = bytes(told[place])
        told[place] = bytes(after - first)
    crc, sha = zlib.crc32(told), hashlib.sha256(told)
    for block in _blocks(opened, end - header.stop):
        crc = zlib.crc32(block, crc) if "CRC-32" in expected else crc
        if "SHA-256" in expected:
            sha.update(block)
    found = {"CRC-32": crc.to_bytes(4, "little"), "SHA-256": sha.digest()}
    for kind, value in expected.items():
        if found[kind] != value:
            raise ValueError(f"the {kind} of tensor {name!r:.200} is {found[kind].hex():.12}, not {value.hex():.12}")


def _blocks(opened: BinaryIO, num_bytes: int) -> Iterable[bytes]:
    while num_bytes:
        block = _read(opened, min(num_bytes, _BLOCK_BYTES))
        num_bytes -= len(block)
        yield block


def _read(opened: BinaryIO, num_bytes: int) -> bytes:
    block = opened.read(num_bytes)
    if len(block) < num_bytes:
        raise ValueError("it became shorter while it was read")
    return block
