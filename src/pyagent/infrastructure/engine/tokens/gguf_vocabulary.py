"""Builds a `tokenizers.Tokenizer` from a GGUF file's metadata.

Four kinds exist: byte-level BPE (`gpt2`), whose way of cutting text into words is named by `tokenizer.ggml.pre`,
SentencePiece BPE (`llama`), which has scores in place of merges, Gemma 4's, which is the latter with merges, and
SentencePiece's unigrams (`t5`). A
vocabulary of Python strings would leave 7 MB behind when it is gone, so byte-level BPE goes to `tokenizers` by files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.tokens.huggingface import HuggingFaceTokenizer
from pyagent.infrastructure.engine.tokens.word_patterns import (
    AFMOE,
    BLOOM,
    CL100K,
    COHERE2_MOE,
    DEEPSEEK_V3,
    EXAONE_MOE,
    FALCON,
    JAIS2,
    KIMI,
    O200K,
    QWEN,
    QWEN35,
    SEED,
    TEKKEN,
    YOUTU,
)

# Token types of GGUF.
_NORMAL, UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, BYTE = range(1, 7)
MADE_OF_TEXT = frozenset({_NORMAL, _USER_DEFINED, _UNUSED})

# DBRX's words, which Granite 4 has, are Llama 3's.
_PATTERNS: dict[str, tuple[str, ...]] = {
    "llama-bpe": (CL100K,),
    "llama3": (CL100K,),
    "lfm2": (CL100K,),
    "dbrx": (CL100K,),
    "glm4": (CL100K,),
    "gpt-4o": (O200K,),
    "llama4": (O200K,),
    "tekken": (TEKKEN,),
    "seed-coder": (SEED,),
    "deepseek-v3": DEEPSEEK_V3,
    "afmoe": AFMOE,
    "stablelm2": (QWEN,),
    "kimi-k2": (KIMI,),
    "youtu": YOUTU,
    "exaone-moe": (EXAONE_MOE,),
    "falcon": FALCON,
    "bloom": (BLOOM,),
    "cohere2moe": COHERE2_MOE,
    "jais-2": (JAIS2,),
}
# A whole word that is a token stays as it is, before any merging.
_TAKES_WHOLE_WORDS = frozenset({"llama-bpe", "llama3", "lfm2", "glm4", "tekken", "youtu"})
# These begin each text with the token for it where the file does not say.
_BEGINS_TEXTS = frozenset({"llama-bpe", "llama3", "lfm2", "tekken"})
# Words with a space between them are one.
_JOINS_WORDS = frozenset({"exaone-moe"})
_WORD = "▁"
_MOST_CHARS = 4_096
"""More letters than any piece has. `tokenizers` frees a tree of pieces letter by letter on the stack, which millions
overflow."""
# Gemma has a token for up to so many line breaks.
_MOST_BREAKS = 32
# Refact's, which Granite 3 has, are StarCoder's and SmolLM's.
_SINGLE_DIGITS = frozenset({"smollm", "refact"})
_QWEN_WORDS = {"qwen2": QWEN, "qwen35": QWEN35}
_GPT2_WORDS = frozenset({"gpt-2", "default"})
SUPPORTED_PRE_TOKENIZERS = (*_PATTERNS, *sorted(_SINGLE_DIGITS), *_QWEN_WORDS, *sorted(_GPT2_WORDS))
_SAME_WORDS = {
    **dict.fromkeys(("llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "jina-v5-nano"), "llama-bpe"),
    **dict.fromkeys(("smaug-bpe", "chatglm-bpe"), "dbrx"),
    **dict.fromkeys(("kanana2", "talkie", "minimax-m2"), "gpt-4o"),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"), "qwen2"),
    **dict.fromkeys(("hunyuan", "solar-open", "grok-2", "bailingmoe", "bailingmoe2", "llada-moe"), "stablelm2"),
    **dict.fromkeys(("starcoder", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), "smollm"),
    **dict.fromkeys(("phi-2", "mpt", "olmo", "jais", "gigachat", "a.x-4.0", "exaone4", "mellum", "trillion"), "gpt-2"),
    **dict.fromkeys(("granite-docling", "roberta-bpe", "modern-bert"), "gpt-2"),
    **dict.fromkeys(("gpt3-finnish", "poro-chat"), "bloom"),
    "hunyuan-dense": "deepseek-v3",
    "glm5": "glm4",
    "tiny_aya": "cohere2moe",
}
"""Further names that llama.cpp has for vocabularies, and which of the others cut as they do, as its loader says."""


class GgufReader:
    """Reads the tokenizer of a GGUF file."""

    name = "gguf"

    def matches(self, path: Path) -> bool:
        """Whether it may be such a file: a folder is none."""
        return path.is_file()

    def load(self, path: Path) -> HuggingFaceTokenizer:
        """Return the file's tokenizer. Raises `ModelError` saying what is wrong with it."""
        try:
            metadata = _rust.read_model_header(path, packed=True)["metadata"]
        except _rust.ModelFileError as error:
            raise ModelError(str(error), model=str(path)) from error
        inner = build_tokenizer(metadata, str(path))
        declared = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom"))
        begin_id = metadata.get("tokenizer.ggml.bos_token_id")
        # llama.cpp's defaults for files that do not say.
        is_sentencepiece = metadata["tokenizer.ggml.model"] in {"llama", "gemma4"}
        is_usual = is_sentencepiece or _words_of(metadata) in _BEGINS_TEXTS
        adds_begin = metadata.get("tokenizer.ggml.add_bos_token", is_usual)
        return HuggingFaceTokenizer(
            inner,
            str(path),
            num_tokens=len(cast("_rust.Texts", metadata["tokenizer.ggml.tokens"])),
            begin_id=begin_id if adds_begin and isinstance(begin_id, int) else None,
            end_ids=[token for token in declared if isinstance(token, int)],
            suppressed_ids=_suppressed(metadata),
            cuts_words=metadata["tokenizer.ggml.model"] == "gpt2" and _words_of(metadata) not in _JOINS_WORDS,
        )


def _suppressed(metadata: Mapping[str, object]) -> list[int]:
    """Return the tokens that are never to be written."""
    found = metadata.get("tokenizer.ggml.suppress_tokens")
    ids = cast("Sequence[object]", found) if isinstance(found, Sequence) and not isinstance(found, str) else ()
    return [one for one in ids if isinstance(one, int) and one >= 0]


def build_tokenizer(metadata: Mapping[str, object], name: str) -> Tokenizer:
    """Return the tokenizer a GGUF file describes. Raises `ModelError` naming what it lacks or what is not supported."""
    tokens = _texts(metadata, "tokenizer.ggml.tokens", name)
    types = cast("Sequence[int]", metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise ModelError(f"{name}: {len(tokens)} tokens but {len(types)} token types", model=name)
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(metadata, tokens, name)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata, tokens, types, name)
    elif kind == "gemma4":
        tokenizer = _merged(metadata, tokens, name)
    elif kind == "t5":
        tokenizer = _unigrams(metadata, tokens, types, name)
    else:
        known = "gpt2, llama, gemma4 and t5"
        raise ModelError(f"{name}: tokenizer '{kind}' is not supported; supported are {known}", model=name)
    add_special(tokenizer, tokens, types)
    return tokenizer


def _words_of(metadata: Mapping[str, object]) -> object:
    """Return the name of how texts are cut: of several that mean the same, the one known here."""
    name = metadata.get("tokenizer.ggml.pre", "default")
    return _SAME_WORDS.get(name, name) if isinstance(name, str) else name


def _byte_level(metadata: Mapping[str, object], tokens: _rust.Texts, name: str) -> Tokenizer:
    pre = _words_of(metadata)
    model = _read_bpe(tokens, _texts(metadata, "tokenizer.ggml.merges", name), pre in _TAKES_WHOLE_WORDS, name)
    tokenizer = Tokenizer(model)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if isinstance(pre, str) and (patterns := _PATTERNS.get(pre)):
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    elif isinstance(pre, str) and pre in _QWEN_WORDS:
        tokenizer.normalizer = normalizers.NFC()
        words = pre_tokenizers.Split(Regex(_QWEN_WORDS[pre]), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    elif pre in _SINGLE_DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif pre in _GPT2_WORDS:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        known = ", ".join(sorted({*SUPPORTED_PRE_TOKENIZERS, *_SAME_WORDS}))
        raise ModelError(f"{name}: pre-tokenizer '{pre}' is not supported; supported are {known}", model=name)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _read_bpe(tokens: _rust.Texts, merges: _rust.Texts, ignore_merges: bool, name: str) -> models.BPE:
    """Return the model of a vocabulary and its merges, by way of two files in a temporary folder."""
    try:
        lines = merges.to_merge_lines()
    except ValueError as error:
        raise ModelError(f"{name}: {error}", model=name) from error
    try:
        with tempfile.TemporaryDirectory(prefix="pyagent-") as folder:
            vocabulary_file, merges_file = Path(folder, "vocab.json"), Path(folder, "merges.txt")
            vocabulary_file.write_bytes(tokens.to_json())
            merges_file.write_bytes(lines)
            files = (str(vocabulary_file), str(merges_file))
            return cast("_BpeReader", models.BPE).from_file(*files, ignore_merges=ignore_merges)
    except OSError as error:
        reason = f"the tokenizer needs a temporary folder it can write to: {error}; name one with TMPDIR"
        raise ModelError(f"{name}: {reason}", model=name) from error
    except Exception as error:
        raise ModelError(f"{name}: the tokenizer's merges do not fit its tokens: {error}", model=name) from error


def _sentencepiece(metadata: Mapping[str, object], tokens: _rust.Texts, types: Sequence[int], name: str) -> Tokenizer:
    scores = cast("Sequence[float]", metadata.get("tokenizer.ggml.scores") or [])
    if len(scores) != len(tokens):
        raise ModelError(f"{name}: {len(tokens)} tokens but {len(scores)} scores", model=name)
    # Control and byte tokens are never made: text that spells one is text.
    made = [index for index, kind in enumerate(types) if kind in MADE_OF_TEXT]
    vocabulary = {tokens[index]: index for index in range(len(tokens))}
    adds_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    return _of_pieces(vocabulary, tokens.merges_by_score(made, scores), adds_space=adds_space)


def _merged(metadata: Mapping[str, object], tokens: _rust.Texts, name: str) -> Tokenizer:
    """Return Gemma 4's: marked spaces and bytes as SentencePiece's, with merges; line breaks are joined."""
    vocabulary = {tokens[index]: index for index in range(len(tokens))}
    written = _texts(metadata, "tokenizer.ggml.merges", name)
    merges = dict.fromkeys(_pair(written[index], name) for index in range(len(written)))
    breaks = [count for count in range(1, _MOST_BREAKS + 1) if "\n" * count in vocabulary]
    for count in breaks:
        pairs = (("\n" * first, "\n" * (count - first)) for first in breaks if count - first in breaks)
        merges |= dict.fromkeys(pair for pair in pairs if pair not in merges)
    try:
        return _of_pieces(vocabulary, list(merges), adds_space=False)
    except Exception as error:
        raise ModelError(f"{name}: the tokenizer's merges do not fit its tokens: {error}", model=name) from error


def _unigrams(metadata: Mapping[str, object], tokens: _rust.Texts, types: Sequence[int], name: str) -> Tokenizer:
    """SentencePiece's: of a word's pieces the likeliest together (Kudo 2018, arXiv 1804.10959)."""
    pieces = [tokens[index] for index in range(len(tokens))]
    refuse_long_pieces(pieces, name)
    found = metadata.get("tokenizer.ggml.scores")
    scores = cast("list[float]", found) if isinstance(found, list) else []
    if len(scores) != len(pieces):
        text = f"{name}: {len(pieces)} tokens, but 'tokenizer.ggml.scores' has {len(scores)} numbers"
        raise ModelError(text, model=name)
    if UNKNOWN not in types:
        text = f"{name}: no token stands for what is unknown ('tokenizer.ggml.token_type' {UNKNOWN})"
        raise ModelError(text, model=name)
    tokenizer = Tokenizer(models.Unigram(list(zip(pieces, scores, strict=True)), list(types).index(UNKNOWN)))
    charsmap = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if isinstance(charsmap, list) and charsmap:
        tokenizer.normalizer = normalizers.Precompiled(bytes(number % 256 for number in cast("list[int]", charsmap)))
    mark_words(tokenizer, adds_space=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)))
    return tokenizer


def mark_words(tokenizer: Tokenizer, *, adds_space: bool) -> None:
    """Have words be parted at spaces, of which those in a row are one, and be marked where they begin."""
    scheme = "always" if adds_space else "never"
    words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(_WORD, scheme)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    tokenizer.decoder = decoders.Metaspace(_WORD, scheme)


def refuse_long_pieces(pieces: Iterable[str], name: str | Path) -> None:
    """Raise `ModelError` for pieces with which `tokenizers` cannot be trusted; `name` is the file's."""
    if (longest := max(map(len, pieces), default=0)) > _MOST_CHARS:
        text = f"{name}: it has a token of {longest} characters; expected at most {_MOST_CHARS}"
        raise ModelError(text, model=str(name))


def _pair(merge: str, name: str) -> tuple[str, str]:
    first, _, second = merge.partition(" ")
    if not first or not second or " " in second:
        raise ModelError(f"{name}: {merge!r} is no merge of two tokens", model=name)
    return first, second


def _of_pieces(vocabulary: dict[str, int], merges: list[tuple[str, str]], *, adds_space: bool) -> Tokenizer:
    model = models.BPE(
        vocab=vocabulary,
        merges=merges,
        unk_token="<unk>" if "<unk>" in vocabulary else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    mark_spaces(tokenizer, adds_space=adds_space)
    return tokenizer


def mark_spaces(tokenizer: Tokenizer, *, adds_space: bool) -> None:
    """Have spaces be marked as SentencePiece does, and with `adds_space` one put before each text."""
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    cleanup: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        spaces.insert(0, normalizers.Prepend("▁"))
        cleanup.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(cleanup)


def add_special(tokenizer: Tokenizer, tokens: Sequence[str] | _rust.Texts, types: Sequence[int]) -> None:
    """Have control tokens, and those that users defined, be found in a text before it is cut."""
    special = [tokens[index] for index, kind in enumerate(types) if kind == _CONTROL]
    written = [tokens[index] for index, kind in enumerate(types) if kind == _USER_DEFINED]
    adding = cast("_TokenAdder", tokenizer)
    adding.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    adding.add_tokens([AddedToken(text, special=False, normalized=False) for text in written])


class _BpeReader(Protocol):
    """The part of `models.BPE` whose types it leaves open."""

    def from_file(self, vocab: str, merges: str, *, ignore_merges: bool) -> models.BPE: ...


class _TokenAdder(Protocol):
    """The part of `Tokenizer` whose types it leaves open."""

    def add_special_tokens(self, tokens: list[AddedToken]) -> int: ...

    def add_tokens(self, tokens: list[AddedToken]) -> int: ...


def _texts(metadata: Mapping[str, object], key: str, name: str) -> _rust.Texts:
    value = metadata.get(key)
    if isinstance(value, list):
        value = _rust.Texts(cast("list[str]", value))
    if not isinstance(value, _rust.Texts) or not len(value):
        raise ModelError(f"{name}: the file has no '{key}'; it holds weights without a tokenizer", model=name)
    return value
