"""The tokenizer of an encoder's GGUF file, as the model's own tokenizer cuts texts.

BERT's pieces (`bert`), SentencePiece's unigrams (`t5`: XLM-RoBERTa's), or what decoders have. Around a text stand the
tokens that the file says are added. Where llama.cpp cuts otherwise than the model was trained (capital letters of cased
BERT, repeated spaces of XLM-RoBERTa), this does as the model's own tokenizer. The files are hostile input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import build_tokenizer, refuse_long_pieces

_UNKNOWN, _BEGIN, _END = "[UNK]", "[CLS]", "[SEP]"
_WORD = "▁"
"""What GGUF files put before a piece that begins a word."""
_OTHERS = ("t5", "gpt2", "llama", "gemma4")
_MODERN_BERT = "modern-bert"
"""GPT-2's words, of letters with their accents composed."""

Metadata = Mapping[str, object]


def tokenizer_of_gguf(path: Path) -> tokenizers.Tokenizer:
    """Return a file's tokenizer, which adds the special tokens. Raises `ModelError` saying what is wrong with it."""
    metadata = _rust.read_model_header(path, packed=True)["metadata"]
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "bert":
        return _of_bert(path, metadata)
    if kind not in _OTHERS:
        known = f"bert, {', '.join(_OTHERS)}"
        text = f"{path}: tokenizer {kind!r:.40} is not supported for an encoder; supported are {known}"
        raise ModelError(text, model=str(path))
    inner = build_tokenizer(metadata, str(path))
    if metadata.get("tokenizer.ggml.pre") == _MODERN_BERT:
        inner.normalizer = normalizers.NFC()
    _frame(path, inner, metadata)
    return inner


def word_pieces(source: Path, pieces: Sequence[str], about: Metadata) -> tokenizers.Tokenizer:
    """Return BERT's tokenizer of its pieces; `about` is what `tokenizer_config.json` says.

    Raises `ModelError` where a piece is missing that every text has.
    """
    ids = {piece: number for number, piece in enumerate(pieces)}
    if missing := [name for name in (_UNKNOWN, _BEGIN, _END) if name not in ids]:
        raise ModelError(f"{source}: {', '.join(missing)} is missing", model=str(source))
    inner = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=_UNKNOWN))
    inner.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=about.get("tokenize_chinese_chars") is not False,
        strip_accents=cast("bool | None", about.get("strip_accents")),
        lowercase=about.get("do_lower_case") is not False,
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.BertProcessing((_END, ids[_END]), (_BEGIN, ids[_BEGIN]))
    adding: Any = inner  # the library leaves the type of this method open
    adding.add_special_tokens([name for name in ("[PAD]", _UNKNOWN, _BEGIN, _END, "[MASK]") if name in ids])
    return inner


def _of_bert(path: Path, metadata: Metadata) -> tokenizers.Tokenizer:
    """BERT's, of which GGUF files mark the beginnings of words, not what goes on."""
    pieces = [_piece(token) for token in _tokens(path, metadata)]
    # A vocabulary with capital letters is of a model that sees them.
    is_cased = any(piece != piece.lower() for piece in pieces if not _is_bracketed(piece))
    lowers = metadata.get("tokenizer.ggml.normalizer.lowercase", not is_cased)
    strips = metadata.get("tokenizer.ggml.normalizer.strip_accents")
    return word_pieces(path, pieces, {"do_lower_case": lowers is True, "strip_accents": _truth(strips)})


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _piece(token: str) -> str:
    if token.startswith(_WORD):
        return token.removeprefix(_WORD)
    return token if _is_bracketed(token) else f"##{token}"


def _is_bracketed(token: str) -> bool:
    return token.startswith("[") and token.endswith("]")


def _tokens(path: Path, metadata: Metadata) -> list[str]:
    found = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(found, _rust.Texts) or not len(found):
        raise ModelError(f"{path}: the file has no 'tokenizer.ggml.tokens'", model=str(path))
    tokens = [found[index] for index in range(len(found))]
    refuse_long_pieces(tokens, path)
    return tokens


def _frame(path: Path, inner: tokenizers.Tokenizer, metadata: Metadata) -> None:
    """Have special tokens be put around a text, and between those of a pair, as the file says."""
    kind = metadata.get("tokenizer.ggml.model")
    adds = {"bos": kind == "llama", "eos": kind == "t5", "sep": False}  # llama.cpp's defaults
    ids = {"bos": "bos", "eos": "eos", "sep": "seperator"}
    found: dict[str, int] = {}
    for name, key in ids.items():
        token = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token, int) and inner.id_to_token(token) is not None:
            found[name] = token
    for name, other in (("sep", "eos"), ("eos", "sep")):
        if name not in found and other in found:
            found[name] = found[other]
    added = {name for name in adds if metadata.get(f"tokenizer.ggml.add_{name}_token", adds[name]) is True}
    if missing := sorted(added - found.keys()):
        text = f"{path}: the file says that a token '{missing[0]}' is added to each text, and does not name one"
        raise ModelError(text, model=str(path))
    begin, end, between = ([name] if name in added else [] for name in ("bos", "eos", "sep"))
    special = [{"id": name, "ids": [found[name]], "tokens": [inner.id_to_token(found[name])]} for name in sorted(added)]
    inner.post_processor = processors.TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *end, *between, "$B", *end],
        special_tokens=cast("Any", special),
    )
