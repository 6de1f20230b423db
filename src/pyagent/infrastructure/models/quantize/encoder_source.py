"""A folder of BERT that embeds, as llama.cpp's converter writes it: keys, pieces of words, tensors.

Nothing here is trusted: what was written is read back and compared, its tokens too.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, cast

import tokenizers

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.encoders.text_tokens import TextTokens, tokenizer_of
from pyagent.infrastructure.engine.tokens.model_folder import object_in, read_json
from pyagent.infrastructure.models.quantize.bounds import refuse_large_tokenizer
from pyagent.infrastructure.models.quantize.folder_tensors import NONE_KEPT, SourceTensor
from pyagent.infrastructure.models.quantize.gguf_file import (
    Metadata,
    boolean,
    float32,
    int32s,
    string,
    strings,
    uint32,
)

FAMILY = "bert"
_POOLINGS: Mapping[str, int] = {"mean": 1, "cls": 2, "lasttoken": 3}
"""llama.cpp's numbers."""
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5
_WORD, _FURTHER = "\u2581", "##"
_SPECIAL: Mapping[str, str] = {
    "bos": "[CLS]",
    "eos": "[SEP]",
    "unknown": "[UNK]",
    "seperator": "[SEP]",
    "padding": "[PAD]",
    "mask": "[MASK]",
}
"""Ends of GGUF's keys, one of them spelt so, to BERT's pieces."""
_TABLES: Mapping[str, str] = {
    "word_embeddings.weight": "token_embd.weight",
    "position_embeddings.weight": "position_embd.weight",
    "token_type_embeddings.weight": "token_types.weight",
    "LayerNorm.weight": "token_embd_norm.weight",
    "LayerNorm.bias": "token_embd_norm.bias",
}
_PARTS: Mapping[str, str] = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_SAME = ("architecture", "vocab_size", "num_dimensions", "num_layers", "max_tokens", "pooling", "num_outputs", "labels")
_PROBES = (
    "The lighthouse of 1234567 men's boats, it's LIT.",
    "Ångström's naïve café — wasn't it?\n\t Two  spaces, 東京 и Москва 🙂 x²",
    "[CLS] unaffable [MASK] foo_bar CamelCase",
)

Config = Mapping[str, object]


class EncoderSource:
    """A folder of safetensors with a BERT that embeds."""

    num_experts = 0
    kept = NONE_KEPT

    def __init__(self, path: Path, config: Config) -> None:
        """Raise `ModelError` for what a GGUF file has no words for."""
        self.path = path
        about = _rust.describe_encoder(path)
        if about is None or about["architecture"] != FAMILY:
            self._refuse("it is no BERT that embeds")
        self._about, self.num_layers, self.file_bytes = about, about["num_layers"], about["file_bytes"]
        self._refuse_unsaid(config)
        self._file = _rust.TensorFile(path)
        self._to_names = {gguf: name for name, gguf in _names(self.num_layers, self._prefix())}
        self.metadata = self._described(config) | self._vocabulary()

    def tensors(self) -> Sequence[SourceTensor]:
        """Return the model's; its table of positions has a row for each token of the longest text."""
        found: list[SourceTensor] = []
        for name, own in self._to_names.items():
            dims, kind = cast("tuple[list[int], str]", self._file.find(own))
            rows = [self._about["max_tokens"]] if name == "position_embd.weight" else dims[1:]
            found.append(SourceTensor(name, [dims[0], *rows], kind))
        return found

    def read(self, name: str, first_row: int, out: array[float]) -> None:
        """Read rows as they are."""
        self._file.read_floats(self._to_names[name], first_row, memoryview(out).cast("B"))

    def check(self, written: Path) -> None:
        """Compare the two as the engine reads them, and what texts become."""
        try:
            after = _rust.describe_encoder(written)
        except _rust.ModelFileError as error:
            self._refuse(str(error))
        for name in _SAME:
            one, other = self._about[name], None if after is None else after[name]
            if one != other:
                self._refuse(f"its {name.replace('_', ' ')} {one!s:.80} would be read {other!s:.80}")
        before, made = (TextTokens(path, 1 << 20, self._about["vocab_size"]) for path in (self.path, written))
        for text in _PROBES:
            if before.encode([text]) != made.encode([text]):
                self._refuse(f"{text[:40]!r} would become other tokens")

    def _refuse(self, why: str) -> NoReturn:
        raise ModelError(f"{self.path}: cannot be written as GGUF: {why}", model=str(self.path))

    def _refuse_unsaid(self, config: Config) -> None:
        """Refuse what GGUF has no key for."""
        if self._about["labels"] is not None:
            self._refuse("its labels have no place there")
        if self._about["ranks_by_tokens"]:
            self._refuse("late interaction has no name there")
        if self._about["pooling"] not in _POOLINGS:
            self._refuse(f"pooling by {self._about['pooling']} has no name there; expected {', '.join(_POOLINGS)}")
        if (activation := config.get("hidden_act", "gelu")) != "gelu":
            self._refuse(f"its activation is {activation!s:.40}; files of BERT have gelu")
        if self._about["num_outputs"] != config.get("hidden_size") or self._has_dense():
            self._refuse("its steps after pooling have no place there")

    def _has_dense(self) -> bool:
        file = self.path / "modules.json"
        return file.exists() and b".Dense" in file.read_bytes()[: 1 << 20]

    def _prefix(self) -> str:
        """Return what the names begin with, which models of another task once had."""
        names = ("", "bert.")
        own = (name for name in names if self._file.find(f"{name}embeddings.word_embeddings.weight") is not None)
        return next(own, "")

    def _described(self, config: Config) -> Metadata:
        def size(key: str) -> bytes:
            return uint32(cast("int", config[key]))  # the engine has read it

        epsilon = config.get("layer_norm_eps", 1e-12)
        keys: Metadata = {
            "block_count": uint32(self.num_layers),
            "context_length": uint32(self._about["max_tokens"]),
            "embedding_length": size("hidden_size"),
            "feed_forward_length": size("intermediate_size"),
            "attention.head_count": size("num_attention_heads"),
            "attention.layer_norm_epsilon": float32(cast("float", epsilon)),
            "attention.causal": boolean(False),
            "pooling_type": uint32(_POOLINGS[self._about["pooling"]]),
        }
        general = {
            "general.architecture": string(FAMILY),
            "general.type": string("model"),
            "general.name": string(self.path.resolve().name),
        }
        return general | {f"{FAMILY}.{key}": value for key, value in keys.items()}

    def _vocabulary(self) -> Metadata:
        file = self.path / "tokenizer.json"
        if file.is_file():
            refuse_large_tokenizer(file, read_json(file))
        inner = tokenizer_of(self.path)
        if type(inner.model).__name__ != "WordPiece":
            self._refuse(f"its tokenizer is {type(inner.model).__name__}; expected WordPiece")
        names = {token: piece for piece, token in inner.get_vocab(with_added_tokens=True).items()}
        pieces = [names.get(row, f"[PAD{row}]") for row in range(self._about["vocab_size"])]
        special = {str(added) for added in _special(inner)}
        types = [
            _UNUSED if row not in names else _CONTROL if names[row] in special else _NORMAL
            for row in range(len(pieces))
        ]
        marked = [_marked(piece, is_special=piece in special) for piece in pieces]
        types_of_texts = self._file.find(f"{self._prefix()}embeddings.token_type_embeddings.weight")
        ids = {key: inner.token_to_id(piece) for key, piece in _SPECIAL.items()}
        told = {f"tokenizer.ggml.{key}_token_id": uint32(token) for key, token in ids.items() if token is not None}
        return told | {
            "tokenizer.ggml.model": string("bert"),
            "tokenizer.ggml.pre": string("default"),
            "tokenizer.ggml.tokens": strings(marked),
            "tokenizer.ggml.token_type": int32s(types),
            "tokenizer.ggml.token_type_count": uint32(types_of_texts[0][1] if types_of_texts else 1),
            "tokenizer.ggml.add_bos_token": boolean(True),
            "tokenizer.ggml.add_eos_token": boolean(True),
            "tokenizer.ggml.add_sep_token": boolean(False),
            **_normalizer(inner),
        }


def _names(num_layers: int, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield a folder's names and GGUF's."""
    for name, gguf in _TABLES.items():
        yield f"{prefix}embeddings.{name}", gguf
    for layer in range(num_layers):
        for name, gguf in _PARTS.items():
            for end in ("weight", "bias"):
                yield f"{prefix}encoder.layer.{layer}.{name}.{end}", f"blk.{layer}.{gguf}.{end}"


def _special(inner: tokenizers.Tokenizer) -> Iterator[str]:
    for token in inner.get_added_tokens_decoder().values():
        if token.special:
            yield token.content


def _marked(piece: str, *, is_special: bool) -> str:
    """Return a piece as GGUF has it, where beginnings of words are marked, not what goes on."""
    if is_special:
        return piece
    return piece.removeprefix(_FURTHER) if piece.startswith(_FURTHER) else _WORD + piece


def _normalizer(inner: tokenizers.Tokenizer) -> Metadata:
    """Say whether letters are lowered and accents taken off, where a program would take another for granted."""
    told = object_in(cast("Config", json.loads(inner.to_str())), "normalizer")
    lowers, strips = told.get("lowercase"), told.get("strip_accents")
    found: Metadata = {"tokenizer.ggml.normalizer.lowercase": boolean(lowers is True)}
    if isinstance(strips, bool):
        found["tokenizer.ggml.normalizer.strip_accents"] = boolean(strips)
    return found
