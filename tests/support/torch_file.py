"""Folders of safetensors turned into what `torch.save` writes of the same tensors, without torch."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from pathlib import Path

from support.tensorizer_file import tensors_of

_TO_STORAGE = {"F32": b"FloatStorage", "F16": b"HalfStorage", "BF16": b"BFloat16Storage", "I64": b"LongStorage"}


def to_torch_file(folder: Path, before: str = "model.safetensors", after: str = "pytorch_model.bin") -> Path:
    """Replace a folder's file of safetensors by one of torch's."""
    (folder / after).write_bytes(state_dict_bytes(tensors_of(folder / before)))
    (folder / before).unlink()
    return folder


def state_dict_bytes(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """A file of tensors: their element types, shapes and bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        entries = b"".join(
            _text(name) + _tensor(kind, shape, str(place))
            for place, (name, (kind, shape, _)) in enumerate(tensors.items())
        )
        archive.writestr("model/data.pkl", b"\x80\x02}(" + entries + b"u.")
        archive.writestr("model/byteorder", "little")
        for place, (_, _, data) in enumerate(tensors.values()):
            archive.writestr(f"model/data/{place}", data)
        archive.writestr("model/version", "3\n")
    return out.getvalue()


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def _numbers(*numbers: int) -> bytes:
    return b"".join(b"J" + struct.pack("<i", number) for number in numbers)


def _tensor(kind: str, shape: list[int], key: str) -> bytes:
    strides = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
    storage = b"(" + _text("storage") + b"ctorch\n" + _TO_STORAGE[kind] + b"\n" + _text(key) + _text("cpu")
    storage += _numbers(math.prod(shape)) + b"tQ"
    sizes = b"(" + _numbers(*shape) + b"t(" + _numbers(*strides) + b"t"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + _numbers(0) + sizes + b"\x89}tR"
