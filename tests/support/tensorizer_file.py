"""Folders of safetensors turned into what CoreWeave's tensorizer writes of the same tensors, without it and torch."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from pathlib import Path

_TO_TYPE = {"F32": b"<f4", "F16": b"<f2", "BF16": b"<V2\0torch.bfloat16", "I64": b"<i8"}
_TABLE_BYTES = 256 * 1024
"""What tensorizer keeps for the table of tensors."""
_OPAQUE_VERSION = 2
_STATE_DICT = 2


def to_tensorizer_file(folder: Path, before: str = "model.safetensors", after: str = "model.tensors") -> Path:
    """Replace a folder's file of safetensors by one of tensorizer's."""
    (folder / after).write_bytes(tensorizer_bytes(tensors_of(folder / before)))
    (folder / before).unlink()
    return folder


def tensors_of(file: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Return the element types, shapes and bytes in a file of safetensors, in the order of its header."""
    whole = file.read_bytes()
    start = 8 + struct.unpack_from("<Q", whole)[0]
    tensors: dict[str, tuple[str, list[int], bytes]] = {}
    for name, told in json.loads(whole[8:start]).items():
        if name != "__metadata__":
            first, last = told["data_offsets"]
            tensors[name] = (told["dtype"], told["shape"], whole[start + first : start + last])
    return tensors


def tensorizer_bytes(tensors: dict[str, tuple[str, list[int], bytes]], version: int = 0) -> bytes:
    """A file of tensors, of the version that they need unless told."""
    is_opaque = any(kind == "BF16" for kind, _, _ in tensors.values())
    start = b"|TZR|" + struct.pack("<I32x", version or (_OPAQUE_VERSION if is_opaque else 1))
    num_bytes = sum(len(data) for _, _, data in tensors.values())
    start += struct.pack("<Q8xQQ", num_bytes, len(tensors), _TABLE_BYTES)
    table, at = b"", len(start) + _TABLE_BYTES
    blocks = list[bytes]()
    for name, (kind, shape, data) in tensors.items():
        header, entry = _header(name.encode(), _TO_TYPE[kind], shape, data, at)
        table += entry
        blocks += [header, data]
        at += len(header) + len(data)
    return start + table.ljust(_TABLE_BYTES, b"\0") + b"".join(blocks) + bytes(8)


def _header(name: bytes, kind: bytes, shape: list[int], data: bytes, at: int) -> tuple[bytes, bytes]:
    """Return a tensor's own header, and its entry in the table."""
    about = bytes([len(kind)]) + kind + struct.pack(f"<B{len(shape)}I", len(shape), *shape)
    named = struct.pack("<H", len(name)) + name
    length = 8 + 3 + len(named) + len(about) + 2 + 41 + 8

    def whole(crc: bytes, sha: bytes) -> bytes:
        sums = struct.pack("<HBBB", 41, 2, 0, 4) + crc + bytes([1, 32]) + sha
        start = struct.pack("<QHB", length, 0, _STATE_DICT)
        return start + named + about + sums + struct.pack("<q", len(data))

    summed = whole(bytes(4), bytes(32)) + data
    header = whole(struct.pack("<I", zlib.crc32(summed)), hashlib.sha256(summed).digest())
    place = struct.pack("<QQQ", at, at + length, len(data))
    return header, named + bytes([_STATE_DICT]) + about + place
