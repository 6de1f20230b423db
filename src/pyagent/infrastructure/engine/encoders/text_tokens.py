"""From a text to an encoder's tokens, the special ones around it included. The files are hostile input.

Knows the vocabulary's files, not the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from pyagent import _rust
from pyagent.core.errors import ContextOverflowError, ModelError, RequestError
from pyagent.infrastructure.engine.tokens.model_folder import read_bounded, read_json

_UNKNOWN, _BEGIN, _END = "[UNK]", "[CLS]", "[SEP]"
_WORD = "▁"
"""What GGUF files put before a piece that begins a word."""


class TextTokens:
    """The tokens of texts for one encoder. Any thread may call it."""

    def __init__(self, path: Path, max_tokens: int, vocab_size: int) -> None:
        """Raises `ModelError` for a folder without a vocabulary, or with one that is not the model's."""
        self._inner = _read(path)
        self._inner.no_padding()
        self._inner.no_truncation()
        self.max_tokens = max_tokens
        num_tokens = 1 + max(self._inner.get_vocab().values(), default=-1)
        if num_tokens > vocab_size:
            text = f"{path}: its tokenizer has {num_tokens} tokens, the model {vocab_size}; take both from one source"
            raise ModelError(text, model=str(path))

    def encode(self, texts: Sequence[str], first: int = 0, *, truncates: bool = False) -> list[list[int]]:
        """Return each text's tokens; a longer one is cut where `truncates` says so. `first` is the first one's number.

        Raises `RequestError` naming a text that is empty, longer than the model takes, or no Unicode.
        """
        for number, text in enumerate(texts, first):
            _check(text, number)
        found = self._inner.encode_batch(list(texts))
        return [self._cut(one, number, truncates) for number, one in enumerate(found, first)]

    def _cut(self, encoding: tokenizers.Encoding, number: int, truncates: bool) -> list[int]:
        ids, most = encoding.ids, self.max_tokens
        if len(ids) <= most:
            return ids
        if not truncates:
            raise ContextOverflowError(
                f"input {number} has {len(ids)} tokens, the model takes {most}; send shorter texts, or set truncate",
                num_tokens=len(ids),
                limit=most,
            )
        num_closing = 0
        for is_special in reversed(encoding.special_tokens_mask):
            if not is_special:
                break
            num_closing += 1
        num_closing = min(num_closing, most - 1)
        return ids[: most - num_closing] + ids[len(ids) - num_closing :]


def _check(text: str, number: int) -> None:
    if not text:
        raise RequestError(f"input {number} is empty; there is nothing to embed", param="input")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"input {number} is no Unicode text: {error.reason}", param="input") from error


def _read(path: Path) -> tokenizers.Tokenizer:
    file, vocabulary = path / "tokenizer.json", path / "vocab.txt"
    try:
        if path.is_file():
            return _of_gguf(path)
        if file.is_file():
            return tokenizers.Tokenizer.from_str(read_bounded(file).decode())
        if vocabulary.is_file():
            return _word_pieces(path, vocabulary)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{path}: not a tokenizer: {error}", model=str(path)) from error
    raise ModelError(f"{path}: no tokenizer.json or vocab.txt; save the model with its tokenizer", model=str(path))


def _word_pieces(path: Path, vocabulary: Path) -> tokenizers.Tokenizer:
    """BERT's tokenizer from its list of pieces."""
    pieces = read_bounded(vocabulary).decode().splitlines()
    return _of_pieces(vocabulary, pieces, read_json(path / "tokenizer_config.json"))


def _of_gguf(path: Path) -> tokenizers.Tokenizer:
    """BERT's tokenizer from a GGUF file, where beginnings of words are marked, not what goes on."""
    metadata = _rust.read_model_header(path)["metadata"]
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if kind != "bert" or not isinstance(tokens, list):
        raise ModelError(f"{path}: tokenizer {kind!r:.40} is not supported for an encoder; it is bert", model=str(path))
    return _of_pieces(path, [_piece(str(token)) for token in cast("list[object]", tokens)], {})


def _piece(token: str) -> str:
    if token.startswith(_WORD):
        return token.removeprefix(_WORD)
    return token if token.startswith("[") and token.endswith("]") else f"##{token}"


def _of_pieces(source: Path, pieces: Sequence[str], about: Mapping[str, object]) -> tokenizers.Tokenizer:
    ids = {piece: number for number, piece in enumerate(pieces)}
    if missing := [name for name in (_UNKNOWN, _BEGIN, _END) if name not in ids]:
        raise ModelError(f"{source}: {', '.join(missing)} is missing", model=str(source))
    strips = cast("bool | None", about.get("strip_accents"))
    inner = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=_UNKNOWN))
    inner.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=about.get("tokenize_chinese_chars") is not False,
        strip_accents=strips,
        lowercase=about.get("do_lower_case") is not False,
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.BertProcessing((_END, ids[_END]), (_BEGIN, ids[_BEGIN]))
    adding: Any = inner  # the library leaves the type of this method open
    adding.add_special_tokens([name for name in ("[PAD]", _UNKNOWN, _BEGIN, _END, "[MASK]") if name in ids])
    return inner
