"""An encoder's tokenizer as the metadata of GGUF files: pieces of words, SentencePiece's unigrams, or bytes.

Which tokens stand around texts and between those of a pair is known by what the tokenizer does.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, cast

from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.encoders.text_tokens import tokenizer_of
from pyagent.infrastructure.engine.tokens.model_folder import ModelFolder, object_in, read_json
from pyagent.infrastructure.models.quantize.bounds import refuse_large_tokenizer
from pyagent.infrastructure.models.quantize.gguf_file import (
    Metadata,
    boolean,
    float32s,
    int32s,
    string,
    strings,
    uint8s,
    uint32,
)
from pyagent.infrastructure.models.quantize.vocabulary import merge_lines

if TYPE_CHECKING:
    import tokenizers

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = range(1, 6)
_NO_SCORE = -10_000.0
"""Of a row of the embedding that no token has, as llama.cpp's converter has it."""
_WORD, _FURTHER = "\u2581", "##"
_NAMED: Mapping[str, str] = {"unknown": "unk", "padding": "pad", "mask": "mask"}
"""Ends of GGUF's keys, and what `tokenizer_config.json` calls these tokens."""

Json = Mapping[str, object]


class _Words(NamedTuple):
    """A folder's tokenizer, and what its `tokenizer.json` would say."""

    path: Path
    inner: tokenizers.Tokenizer
    told: Json
    num_rows: int

    def model(self) -> Json:
        """Return what is said of how words become tokens."""
        return object_in(self.told, "model")

    def names(self) -> Mapping[int, str]:
        """Return the tokens' texts."""
        return {token: name for name, token in self.inner.get_vocab(with_added_tokens=True).items()}

    def tokens(self) -> list[str]:
        """Return the text of each row of the embedding."""
        names = self.names()
        return [names.get(row, f"[PAD{row}]") for row in range(self.num_rows)]

    def types(self) -> list[int]:
        """Return the type of each row, of which the unknown token's is told by the kind."""
        names, added = self.names(), self.inner.get_added_tokens_decoder()
        types = [_NORMAL if row in names else _UNUSED for row in range(self.num_rows)]
        for row, token in added.items():
            types[row] = _CONTROL if token.special else _USER_DEFINED
        return types


def encoder_words(path: Path, num_rows: int, num_types: int) -> Metadata:
    """Return a tokenizer for a model with so many rows of embeddings, which tells so many texts of a pair apart.

    Raises `ModelError` for one that GGUF has no words for.
    """
    file = path / "tokenizer.json"
    if file.is_file():
        refuse_large_tokenizer(file, read_json(file))
    inner = tokenizer_of(path)
    inner.no_padding()
    inner.no_truncation()
    words = _Words(path, inner, cast("Json", json.loads(inner.to_str())), num_rows)
    kinds = {"WordPiece": _pieces, "Unigram": _unigrams, "BPE": _bytes}
    kind = type(inner.model).__name__
    if kind not in kinds:
        _refuse(path, f"its tokenizer is {kind}; expected {', '.join(kinds)}")
    if max(words.names(), default=-1) >= num_rows:
        _refuse(path, f"its tokenizer has more tokens than the model, {num_rows}; they are of two models")
    told = kinds[kind](words) | _frame(words) | _special(words)
    return told | ({"tokenizer.ggml.token_type_count": uint32(num_types)} if num_types else {})


def _pieces(words: _Words) -> Metadata:
    """Describe BERT's pieces: beginnings of words are marked, not what goes on."""
    types = words.types()
    marked = [
        name if kind == _CONTROL else name.removeprefix(_FURTHER) if name.startswith(_FURTHER) else _WORD + name
        for name, kind in zip(words.tokens(), types, strict=True)
    ]
    normalizer = object_in(words.told, "normalizer")
    strips = normalizer.get("strip_accents")
    found = {
        "tokenizer.ggml.model": string("bert"),
        "tokenizer.ggml.pre": string("default"),
        "tokenizer.ggml.tokens": strings(marked),
        "tokenizer.ggml.token_type": int32s(types),
        "tokenizer.ggml.normalizer.lowercase": boolean(normalizer.get("lowercase") is True),
    }
    if isinstance(strips, bool):
        found["tokenizer.ggml.normalizer.strip_accents"] = boolean(strips)
    return found


def _unigrams(words: _Words) -> Metadata:
    """Describe SentencePiece's: each piece's score, and what letters become before."""
    scores, types = [_NO_SCORE] * words.num_rows, words.types()
    pieces = cast("Sequence[tuple[str, float]]", words.model().get("vocab") or [])
    scores[: len(pieces)] = [float(score) for _, score in pieces]
    unknown = words.model().get("unk_id")
    if isinstance(unknown, int) and 0 <= unknown < words.num_rows:
        types[unknown] = _UNKNOWN
    found = {
        "tokenizer.ggml.model": string("t5"),
        "tokenizer.ggml.pre": string("default"),
        "tokenizer.ggml.tokens": strings(words.tokens()),
        "tokenizer.ggml.scores": float32s(scores),
        "tokenizer.ggml.token_type": int32s(types),
        "tokenizer.ggml.add_space_prefix": boolean(_adds_space(words.told)),
        "tokenizer.ggml.remove_extra_whitespaces": boolean(True),
    }
    if charsmap := _charsmap(words):
        found["tokenizer.ggml.precompiled_charsmap"] = uint8s(charsmap)
    return found


def _adds_space(told: Json) -> bool:
    steps = [*_steps(told, "pre_tokenizer", "pretokenizers")]
    return all(step.get("prepend_scheme") != "never" for step in steps if step.get("type") == "Metaspace")


def _charsmap(words: _Words) -> bytes:
    found = [step for step in _steps(words.told, "normalizer", "normalizers") if step.get("type") == "Precompiled"]
    try:
        return base64.b64decode(cast("str", found[0].get("precompiled_charsmap") or "")) if found else b""
    except binascii.Error as error:
        _refuse(words.path, f"its table of letters is damaged: {error}")


def _steps(told: Json, key: str, inner: str) -> Iterator[Json]:
    """Yield the steps of a part of a tokenizer, of which there may be a sequence."""
    part = object_in(told, key)
    yield from cast("Sequence[Json]", part.get(inner) or [part])


def _bytes(words: _Words) -> Metadata:
    """Describe bytes with merges, of GPT-2's words: ModernBERT's have their accents composed."""
    has_composed = any(step.get("type") == "NFC" for step in _steps(words.told, "normalizer", "normalizers"))
    return {
        "tokenizer.ggml.model": string("gpt2"),
        "tokenizer.ggml.pre": string("modern-bert" if has_composed else "roberta-bpe"),
        "tokenizer.ggml.tokens": strings(words.tokens()),
        "tokenizer.ggml.token_type": int32s(words.types()),
        "tokenizer.ggml.merges": strings(merge_lines(words.model())),
    }


def _frame(words: _Words) -> Metadata:
    """Say which tokens stand before and after a text, and how many between the two of a pair."""
    one, two = words.inner.encode("a"), words.inner.encode("a", "a")
    begins, ends = one.special_tokens_mask[:1] == [1], one.special_tokens_mask[-1:] == [1]
    first, last = one.ids[:1] if begins else [], one.ids[-1:] if ends else []
    between = sum(two.special_tokens_mask) - len(first) - 2 * len(last)
    found = {
        "tokenizer.ggml.add_bos_token": boolean(begins),
        "tokenizer.ggml.add_eos_token": boolean(ends),
        "tokenizer.ggml.add_sep_token": boolean(between > 0),
    }
    keys = {"bos": first, "eos": last, "seperator": last}  # GGUF's key is spelt so
    return found | {f"tokenizer.ggml.{key}_token_id": uint32(token) for key, ids in keys.items() for token in ids}


def _special(words: _Words) -> Metadata:
    """Say which tokens have a meaning of their own, by the names that the folder gives them, or BERT's."""
    folder, found = ModelFolder(words.path), Metadata()
    for key, name in _NAMED.items():
        text = folder.token_name(f"{name}_token") or f"[{name.upper()}]"
        if (token := words.inner.token_to_id(text)) is not None:
            found[f"tokenizer.ggml.{key}_token_id"] = uint32(token)
    return found


def _refuse(path: Path, why: str) -> NoReturn:
    raise ModelError(f"{path}: cannot be written as GGUF: {why}", model=str(path))
