"""A folder's tokenizer as the metadata of GGUF files, with the keys of llama.cpp's converter.

GGUF names a way to cut words (`tokenizer.ggml.pre`) where tokenizer.json spells it out. The name is found by what it
does: words of a text made to tell the known ones apart. In the end the tokenizer is built from the metadata, and texts
must become the same tokens by both; what cannot be said in GGUF is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import tokenizers
from tokenizers import pre_tokenizers

from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import BYTE, UNKNOWN, build_tokenizer
from pyagent.infrastructure.engine.tokens.huggingface import HuggingFaceTokenizer, byte_alphabet
from pyagent.infrastructure.engine.tokens.model_folder import ModelFolder, object_in, read_json
from pyagent.infrastructure.engine.tokens.tokenizer_json import HuggingFaceReader
from pyagent.infrastructure.models.quantize import gguf_file
from pyagent.infrastructure.models.quantize.bounds import refuse_large_template, refuse_large_tokenizer
from pyagent.infrastructure.models.quantize.gguf_file import Metadata

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_PRE_TOKENIZERS = (
    "qwen2",
    "qwen35",
    "gpt-4o",
    "smollm",
    "gpt-2",
    "seed-coder",
    "deepseek-v3",
    "stablelm2",
    "kimi-k2",
    "afmoe",
    "exaone-moe",
    "falcon",
    "bloom",
    "cohere2moe",
    "jais-2",
)
_TEXTS, _SCORES = {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}, "tokenizer.ggml.scores"
_VISIBLE = frozenset(f"<{name}>" for name in ("|channel", "channel|", "|tool_call", "tool_call|", '|"|')) | {
    "<|tool_response>",
    "<tool_response|>",
}
_SAME_SCORE = -1000.0
"""What llama.cpp's converter gives each token of a vocabulary with merges."""
_END_KEYS = ("eos", "eot", "eom")
_PROBE = (
    "Hello  world, it's 12345 o'CLOCK!\n\n  \t def f(x):\n        return x+1  # naïve cafe\u0301 \u00c5ngstr\u00f6m\n"
    "\u4f60\u597d\uff0c\u4e16\u754c 3.14159 \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 "
    "\U0001f600\U0001f468\u200d\U0001f469 camelCaseWord SHOUTING 'll 'LL // http://a.b/c?d=e&f \u00bd\u00b2 "
    "__init__ \r\n"
)

Json = Mapping[str, object]


def vocabulary_metadata(path: Path, num_rows: int, *, has_merges: bool = False) -> Metadata:
    """Return a folder's tokenizer and chat template for a model with so many rows of embeddings.

    `has_merges` says that the family's files have SentencePiece's kind with merges, as Gemma 4's, not scores.
    Raises `ModelError` for one that GGUF cannot describe.
    """
    if not HuggingFaceReader().matches(path):
        text = f"{path}: its tokenizer cannot be written as GGUF: there is no tokenizer.json; save the model with one"
        raise ModelError(text, model=str(path))
    told = read_json(path / "tokenizer.json")
    refuse_large_tokenizer(path / "tokenizer.json", told)
    tokenizer = HuggingFaceReader().load(path)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    model = object_in(told, "model")
    if model.get("type") != "BPE":
        text = f"{path}: its tokenizer is {str(model.get('type'))!r:.40}, which cannot be written as GGUF; expected BPE"
        raise ModelError(text, model=str(path))
    tokens, types = _tokens(path, tokenizer, num_rows)
    described: dict[str, object] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    if model.get("byte_fallback") and has_merges:
        described |= _merged(model, tokens, types)
    elif model.get("byte_fallback"):
        described |= _sentencepiece(told, model, tokens, types)
    else:
        described |= _byte_level(path, tokenizer, model)
    _compare(path, tokenizer, described)
    return _encoded(described) | _special(path, tokenizer, num_rows)


def _tokens(path: Path, tokenizer: HuggingFaceTokenizer, num_rows: int) -> tuple[list[str], list[int]]:
    """Return the texts and types of all tokens; rows of embeddings without a token get one of no use."""
    names = {token: name for name, token in tokenizer.inner.get_vocab(with_added_tokens=True).items()}
    if not names:
        raise ModelError(f"{path}: its tokenizer has no tokens", model=str(path))
    if max(names) >= num_rows:
        text = f"{path}: the tokenizer has a token {max(names)}, the embedding {num_rows} rows; they are of two models"
        raise ModelError(text, model=str(path))
    tokens, types = [names.get(row, f"[PAD{row}]") for row in range(num_rows)], [_NORMAL] * num_rows
    for row in range(num_rows):
        if row not in names:
            types[row] = _UNUSED
        elif (added := tokenizer.added.get(row)) is not None:
            types[row] = _CONTROL if added.special else _USER_DEFINED
    return tokens, types


def _byte_level(path: Path, tokenizer: HuggingFaceTokenizer, model: Json) -> dict[str, object]:
    ignores_merges = bool(model.get("ignore_merges"))
    names = [*(["llama-bpe", "tekken", "youtu"] if ignores_merges else ["dbrx"]), *_PRE_TOKENIZERS]
    wanted = _words(tokenizer.inner)
    name = next((name for name in names if wanted in _ways(name)), None)
    if name is None:
        text = f"{path}: its tokenizer cuts words as none of {', '.join(names)} does; it cannot be written as GGUF"
        raise ModelError(text, model=str(path))
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name, "tokenizer.ggml.merges": merge_lines(model)}


def _merge_line(merge: str | Sequence[str]) -> str:
    """Return a merge as one text; byte-level tokens have no spaces."""
    return merge if isinstance(merge, str) else " ".join(merge)


def _cutter(pre: str) -> tokenizers.Tokenizer:
    """Return a tokenizer that knows bytes alone and cuts words by this name."""
    tokens = [*byte_alphabet(), "\u0120t"]
    described = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens}
    return build_tokenizer({**described, "tokenizer.ggml.merges": ["\u0120 t"]}, pre)


def _ways(pre: str) -> list[list[str]]:
    """Return what the probe's words are by a name, in each of the ways in which tokenizer.json spells it out."""
    cutter = _cutter(pre)
    ways = [_words(cutter)]
    if pre == "falcon":  # its own has borders more, between digits and what is none, where its vocabulary has no merges
        digits, by_three = pre_tokenizers.Digits(), pre_tokenizers.Split(tokenizers.Regex("[0-9]{3}"), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        steps = [pre_tokenizers.Punctuation("contiguous"), byte_level, digits, by_three]
        cutter.pre_tokenizer = pre_tokenizers.Sequence(steps)
        ways.append(_words(cutter))
    return ways


def _words(tokenizer: tokenizers.Tokenizer) -> list[str]:
    normalizer, cutter = tokenizer.normalizer, tokenizer.pre_tokenizer
    text = normalizer.normalize_str(_PROBE) if normalizer else _PROBE
    return [word for word, _ in cutter.pre_tokenize_str(text)] if cutter else []


def _sentencepiece(told: Json, model: Json, tokens: list[str], types: list[int]) -> dict[str, object]:
    """Describe merges by scores: the earlier a token is made, the higher its score."""
    scores = dict.fromkeys(tokens, -float(len(tokens) * 2))
    merges = cast("Sequence[str | Sequence[str]]", model.get("merges") or [])
    for rank, merge in reversed([*enumerate(merges)]):
        scores["".join(merge.split(" ") if isinstance(merge, str) else merge)] = -float(rank)
    unknown = model.get("unk_token")
    for row, token in enumerate(tokens):
        if _is_byte(token):
            types[row] = BYTE
        elif token == unknown:
            types[row] = UNKNOWN
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        _SCORES: [scores[token] for token in tokens],
        "tokenizer.ggml.add_space_prefix": _adds_space(told),
    }


def _merged(model: Json, tokens: list[str], types: list[int]) -> dict[str, object]:
    """Describe Gemma 4's: marked spaces and bytes with merges; what calls a tool is text that chats read."""
    for row, token in enumerate(tokens):
        if _is_byte(token):
            types[row] = BYTE
        elif token in _VISIBLE:
            types[row] = _USER_DEFINED
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.merges": merge_lines(model),
        _SCORES: [_SAME_SCORE] * len(tokens),
        "tokenizer.ggml.add_space_prefix": False,
    }


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def merge_lines(model: Json) -> list[str]:
    """Return what `tokenizer.json` says of merges, each as one text."""
    return [_merge_line(merge) for merge in cast("Sequence[str | Sequence[str]]", model.get("merges") or [])]


def _adds_space(told: Json) -> bool:
    """Whether a space is put before a text."""
    if (cutter := object_in(told, "pre_tokenizer")).get("type") == "Metaspace":
        return cutter.get("prepend_scheme", "always") != "never"
    normalizer = object_in(told, "normalizer")
    steps = cast("list[Json]", normalizer.get("normalizers") or [normalizer])
    return any(step.get("type") == "Prepend" for step in steps)


def _compare(path: Path, tokenizer: HuggingFaceTokenizer, described: Json) -> None:
    """Refuse a description by which texts become other tokens."""
    rebuilt = build_tokenizer(described, str(path))
    special = [token for token in tokenizer.special_tokens if token.strip()][:8]
    for text in (_PROBE, _PROBE.swapcase(), *special):
        if rebuilt.encode(text, add_special_tokens=False).ids != tokenizer.encode(text):
            what = f"{path}: its tokenizer cannot be written as GGUF: {text[:40]!r} would become other tokens"
            raise ModelError(what, model=str(path))


def _encoded(described: Json) -> Metadata:
    encoded: Metadata = {}
    for key, value in described.items():
        match value:
            case bool():
                encoded[key] = gguf_file.boolean(value)
            case str():
                encoded[key] = gguf_file.string(value)
            case _ if key in _TEXTS:
                encoded[key] = gguf_file.strings(cast("list[str]", value))
            case _ if key == _SCORES:
                encoded[key] = gguf_file.float32s(cast("list[float]", value))
            case _:
                encoded[key] = gguf_file.int32s(cast("list[int]", value))
    return encoded


def _special(path: Path, tokenizer: HuggingFaceTokenizer, num_rows: int) -> Metadata:
    """Describe the tokens before and after texts, and the chat template; what is no token is left out."""
    folder = ModelFolder(path)
    begin, named = folder.settings.get("bos_token_id"), tokenizer.special_tokens
    begin = tokenizer.begin_id if tokenizer.begin_id is not None else named.get(folder.token_name("bos_token"), begin)
    found: Metadata = {"tokenizer.ggml.add_bos_token": gguf_file.boolean(tokenizer.begin_id is not None)}
    if isinstance(begin, int) and 0 <= begin < num_rows:
        found["tokenizer.ggml.bos_token_id"] = gguf_file.uint32(begin)
    ends = [token for token in dict.fromkeys(folder.end_ids) if 0 <= token < num_rows]
    if (own := named.get(folder.token_name("eos_token"))) is not None:
        ends.sort(key=lambda token: token != own)  # the template's `eos_token`
        ends = ends or [own]
    if len(ends) > len(_END_KEYS):
        text = f"{path}: {len(ends)} tokens end an answer; GGUF files have room for {len(_END_KEYS)}"
        raise ModelError(text, model=str(path))
    for key, token in zip(_END_KEYS, ends, strict=False):
        found[f"tokenizer.ggml.{key}_token_id"] = gguf_file.uint32(token)
    for key, name in (("padding", "pad_token"), ("unknown", "unk_token")):
        if (token := named.get(folder.token_name(name))) is not None:
            found[f"tokenizer.ggml.{key}_token_id"] = gguf_file.uint32(token)
    if folder.template is not None:
        refuse_large_template(path, folder.template)
        found["tokenizer.chat_template"] = gguf_file.string(folder.template)
    return found
