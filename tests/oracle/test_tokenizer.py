"""Tokenizers built from GGUF files against independent ones: token ids must be the same, one by one.

Three references: transformers' own reading of the same file; sentencepiece, given the file's pieces and scores; and a
byte-level BPE of thirty lines here, whose words are cut by the patterns that models' authors publish.
"""

from __future__ import annotations

import functools
import itertools
import random
import struct
from pathlib import Path
from typing import Any, cast

import pytest
from support.chat_templates import encode_chat
from support.tiny_model import byte_alphabet

from pyagent import _rust
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import build_tokenizer

pytestmark = pytest.mark.oracle

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {
    "smollm": GPT2_WORDS,
    "llama-bpe": LLAMA3_WORDS,
    "qwen2": LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}"),
    "gpt-2": GPT2_WORDS,
}

CORPUS = [
    "Hello, world!",
    "The user's dog can't, won't and shouldn't've; WE'LL SEE, I'M SURE'D.",
    "def f(x: int) -> str:\n    return f'{x!r:>10}'  # half\n\n\nclass A:\n\tpass\n",
    "for (int i = 0; i < 100000; ++i) { a[i] += b[i] * 3.14159e-10; }",
    "0 12 345 6789 1234567890 ½ ² ٣٤ 三 1,000.00 0x1F v1.2.3",
    "   leading, trailing   and      many          spaces            ",
    "\t\ttabs\t and \r\nCRLF\r\n\r\nlines\n\n\n\nmore \n \n x",
    "naïve café Ångström ﬁ ﬀ e\u0301 a\u030a\u0301 İstanbul ẞ ß",
    "中文字符测试，没有空格。日本語のテキスト、カタカナ。한국어 문장입니다",
    "مرحبا بالعالم، كيف حالك؟ עברית שלום हिन्दी ภาษาไทย",
    "🎉👩‍👩‍👧‍👦🏳️‍🌈👍🏽🇫🇷❤️ text 🤷🏻‍♀️!!",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<start_of_turn>user\nhi<end_of_turn>\n<eos> <|endoftext|><|im_end|",
    "a\u00a0b\u2003c\u200bd\ufeffe\u2028f\u0085g\x00h\x1fi",
    "https://example.org/a_b?c=%20&d=é#f ~/.config/x-y_z.toml $HOME \\n \\\\",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b\\"c"}}',
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" + "=" * 70 + "-" * 33,
    "\U0001f9ff\U00010348\ue000 \ufffd \U0010ffff",
    "",
]


def corpus() -> list[str]:
    """The texts above, and random mixes of their pieces and of any characters."""
    draw = random.Random(3)
    letters = [letter for text in CORPUS for letter in text]
    mixes = ["".join(draw.choices(letters, k=draw.randrange(1, 60))) for _ in range(400)]
    pieces = [text[draw.randrange(len(text)) :][: draw.randrange(20)] for text in CORPUS if text for _ in range(40)]
    draw.shuffle(pieces)
    joined = ["".join(pieces[start : start + 5]) for start in range(0, len(pieces), 5)]
    ranges = [(0, 0x250), (0x370, 0x600), (0x3040, 0x9FFF), (0xAC00, 0xD7A0), (0x1F300, 0x1FAFF), (0x2000, 0x2100)]
    anything = ["".join(chr(draw.randrange(*draw.choice(ranges))) for _ in range(30)) for _ in range(200)]
    return [*CORPUS, *mixes, *joined, *anything]


def load(path: Path) -> tuple[ModelTokenizer, dict[str, object]]:
    metadata = _rust.read_model_header(path)["metadata"]
    tokens = cast("list[str]", metadata["tokenizer.ggml.tokens"])
    return ModelTokenizer.load(path, vocab_size=len(tokens)), metadata


def ids_of(tokenizer: ModelTokenizer, text: str) -> list[int]:
    return tokenizer.tokenizer.inner.encode(text, add_special_tokens=False).ids


class ByteLevelBpe:
    """Byte-level BPE as its paper has it: cut into words, then join the pair of lowest rank until none is left."""

    def __init__(self, metadata: dict[str, object], pre: str) -> None:
        import regex

        tokens = cast("list[str]", metadata["tokenizer.ggml.tokens"])
        types = cast("list[int]", metadata["tokenizer.ggml.token_type"])
        self.ids = {token: index for index, token in enumerate(tokens)}
        merges = cast("list[str]", metadata["tokenizer.ggml.merges"])
        self.ranks = {tuple(merge.split(" ", 1)): rank for rank, merge in enumerate(merges)}
        controls = sorted(
            (token for token, kind in zip(tokens, types, strict=True) if kind == 3), key=len, reverse=True
        )
        self.controls = regex.compile("(" + "|".join(map(regex.escape, controls)) + ")")
        self.words = regex.compile(WORDS[pre])
        self.digits = regex.compile(r"(\p{N})") if pre == "smollm" else None
        self.takes_whole_words = pre == "llama-bpe"
        self.normalizes = pre == "qwen2"
        self.letters = byte_alphabet()

    def encode(self, text: str) -> list[int]:
        import unicodedata

        ids: list[int] = []
        for part in self.controls.split(text):
            if self.controls.fullmatch(part or ""):
                ids.append(self.ids[part])
                continue
            plain = unicodedata.normalize("NFC", part) if self.normalizes else part
            for piece in self.digits.split(plain) if self.digits else [plain]:
                for word in self.words.findall(piece):
                    ids += self.merge("".join(self.letters[byte] for byte in word.encode()))
        return ids

    @functools.cache  # noqa: B019 - lives as long as the test
    def merge(self, word: str) -> list[int]:
        if self.takes_whole_words and word in self.ids:
            return [self.ids[word]]
        parts = list(word)
        while len(parts) > 1:
            ranked = [(self.ranks.get(pair, 1 << 60), at) for at, pair in enumerate(itertools.pairwise(parts))]
            rank, at = min(ranked)
            if rank == 1 << 60:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.ids[part] for part in parts if part in self.ids]  # some bytes no vocabulary of theirs has


@pytest.mark.parametrize("pre", WORDS)
def test_byte_level_ids_are_those_of_plain_bpe(smollm2_path: Path, pre: str) -> None:
    """Every way of cutting words, on SmolLM2's vocabulary: the same ids as the thirty lines above."""
    metadata = {**_rust.read_model_header(smollm2_path)["metadata"], "tokenizer.ggml.pre": pre}
    built, reference = build_tokenizer(metadata, "m"), ByteLevelBpe(metadata, pre)
    for text in corpus():
        assert built.encode(text, add_special_tokens=False).ids == reference.encode(text), text


def reference_tokenizer(path: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def test_smollm2_ids_are_those_of_transformers(smollm2_path: Path) -> None:
    """SmolLM2's ids equal transformers' for code, emoji, CJK, Arabic, white space and control tokens.

    Without digits: transformers does not read how a GGUF file says they are parted; the plain BPE above tests those.
    """
    import regex

    ours, _ = load(smollm2_path)
    theirs = reference_tokenizer(smollm2_path)
    for text in (regex.sub(r"\p{N}", "", text) for text in corpus()):
        assert ids_of(ours, text) == theirs.encode(text, add_special_tokens=False), text


@pytest.mark.slow
def test_gemma3_ids_are_those_of_transformers(gemma3_path: Path) -> None:
    """Gemma 3's ids equal transformers' on the same texts."""
    ours, _ = load(gemma3_path)
    theirs = reference_tokenizer(gemma3_path)
    for text in corpus():
        assert ids_of(ours, text) == theirs.encode(text, add_special_tokens=False), text


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def number(field: int, value: int) -> bytes:
    """A protocol buffer's field with a number."""
    return varint(field << 3) + varint(value)


def chunk(field: int, data: bytes) -> bytes:
    """A protocol buffer's field with bytes."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def sentencepiece_model(metadata: dict[str, object]) -> bytes:
    """The file's pieces and scores as a sentencepiece model, field by field of `sentencepiece_model.proto`."""
    rows = zip(
        cast("list[str]", metadata["tokenizer.ggml.tokens"]),
        cast("list[float]", metadata["tokenizer.ggml.scores"]),
        cast("list[int]", metadata["tokenizer.ggml.token_type"]),
        strict=True,
    )
    pieces: list[bytes] = []
    for index, (piece, score, kind) in enumerate(rows):
        text = piece.replace(" ", "▁") if kind == 4 else piece
        kind = 2 if index == metadata["tokenizer.ggml.unknown_token_id"] else kind  # noqa: PLW2901
        fields = chunk(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + number(3, kind)
        pieces.append(chunk(1, fields))
    is_bpe, has_byte_fallback = number(3, 2), number(35, 1)
    ids = b"".join(number(field, token) for field, token in ((40, 3), (41, 2), (42, 1), (43, 0)))
    normalizer = chunk(1, b"identity") + number(3, 0) + number(4, 0) + number(5, 1)
    return b"".join(pieces) + chunk(2, is_bpe + has_byte_fallback + ids) + chunk(3, normalizer)


def test_gemma3_ids_are_those_of_sentencepiece(gemma3_path: Path) -> None:
    """Gemma 3's ids equal those of sentencepiece itself, given the same pieces and scores."""
    import sentencepiece

    ours, metadata = load(gemma3_path)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(metadata))
    for text in corpus():
        if "<" not in text:  # control tokens in texts are not sentencepiece's to read
            assert ids_of(ours, text) == theirs.encode(text), text


@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_texts_come_back_from_their_tokens(name: str, request: pytest.FixtureRequest) -> None:
    """Decoding what was encoded gives the text back, streamed or at once.

    Control tokens apart, and bytes for which SmolLM2's vocabulary has no token.
    """
    ours, metadata = load(request.getfixturevalue(name))
    tokens = set(cast("list[str]", metadata["tokenizer.ggml.tokens"]))
    is_byte_level = metadata["tokenizer.ggml.model"] == "gpt2"
    missing = {byte for byte, letter in enumerate(byte_alphabet()) if is_byte_level and letter not in tokens}
    for text in corpus():
        if "<" in text or missing & set(text.encode()):
            continue
        ids = ids_of(ours, text)
        stream = ours.detokenizer()
        assert "".join([*map(stream.push, ids), stream.flush()]) == text
        assert ours.decode(ids) == text
        assert cast("Any", ours.tokenizer).inner.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_streams_of_random_tokens_never_break_a_character(name: str, request: pytest.FixtureRequest) -> None:
    """For random tokens, what is streamed is the UTF-8 of their bytes; no U+FFFD stands where a character completes."""
    ours, metadata = load(request.getfixturevalue(name))
    types = cast("list[int]", metadata["tokenizer.ggml.token_type"])
    draw = random.Random(9)
    normal = [index for index, kind in enumerate(types) if kind in (1, 6)]
    letters = {letter: byte for byte, letter in enumerate(byte_alphabet())}

    def data(token: int) -> bytes:
        piece: str = cast("Any", ours.tokenizer).inner.id_to_token(token) or ""
        if types[token] == 6:
            return bytes([int(piece[3:5], 16)])
        if metadata["tokenizer.ggml.model"] == "gpt2":
            return bytes(letters[letter] for letter in piece)
        return piece.replace("▁", " ").encode()

    for _ in range(500):
        ids = draw.choices(normal, k=draw.randrange(40))
        stream = ours.detokenizer()
        assert "".join([*map(stream.push, ids), stream.flush()]) == b"".join(map(data, ids)).decode(errors="replace")


@pytest.mark.parametrize("name", ["smollm2_path"])
def test_conversations_render_as_in_transformers(name: str, request: pytest.FixtureRequest) -> None:
    """A conversation's ids equal those of transformers' `apply_chat_template`."""
    from pyagent.core.messages import Message

    path = request.getfixturevalue(name)
    ours, _ = load(path)
    theirs = reference_tokenizer(path)
    turns = [("system", "Be brief."), ("user", "What's two?\n\n"), ("assistant", " It "), ("user", "中文 🎉 ok?")]
    for count in range(1, len(turns) + 1):
        conversation = [{"role": role, "content": content} for role, content in turns[:count]]
        text = theirs.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        expected = theirs.encode(text, add_special_tokens=False)
        assert encode_chat(ours, [Message(role, content) for role, content in turns[:count]]) == expected  # type: ignore[arg-type]
