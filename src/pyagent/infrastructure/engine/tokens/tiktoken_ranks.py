"""Rank files of tiktoken: a token in base64 and its rank a line. The pattern and the control tokens stand elsewhere.

They are in tokenizer_config.json (`pat_str`, `added_tokens_decoder`), or known of the vocabularies that have a name.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from pathlib import Path

from pyagent.core.errors import ModelError
from pyagent.core.tokenizers import Tokenizer
from pyagent.infrastructure.engine.tokens.byte_ranks import MAX_BYTES, MAX_TOKENS, build_ranked
from pyagent.infrastructure.engine.tokens.model_folder import ModelFolder, file_in, read_bounded
from pyagent.infrastructure.engine.tokens.word_patterns import CL100K, GPT2, KIMI, O200K, QWEN

_MAX_FILE_BYTES = 2 * MAX_BYTES
_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) (\d{1,7})")
_FILES = ("*.tiktoken", "tiktoken.model", "tokenizer.model")


@dataclass(frozen=True, slots=True)
class _Known:
    """A vocabulary with a name: how it cuts words, and its control tokens, by id or after the ranks."""

    pattern: str
    ids: dict[str, int] = field(default_factory=dict[str, int])
    after_ranks: tuple[str, ...] = ()


_END_OF_TEXT = {"<|endoftext|>": 50256}
_FILLS = {"<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260}
_LLAMA3 = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
    *("<|reserved_special_token_2|>", "<|reserved_special_token_3|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|reserved_special_token_4|>", "<|eot_id|>"),
    *(f"<|reserved_special_token_{number}|>" for number in range(5, 251)),
)
_QWEN_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
_HARMONY_TOKENS = {
    "<|startoftext|>": 199998,
    "<|endoftext|>": 199999,
    "<|return|>": 200002,
    "<|constrain|>": 200003,
    "<|channel|>": 200005,
    "<|start|>": 200006,
    "<|end|>": 200007,
    "<|message|>": 200008,
    "<|call|>": 200012,
    "<|endofprompt|>": 200018,
}
_HARMONY_RESERVED = {
    f"<|reserved_{token}|>": token for token in range(200000, 201088) if token not in _HARMONY_TOKENS.values()
}
KNOWN = {
    "gpt2": _Known(GPT2, _END_OF_TEXT),
    "r50k_base": _Known(GPT2, _END_OF_TEXT),
    "p50k_base": _Known(GPT2, _END_OF_TEXT),
    "cl100k_base": _Known(CL100K, {"<|endoftext|>": 100257, **_FILLS, "<|endofprompt|>": 100276}),
    "o200k_base": _Known(O200K, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
    "o200k_harmony": _Known(O200K, _HARMONY_TOKENS | _HARMONY_RESERVED),
    "llama3": _Known(CL100K, after_ranks=_LLAMA3),
    "qwen": _Known(QWEN, after_ranks=_QWEN_TOKENS),
    "kimi": _Known(KIMI),
}
_CLASSES = {"QWenTokenizer": "qwen", "TikTokenTokenizer": "kimi"}
"""By `tokenizer_class` of tokenizer_config.json."""


class TiktokenReader:
    """Reads rank files."""

    name = "tiktoken"

    def matches(self, path: Path) -> bool:
        """Whether the folder has one."""
        return _file_in(path) is not None

    def load(self, path: Path) -> Tokenizer:
        """Return the folder's tokenizer."""
        file, folder = _file_in(path), ModelFolder(path)
        if file is None:
            raise ModelError(f"{path}: no rank file of tiktoken", model=str(path))
        ranks = _read_ranks(file)
        known = _known(file, folder)
        added = {token: (text, True) for text, token in known.ids.items()}
        added |= {token: (text, True) for token, text in enumerate(known.after_ranks, len(ranks))}
        added = folder.added_tokens or added
        made = build_ranked(ranks, added, known.pattern, str(path))
        begin = made.special_tokens.get(folder.token_name("bos_token") or "<|begin_of_text|>")
        made.begin_id = folder.begin_id(begin)
        ended = made.special_tokens.get(folder.token_name("eos_token"))
        made.end_ids = frozenset(folder.end_ids) | ({ended} if ended is not None else frozenset[int]())
        return made


def _file_in(path: Path) -> Path | None:
    """Return the folder's rank file: `tokenizer.model` may be one, or SentencePiece's."""
    return file_in(path, _FILES, _is_ranks)


def _is_ranks(file: Path) -> bool:
    with file.open("rb") as opened:
        return _LINE.match(opened.read(2048)) is not None


def _read_ranks(file: Path) -> list[bytes]:
    """Return the tokens by rank. Raises `ModelError` for a line that is none, or a rank that is missing."""
    name = str(file.parent)
    rank_to_token: dict[int, bytes] = {}
    for number, line in enumerate(read_bounded(file, _MAX_FILE_BYTES).splitlines(), 1):
        if not line.strip():
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None or number > MAX_TOKENS:
            raise ModelError(f"{file}: line {number} is not a token in base64 and its rank", model=name)
        try:
            rank_to_token[int(found[2])] = base64.b64decode(found[1], validate=True)
        except binascii.Error as error:
            raise ModelError(f"{file}: line {number} is not base64: {error}", model=name) from error
    missing = next((rank for rank in range(len(rank_to_token)) if rank not in rank_to_token), None)
    if missing is not None:
        raise ModelError(f"{file}: the rank {missing} is missing", model=name)
    return [rank_to_token[rank] for rank in range(len(rank_to_token))]


def _known(file: Path, folder: ModelFolder) -> _Known:
    """Return how the vocabulary cuts words. Raises `ModelError` where nothing says it."""
    pattern = folder.about.get("pat_str")
    if isinstance(pattern, str) and pattern:
        return _Known(pattern)
    name = _CLASSES.get(str(folder.about.get("tokenizer_class")), file.stem)
    if name not in KNOWN and folder.settings.get("model_type") == "llama":
        name = "llama3"
    if name not in KNOWN:
        text = f"{file}: how it cuts words is not known; write its pattern into tokenizer_config.json as pat_str"
        raise ModelError(f"{text}, or name the file as one of {', '.join(KNOWN)}", model=str(file.parent))
    return KNOWN[name]
