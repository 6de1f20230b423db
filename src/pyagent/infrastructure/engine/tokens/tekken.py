"""Mistral's tekken.json: byte-level BPE by ranks, with control tokens before it and its pattern in the file."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

import msgspec

from pyagent.core.errors import ModelError
from pyagent.core.tokenizers import Tokenizer
from pyagent.infrastructure.engine.tokens.byte_ranks import build_ranked
from pyagent.infrastructure.engine.tokens.model_folder import ModelFolder, read_bounded

FILE = "tekken.json"
_BEFORE_V7 = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""The control tokens of files that do not list theirs."""


class _Rank(msgspec.Struct):
    token_bytes: str


class _Special(msgspec.Struct):
    rank: int
    token_str: str


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int
    version: str = ""


class _Tekken(msgspec.Struct):
    config: _Config
    vocab: list[_Rank]
    special_tokens: list[_Special] | None = None


class TekkenReader:
    """Reads tekken.json."""

    name = "tekken"

    def matches(self, path: Path) -> bool:
        """Whether the folder has one."""
        return (path / FILE).is_file()

    def load(self, path: Path) -> Tokenizer:
        """Return the folder's tokenizer."""
        told, name = read_tekken(path), str(path)
        num_special = told.config.default_num_special_tokens
        num_ranks = told.config.default_vocab_size - num_special
        if not (0 <= num_special <= 1 << 16 and 0 < num_ranks <= len(told.vocab)):
            text = f"{FILE} promises {num_ranks} tokens after {num_special} control tokens, and has {len(told.vocab)}"
            raise ModelError(f"{name}: {text}", model=name)
        try:
            ranks = [base64.b64decode(entry.token_bytes, validate=True) for entry in told.vocab[:num_ranks]]
        except (binascii.Error, ValueError) as error:
            raise ModelError(f"{name}: {FILE} has a token that is not base64: {error}", model=name) from error
        names = _special_names(told, num_special)
        added = {token: (text, True) for token, text in enumerate(names)}
        made = build_ranked(ranks, added, told.config.pattern, name, first_rank=num_special)
        folder = ModelFolder(path)
        made.family = _family(told.config.version)
        made.begin_id = folder.begin_id(made.special_tokens.get("<s>"))
        made.end_ids = frozenset(folder.end_ids) | {made.special_tokens[text] for text in ("</s>",) if text in names}
        return made


def read_tekken(path: Path) -> _Tekken:
    """Return what the folder's tekken.json says. Raises `ModelError`."""
    file = path / FILE
    try:
        return msgspec.json.decode(read_bounded(file), type=_Tekken)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise ModelError(f"{file}: not a tekken file: {error}", model=str(path)) from error


def _family(version: str) -> str:
    """Return the chat template of a version, `v3` or `v11` say: system prompts have tokens of their own from 7 on."""
    number = version.removeprefix("v").partition("m")[0]
    return "mistral-v7" if number.isdecimal() and int(number) >= 7 else "mistral-v3"


def _special_names(told: _Tekken, num_special: int) -> list[str]:
    listed = dict(enumerate(_BEFORE_V7))
    if told.special_tokens:
        listed = {one.rank: one.token_str for one in told.special_tokens}
    return [listed.get(token, f"<SPECIAL_{token}>") for token in range(num_special)]
