"""tokenizer.json as `tokenizers` reads it, less what would end the process."""

from __future__ import annotations

from pathlib import Path

import msgspec
import tokenizers

from pyagent.core.errors import ModelError
from pyagent.core.tokenizers import Tokenizer
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import refuse_long_pieces
from pyagent.infrastructure.engine.tokens.huggingface import HuggingFaceTokenizer
from pyagent.infrastructure.engine.tokens.model_folder import ModelFolder, read_bounded


class _Model(msgspec.Struct):
    vocab: msgspec.Raw = msgspec.Raw(b"")


class _File(msgspec.Struct):
    model: _Model = msgspec.field(default_factory=_Model)


class HuggingFaceReader:
    """Reads tokenizer.json."""

    name = "huggingface"

    def matches(self, path: Path) -> bool:
        """Whether the folder has one."""
        return (path / "tokenizer.json").is_file()

    def load(self, path: Path) -> Tokenizer:
        """Return the folder's tokenizer."""
        file, folder = path / "tokenizer.json", ModelFolder(path)
        inner = read_tokenizer(file)
        num_tokens = 1 + max(inner.get_vocab().values(), default=-1)  # ids may have holes
        made = HuggingFaceTokenizer(
            inner, str(path), num_tokens=num_tokens, end_ids=folder.end_ids, suppressed_ids=folder.suppressed_ids
        )
        made.begin_id = folder.begin_id(made.first_token())
        return made


def read_tokenizer(file: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer in a file. Raises `ModelError` saying what is wrong with it."""
    data = read_bounded(file)
    try:
        _check(data, file)
        return tokenizers.Tokenizer.from_str(data.decode())
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{file}: not a tokenizer: {error}", model=str(file.parent)) from error


def _check(data: bytes, file: Path) -> None:
    """Refuse a list of pieces, which only unigrams have, with one too long."""
    vocabulary = bytes(msgspec.json.decode(data, type=_File).model.vocab)
    if vocabulary.startswith(b"["):
        refuse_long_pieces((piece for piece, _ in msgspec.json.decode(vocabulary, type=list[tuple[str, float]])), file)
