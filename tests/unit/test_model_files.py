"""Model file headers as Python sees them; the format's rules are tested in rust_core/engine, next to the code."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from pyagent._rust import ModelFileError, dequantise, read_model_header

if TYPE_CHECKING:
    from pathlib import Path


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, value_type: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", value_type) + value


def array(element_type: int, *elements: bytes) -> bytes:
    return struct.pack("<IQ", element_type, len(elements)) + b"".join(elements)


def write_gguf(path: Path, entries: list[bytes], tensor_name: str = "norm") -> Path:
    """A file of these metadata entries and one tensor of two f32."""
    tensor = text(tensor_name) + struct.pack("<IQIQ", 1, 2, 0, 0)
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, len(entries)) + b"".join(entries) + tensor
    path.write_bytes(header + b"\0" * (-len(header) % 32) + struct.pack("<2f", 1.0, 2.0))
    return path


def test_read_model_header_converts_every_kind_of_value(tmp_path: Path) -> None:
    """Strings, numbers, truths and (nested) arrays arrive as the Python values they stand for."""
    entries = [
        entry("general.architecture", 8, text("llama")),
        entry("count", 10, struct.pack("<Q", 2**64 - 1)),
        entry("rate", 6, struct.pack("<f", 0.5)),
        entry("flag", 7, b"\1"),
        entry("tokens", 9, array(8, text("a"), text("\u2581b"))),
        entry("bytes", 9, array(0, b"\1", b"\xff")),
        entry("nested", 9, array(9, array(5, struct.pack("<i", -1)), array(7, b"\0"))),
    ]
    path = write_gguf(tmp_path / "model.gguf", entries)
    header = read_model_header(path)
    assert header["metadata"] == {
        "general.architecture": "llama",
        "count": 2**64 - 1,
        "rate": 0.5,
        "flag": True,
        "tokens": ["a", "\u2581b"],
        "bytes": [1, 255],
        "nested": [[-1], [False]],
    }
    assert header["tensors"] == [("norm", [2], "F32", 8)]
    assert header["file_bytes"] == path.stat().st_size


def test_read_model_header_says_file_and_fault(tmp_path: Path) -> None:
    """A damaged file raises `ModelFileError` with the file's name, what was expected and what was found."""
    path = tmp_path / "page.gguf"
    path.write_bytes(b"<html>")
    with pytest.raises(ModelFileError, match=r'page\.gguf: .*starts with "<htm" where "GGUF" is expected'):
        read_model_header(path)
    path = write_gguf(tmp_path / "cut.gguf", [])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match=r'cut short: tensor "norm" ends at byte \d+ but the file has \d+'):
        read_model_header(str(path))


def test_dequantise_refuses_unknown_types_and_partial_blocks() -> None:
    """A type's name must be known and the bytes whole blocks of it."""
    assert dequantise("BF16", b"\x80\x3f") == struct.pack("<f", 1.0)
    with pytest.raises(ValueError, match='element type "Q9" is not known; expected one of F32, F16'):
        dequantise("Q9", b"")
    with pytest.raises(ValueError, match="17 bytes are not whole blocks of Q4_0"):
        dequantise("Q4_0", bytes(17))
