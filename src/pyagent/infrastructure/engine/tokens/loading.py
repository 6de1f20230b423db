"""From a model's folder or file to its tokenizer and chat template, by the first reader that knows its files.

The built-in readers are tokenizer factories as plugins bring them; plugins' are asked first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyagent.core.errors import ModelError
from pyagent.core.tokenizers import Tokenizer, TokenizerFactory, TokenizerOptions
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import GgufReader
from pyagent.infrastructure.engine.tokens.sentencepiece_model import SentencePieceReader
from pyagent.infrastructure.engine.tokens.tekken import TekkenReader
from pyagent.infrastructure.engine.tokens.template_choice import choose_template
from pyagent.infrastructure.engine.tokens.templates import ChatTemplate
from pyagent.infrastructure.engine.tokens.tiktoken_ranks import TiktokenReader
from pyagent.infrastructure.engine.tokens.tokenizer_json import HuggingFaceReader

READERS: Sequence[TokenizerFactory] = (
    GgufReader(),
    HuggingFaceReader(),
    TekkenReader(),
    TiktokenReader(),
    SentencePieceReader(),
)
"""The built-in ones: of several kinds that a folder has, the first is read."""


def load_parts(path: Path, options: TokenizerOptions) -> tuple[Tokenizer, ChatTemplate | None]:
    """Return a model's tokenizer and chat template. Raises `ModelError` saying what is wrong with its files."""
    tokenizer = _reader(path, options).load(path)
    return tokenizer, choose_template(path, tokenizer, options.chat_template)


def _reader(path: Path, options: TokenizerOptions) -> TokenizerFactory:
    readers = [*options.brought, *READERS]
    if options.name == "auto":
        found = next((reader for reader in readers if reader.matches(path)), None)
        if found is None:
            known = "tokenizer.json, tekken.json, *.tiktoken, tokenizer.model or spiece.model"
            text = f"{path}: no {known}; save the model with its tokenizer"
            raise ModelError(text, model=str(path))
        return found
    return next(reader for reader in readers if reader.name == options.name)
