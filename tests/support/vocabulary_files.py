"""Small vocabularies in files of tiktoken, Mistral and SentencePiece."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from pathlib import Path

RANKS = [*(bytes([byte]) for byte in range(256)), b"he", b"ll", b"hell", b"hello", b" w", b"or", b" wor", b"\xc3\xa9"]
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def write_ranks(file: Path, ranks: Sequence[bytes] = RANKS) -> None:
    file.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(ranks)))


def write_tekken(folder: Path, ranks: Sequence[bytes] = RANKS, **config: object) -> None:
    told = {"pattern": WORDS, "default_vocab_size": 20 + len(ranks), "default_num_special_tokens": 20, "version": "v3"}
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for rank, token in enumerate(ranks)]
    (folder / "tekken.json").write_text(json.dumps({"config": told | config, "vocab": vocab}))


def _number(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data, value = data + bytes([value & 0x7F | 0x80]), value >> 7
    return data + bytes([value])


def _field(number: int, value: bytes | int | float) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, bytes):
        return _number(number << 3 | 2) + _number(len(value)) + value
    if isinstance(value, float):
        return _number(number << 3 | 5) + struct.pack("<f", value)
    return _number(number << 3) + _number(value)


def sentencepiece_model(*, kind: int = 2, removes_spaces: int = 0, more: Sequence[str] = "") -> bytes:
    words = [*more, "▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello"]
    pieces = [("<unk>", 2), ("<s>", 3), ("</s>", 3), *((f"<0x{byte:02X}>", 6) for byte in range(256))]
    told = [(text, 0.0, type_) for text, type_ in pieces]
    told += [(text, float(place - len(words)), 1) for place, text in enumerate(words)]
    message = b"".join(
        _field(1, _field(1, text.encode()) + _field(2, score) + _field(3, type_)) for text, score, type_ in told
    )
    return message + _field(2, _field(3, kind)) + _field(3, _field(1, b"identity") + _field(4, removes_spaces))
