"""SentencePiece's tokenizer.model: a protobuf message with pieces, their scores and types, and how text is prepared.

Read field by field (sentencepiece_model.proto); BPE is run as the vocabularies of GGUF files are, which come from it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers as inner

from pyagent.core.errors import ModelError
from pyagent.core.tokenizers import Tokenizer
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import BYTE, build_tokenizer
from pyagent.infrastructure.engine.tokens.huggingface import HuggingFaceTokenizer
from pyagent.infrastructure.engine.tokens.model_folder import ModelFolder, file_in, read_bounded
from pyagent.infrastructure.engine.tokens.unigram import build_unigram

_MAX_FILE_BYTES, _MAX_PIECES = 64_000_000, 1 << 20
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_UNIGRAM, _BPE = 1, 2
_FILES = ("tokenizer.model", "*.model.v[0-9]*", "spiece.model")
_KINDS = {3: "word", 4: "char"}


@dataclass(slots=True)
class _Model:
    """What is read of the message, with its defaults."""

    pieces: list[str] = field(default_factory=list[str])
    scores: list[float] = field(default_factory=list[float])
    types: list[int] = field(default_factory=list[int])
    kind: int = 1
    begin_id: int = 1
    end_id: int = 2
    adds_space: bool = True
    removes_spaces: bool = True
    escapes_spaces: bool = True
    charsmap: bytes = b""


class SentencePieceReader:
    """Reads tokenizer.model, and T5's spiece.model."""

    name = "sentencepiece"

    def matches(self, path: Path) -> bool:
        """Whether the folder has one."""
        return _file_in(path) is not None

    def load(self, path: Path) -> Tokenizer:
        """Return the folder's tokenizer."""
        file, name = _file_in(path), str(path)
        if file is None:
            raise ModelError(f"{path}: no tokenizer.model or spiece.model", model=name)
        try:
            model = _read(read_bounded(file, _MAX_FILE_BYTES))
        except (IndexError, ValueError, struct.error) as error:
            raise ModelError(f"{file}: not a model of SentencePiece: {error}", model=name) from error
        _check(model, file)
        folder, ids = ModelFolder(path), range(len(model.pieces))
        return HuggingFaceTokenizer(
            _build(model, name),
            name,
            num_tokens=len(model.pieces),
            begin_id=folder.begin_id(model.begin_id if model.begin_id in ids else None),
            end_ids=folder.end_ids or [token for token in (model.end_id,) if token in ids],
        )


def _build(model: _Model, name: str) -> inner.Tokenizer:
    if _is_as_t5(model):
        words: dict[str, object] = {
            "tokenizer.ggml.model": "t5",
            "tokenizer.ggml.tokens": model.pieces,
            "tokenizer.ggml.token_type": model.types,
            "tokenizer.ggml.scores": model.scores,
            "tokenizer.ggml.add_space_prefix": model.adds_space,
            "tokenizer.ggml.precompiled_charsmap": list(model.charsmap),
        }
        return build_tokenizer(words, name)
    if model.kind == _UNIGRAM:
        return build_unigram(model.pieces, model.scores, model.types, adds_space=model.adds_space, name=name)
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": model.pieces,
        "tokenizer.ggml.token_type": model.types,
        "tokenizer.ggml.scores": model.scores,
        "tokenizer.ggml.add_space_prefix": model.adds_space,
    }
    return build_tokenizer(metadata, name)


def _is_as_t5(model: _Model) -> bool:
    """Whether texts are normalized by a table and parted at spaces, and letters that are no piece are unknown."""
    return model.kind == _UNIGRAM and model.removes_spaces and model.escapes_spaces and BYTE not in model.types


def _file_in(path: Path) -> Path | None:
    return file_in(path, _FILES, _is_message)


def _is_message(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(1) == bytes([_PIECES << 3 | 2])


def _check(model: _Model, file: Path) -> None:
    """Raise `ModelError` for what would be tokenised otherwise than SentencePiece does."""
    if model.kind not in {_UNIGRAM, _BPE}:
        kind = _KINDS.get(model.kind, str(model.kind))
        text = (
            f"{file}: a {kind} model; SentencePiece's BPE and unigram are read: save the model with its tokenizer.json"
        )
        raise ModelError(text, model=str(file.parent))
    if _is_as_t5(model):
        return
    if model.charsmap or model.removes_spaces or not model.escapes_spaces:
        text = f"{file}: it normalizes texts in a way that is not supported; save the model with its tokenizer.json"
        raise ModelError(text, model=str(file.parent))


def _read(data: bytes) -> _Model:
    model = _Model()
    for number, value in _fields(data):
        if number == _PIECES and isinstance(value, bytes):
            _read_piece(model, value)
        elif number == _TRAINER and isinstance(value, bytes):
            told = dict(_fields(value))
            model.kind = _number(told.get(3), model.kind)
            model.begin_id = _number(told.get(41), model.begin_id)
            model.end_id = _number(told.get(42), model.end_id)
        elif number == _NORMALIZER and isinstance(value, bytes):
            told = dict(_fields(value))
            charsmap = told.get(2)
            model.charsmap = charsmap if isinstance(charsmap, bytes) else b""
            model.adds_space = bool(_number(told.get(3), 1))
            model.removes_spaces = bool(_number(told.get(4), 1))
            model.escapes_spaces = bool(_number(told.get(5), 1))
    return model


def _read_piece(model: _Model, data: bytes) -> None:
    told = dict(_fields(data))
    text, score = told.get(1), told.get(2)
    if not isinstance(text, bytes) or len(model.pieces) >= _MAX_PIECES:
        raise ValueError("a piece without a text, or too many")
    model.pieces.append(text.decode())
    model.scores.append(struct.unpack("<f", score)[0] if isinstance(score, bytes) else 0.0)
    model.types.append(_number(told.get(3), 1))


def _number(value: bytes | int | None, default: int) -> int:
    return value if isinstance(value, int) else default


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the fields of a protobuf message: numbers as such, texts, messages and floats as their bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        match key & 7:
            case 0:
                value, place = _varint(data, place)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, place = _varint(data, place)
            case 5:
                size = 4
            case other:
                raise ValueError(f"a field of the wire type {other}")
        if size > len(data) - place:
            raise ValueError("it ends too early")
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number of too many bytes")
