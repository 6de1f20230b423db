"""Vocabularies in files of tiktoken, Mistral and SentencePiece: read as they are meant, and refused where they are not.

tests/oracle/test_vocabularies.py holds them to the libraries they come from, on real vocabularies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.vocabulary_files import CONTROLS, RANKS, sentencepiece_model, write_ranks, write_tekken

from pyagent.core.chat_templates import TEMPLATES
from pyagent.core.errors import ModelError
from pyagent.core.tokenizers import READERS, TokenizerOptions
from pyagent.infrastructure.engine.encoders.text_tokens import tokenizer_of
from pyagent.infrastructure.engine.tokens import ModelTokenizer, loading


def load(folder: Path, **options: str) -> ModelTokenizer:
    return ModelTokenizer.load(folder, vocab_size=100_000, options=TokenizerOptions(**options))  # type: ignore[arg-type]


def by_ranks(word: bytes) -> list[int]:
    """A word's tokens by definition: of all neighbours that are a token together, those of the lowest rank join."""
    if word in RANKS:
        return [RANKS.index(word)]
    parts = [bytes([byte]) for byte in word]
    while True:
        joined = [(RANKS.index(a + b), place) for place, (a, b) in enumerate(pairwise(parts)) if a + b in RANKS]
        if not joined:
            return [RANKS.index(part) for part in parts]
        _, place = min(joined)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


@pytest.fixture(scope="module")
def tiktoken(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    folder = tmp_path_factory.mktemp("ranks")
    write_ranks(folder / "gpt2.tiktoken")
    added = {str(len(RANKS) + place): {"content": text, "special": True} for place, text in enumerate(CONTROLS)}
    about = {"added_tokens_decoder": added, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return load(folder)


@settings(max_examples=60)
@given(word=st.text(st.sampled_from("helowré"), min_size=1, max_size=12))
def test_ranks_are_joined_lowest_first(tiktoken: ModelTokenizer, word: str) -> None:
    """A word has the tokens that joining by ranks gives, and comes back from them."""
    ids = tiktoken.encode_text(word)
    assert ids == by_ranks(word.encode())
    assert tiktoken.decode(ids) == word


def test_a_rank_file_has_the_control_tokens_of_its_folder(tiktoken: ModelTokenizer) -> None:
    """Tokens of tokenizer_config.json are control tokens; the family they show gives the chat template."""
    assert tiktoken.encode_text("a<|im_end|>b") == [ord("a"), len(RANKS) + 2, ord("b")]
    assert tiktoken.end_ids == {len(RANKS), len(RANKS) + 2}
    assert tiktoken.template is not None
    assert (tiktoken.template.built_in, tiktoken.template.source) == ("chatml", TEMPLATES["chatml"])


def test_a_rank_files_pattern_can_stand_in_its_folder(tmp_path: Path) -> None:
    """`pat_str` of tokenizer_config.json cuts the words of a file whose name says nothing; without it that is told."""
    write_ranks(tmp_path / "ours.tiktoken")
    with pytest.raises(ModelError, match="write its pattern into"):
        load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pat_str": r"\p{L}|[^\p{L}]"}))
    assert len(load(tmp_path).encode_text("hello")) == 5


def test_llama3s_rank_file_is_known_by_its_config(tmp_path: Path) -> None:
    """Llama 3's `tokenizer.model` is a rank file, with 256 control tokens after the ranks."""
    write_ranks(tmp_path / "tokenizer.model")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": [len(RANKS) + 9]}))
    tokenizer = load(tmp_path)
    assert tokenizer.encode_text("he") == [len(RANKS), RANKS.index(b"he")]
    assert tokenizer.shown([len(RANKS) + 9]) == "<|eot_id|>"
    assert tokenizer.tokenizer.num_tokens == len(RANKS) + 256
    assert tokenizer.template is not None
    assert tokenizer.template.built_in == "llama3"


def test_tekken_has_its_control_tokens_first(tmp_path: Path) -> None:
    """The ranks follow the control tokens, whose names are the file's, or those before version 7."""
    write_tekken(tmp_path)
    tokenizer = load(tmp_path)
    assert tokenizer.encode_text("hello[INST]") == [1, 20 + RANKS.index(b"hello"), 3]
    assert tokenizer.end_ids == {2}
    assert tokenizer.template is not None
    assert tokenizer.template.built_in == "mistral-v3"
    write_tekken(tmp_path, version="v11")
    later = load(tmp_path).template
    assert later is not None
    assert later.built_in == "mistral-v7"


def test_sentencepiece_models_are_read(tmp_path: Path) -> None:
    """Pieces, scores and types of tokenizer.model make the vocabulary that a GGUF file of it would have."""
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model())
    tokenizer = load(tmp_path)
    assert tokenizer.encode_text("hello hello") == [1, 268, 268]
    assert tokenizer.decode(tokenizer.encode_text("h é")) == "h é"
    assert tokenizer.template is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
    assert load(tmp_path).encode_text("hello") == [268]


def test_pieces_that_would_end_the_process_are_refused(tmp_path: Path) -> None:
    """`tokenizers` frees a tree of pieces on the stack; every reader refuses the file before the tree is made."""
    long = "a" * 2_000_000
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], [long, -1.0]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model}))
    fault = r"tokenizer\.json: it has a token of 2000000 characters; expected at most 4096"
    for read in (load, tokenizer_of):
        with pytest.raises(ModelError, match=fault):
            read(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model(kind=1, more=[*BYTE_LETTERS, long]))
    with pytest.raises(ModelError, match="it has a token of 2000000 characters"):
        load(tmp_path)


BYTE_LETTERS = "<0x123456789ABCDEF>"
"""What names of bytes are made of: pieces of their own, so that none is ever cut out of a text."""


@pytest.fixture(scope="module")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    folder = tmp_path_factory.mktemp("unigram")
    (folder / "tokenizer.model").write_bytes(sentencepiece_model(kind=1, more=BYTE_LETTERS))
    return load(folder)


@given(text=st.lists(st.sampled_from([*"helo <0xE>/é", "<0x45>"]), max_size=20).map("".join) | st.text(max_size=8))
@settings(max_examples=30, deadline=None)
def test_unigram_texts_are_cut_the_likeliest_way(unigram: ModelTokenizer, text: str) -> None:
    """Of all ways to cut a text the pieces have the greatest sum of scores; what is no piece goes by its bytes."""
    text = re.sub("</?s>|<unk>|▁", "", text)
    words = [*BYTE_LETTERS, "▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello"]
    scores = {word: place - len(words) for place, word in enumerate(words)}
    marked = f" {text}".replace(" ", "▁") if text else ""
    best = [0.0]
    for end in range(1, len(marked) + 1):
        ends = ((start, marked[start:end]) for start in range(max(0, end - 6), end))
        found = [best[start] + scores[word] for start, word in ends if word in scores]
        best.append(max(found, default=best[-1]))  # of bytes, whatever they cost: there is no other way
    ids = unigram.encode_text(text)[1:]
    first = 3 + 256
    assert sum(scores[words[token - first]] for token in ids if token >= first) == best[-1]
    unknown = "".join(letter for letter in marked if letter not in scores)
    assert [token - 3 for token in ids if token < first] == list(unknown.encode())
    assert unigram.decode(ids) == text


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (sentencepiece_model(kind=3), "a word model"),
        (sentencepiece_model(kind=1), "a unigram model without pieces for bytes and for the letters"),
        (sentencepiece_model(removes_spaces=1), "normalizes texts in a way that is not supported"),
        (sentencepiece_model()[:-3], "not a model of SentencePiece"),
        (b"\x0a\x03\x0a\x01\xff", "not a model of SentencePiece"),
        (b"\x0a" + b"\xff" * 12, "not a model of SentencePiece"),
    ],
)
def test_sentencepiece_models_that_would_be_read_wrongly_are_refused(data: bytes, fault: str, tmp_path: Path) -> None:
    """What is no BPE, or is normalised otherwise, or is damaged, is an error that says so."""
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ModelError, match=fault):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"YQ== 0\nYg== 5\n", "the rank 1 is missing"),
        (b"YQ== 0\nxx\n", "line 2 is not a token in base64 and its rank"),
        (b"YQ== 0\nYg== 1\n", "the byte 0 is no token"),
        (b"YQ= 0\n", "not base64"),
    ],
)
def test_rank_files_that_are_none_are_refused(text: bytes, fault: str, tmp_path: Path) -> None:
    """A line that is no token, a rank or a byte that is missing, is named."""
    (tmp_path / "gpt2.tiktoken").write_bytes(text)
    with pytest.raises(ModelError, match=fault):
        load(tmp_path)


@pytest.mark.parametrize(
    ("ranks", "config", "fault"),
    [
        ([*RANKS, b"he"], {}, "has a token twice"),
        ([*RANKS, b"x" * 600], {}, "tokens of 600"),
        (RANKS, {"default_vocab_size": 1 << 30}, "promises"),
        (RANKS, {"default_num_special_tokens": -1}, "promises"),
        (RANKS, {"pattern": "(["}, "its pattern are not valid"),
        (RANKS, {"pattern": None}, "not a tekken file"),
    ],
)
def test_tekken_files_that_are_none_are_refused(
    ranks: Sequence[bytes], config: dict[str, object], fault: str, tmp_path: Path
) -> None:
    """Numbers that do not fit, tokens that are too long or twice there, and patterns that are none are named."""
    write_tekken(tmp_path, ranks, **config)
    with pytest.raises(ModelError, match=fault):
        load(tmp_path)


@settings(max_examples=30)
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255), kind=st.sampled_from(["tekken", "spm", "ranks"]))
def test_damaged_files_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int, kind: str
) -> None:
    """A changed byte makes a vocabulary of its own, or an error of the model; never anything else."""
    folder = tmp_path_factory.mktemp("damaged")
    name = {"tekken": "tekken.json", "spm": "tokenizer.model", "ranks": "gpt2.tiktoken"}[kind]
    if kind == "tekken":
        write_tekken(folder)
    elif kind == "spm":
        (folder / name).write_bytes(sentencepiece_model())
    else:
        write_ranks(folder / name)
    data = bytearray((folder / name).read_bytes())
    data[place % len(data)] = byte
    (folder / name).write_bytes(data)
    try:
        tokenizer = load(folder)
    except ModelError:
        return
    tokenizer.encode_text("hello")


def test_a_named_reader_is_taken_of_several_files(tmp_path: Path) -> None:
    """`auto` reads tekken.json before SentencePiece's model; by name, either is read."""
    write_tekken(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model())
    assert load(tmp_path).tokenizer.num_tokens == 20 + len(RANKS)
    assert load(tmp_path, name="sentencepiece").tokenizer.num_tokens == 269
    with pytest.raises(ModelError, match="no rank file"):
        load(tmp_path, name="tiktoken")


def test_built_in_readers_have_the_names_that_settings_take() -> None:
    """Names are checked before any reader is imported; they are those of the readers."""
    assert tuple(reader.name for reader in loading.READERS) == READERS
