"""Which chat template a model has: what the settings name, else its own, else that of the family its tokens show."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pyagent import _rust
from pyagent.core.chat_templates import TEMPLATES, family_of
from pyagent.core.errors import ConfigError, ModelError
from pyagent.core.nearest import did_you_mean
from pyagent.infrastructure.engine.tokens.huggingface import HuggingFaceTokenizer
from pyagent.infrastructure.engine.tokens.model_folder import ModelFolder
from pyagent.infrastructure.engine.tokens.templates import MAX_TEMPLATE_CHARS, ChatTemplate

if TYPE_CHECKING:
    from pyagent.core.tokenizers import Tokenizer

logger = logging.getLogger(__name__)
AUTO = "auto"


def choose_template(path: Path, tokenizer: Tokenizer, chosen: str = AUTO) -> ChatTemplate | None:
    """Return the chat template of a model; None where nothing says how it is asked. Raises `ModelError`."""
    files = ModelFolder(path) if path.is_dir() else GgufHeader(path)
    source, name = read_chosen(chosen) if chosen != AUTO else (files.template or "", "")
    if not source:
        name = family(tokenizer) or ("plain" if files.is_encoder_decoder else "")
        source = TEMPLATES.get(name, "")
    if name:
        logger.info("the model %s is asked by the built-in chat template %s", path.name, name)
    return ChatTemplate(source, _texts(files, tokenizer), str(path), built_in=name) if source else None


def own_template(path: Path) -> ChatTemplate | None:
    """Return the chat template in a model's own files, without its tokens. Raises `ModelError`."""
    files = ModelFolder(path) if path.is_dir() else GgufHeader(path)
    return ChatTemplate(files.template, {}, str(path)) if files.template else None


class GgufHeader:
    """What the header of a GGUF file says of chats. Raises `ModelError`."""

    def __init__(self, path: Path) -> None:
        try:
            self._metadata = _rust.read_model_header(path, arrays=False)["metadata"]
        except _rust.ModelFileError as error:
            raise ModelError(str(error), model=str(path)) from error

    @property
    def template(self) -> str | None:
        """The source of its chat template."""
        source = self._metadata.get("tokenizer.chat_template")
        return source if isinstance(source, str) else None

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether an encoder reads the prompts."""
        return self._metadata.get("general.architecture") == "t5"

    def token_id(self, key: str) -> int | None:
        """Return the token that begins or ends a text (`bos`, `eos`), whether or not prompts have it."""
        token = self._metadata.get(f"tokenizer.ggml.{key}_token_id")
        return token if isinstance(token, int) else None


def family(tokenizer: Tokenizer) -> str | None:
    """Return the name of the built-in template that goes with a vocabulary."""
    told = tokenizer.family if isinstance(tokenizer, HuggingFaceTokenizer) else ""
    return told or family_of(_names(tokenizer))


def read_chosen(chosen: str, key: str = "engine.chat_template") -> tuple[str, str]:
    """Return the source that a setting names, by a built-in name, a file or as it is, and a built-in's name.

    Raises `ConfigError` for what is none.
    """
    if chosen in TEMPLATES:
        return TEMPLATES[chosen], chosen
    if "{{" in chosen or "{%" in chosen:
        return chosen, ""
    file = Path(chosen).expanduser()
    try:
        if file.is_file() and file.stat().st_size <= 4 * MAX_TEMPLATE_CHARS:
            return file.read_text(encoding="utf-8"), ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: {file} cannot be read: {error}", key=key) from error
    hint = did_you_mean(chosen, [AUTO, *TEMPLATES], f"there are {', '.join(TEMPLATES)}")
    text = f"{key}: {chosen[:80]!r} is no template, no file and no built-in name; {hint}"
    raise ConfigError(text, key=key)


def _names(tokenizer: Tokenizer) -> set[str]:
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return {token.content for token in tokenizer.added.values()}
    return set(tokenizer.special_tokens)


def _texts(files: ModelFolder | GgufHeader, tokenizer: Tokenizer) -> dict[str, str]:
    """Return what templates call `bos_token` and `eos_token`."""
    if isinstance(files, GgufHeader):
        return {f"{key}_token": _name_of(files.token_id(key), tokenizer) for key in ("bos", "eos")}
    begin, end = tokenizer.begin_id, min(tokenizer.end_ids, default=None)
    usual = {"bos_token": _name_of(begin, tokenizer), "eos_token": _name_of(end, tokenizer)}
    return {key: files.token_name(key) or text for key, text in usual.items()}


def _name_of(token: int | None, tokenizer: Tokenizer) -> str:
    if token is None or not 0 <= token < tokenizer.num_tokens:
        return ""
    named = (name for name, other in tokenizer.special_tokens.items() if other == token)
    return next(named, tokenizer.token_bytes(token).decode(errors="replace"))
