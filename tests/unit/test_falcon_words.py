"""Falcon's words: GGUF files name them `falcon`, its own tokenizer.json spells them out otherwise."""

from __future__ import annotations

import functools
import json
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import pyagent.cli
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import build_tokenizer
from pyagent.infrastructure.engine.tokens.huggingface import byte_alphabet
from pyagent.infrastructure.models.quantize import gguf_file
from pyagent.infrastructure.models.quantize.vocabulary import vocabulary_metadata

MORE = (
    "12345 1,234.50 x1 2024-01-02 \u00bd\u00b2 \u00b2\u00b3 caf\u00e9 \u4f60\u597d\uff0c\u4e16\u754c \u0663\u0664 "
    "$9+1=10 <b>`a|b`~^ it's ...  \n\n"
)
PIECES = [
    "12345",
    " 123",
    " 7",
    "it's",
    " $",
    "+=",
    "\u00b2",
    "\u00bd",
    " \u0663",
    "\n\n",
    "  ",
    "\t",
    "'ll",
    "\u4e16\u754c",
    "\uff0c",
    "e\u0301",
    "\u2028",
    "_",
    "\x85",
]


def spelled_out() -> pre_tokenizers.PreTokenizer:
    """What Falcon's tokenizer.json has, step by step."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    )


@functools.cache
def both() -> tuple[Tokenizer, Tokenizer]:
    """A vocabulary that was learned with Falcon's words, by its tokenizer.json and by a GGUF file."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer, learned.decoder = spelled_out(), decoders.ByteLevel()
    text = Path(pyagent.cli.__file__).with_name("demo_text.txt").read_text()[:6000]
    trainer = trainers.BpeTrainer(
        vocab_size=800, initial_alphabet=[*byte_alphabet()], show_progress=False, min_frequency=2
    )
    learned.train_from_iterator([text, *[MORE] * 50], trainer)
    told = json.loads(learned.to_str())["model"]
    tokens = sorted(told["vocab"], key=told["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in told["merges"]]
    described = {"model": "gpt2", "pre": "falcon", "tokens": tokens, "merges": merges}
    return learned, build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in described.items()}, "m")


def test_a_folder_with_falcons_tokenizer_is_written_by_that_name(tmp_path: Path) -> None:
    """Though it has further borders between words, at which its vocabulary has no merges."""
    learned = both()[0]
    learned.save(str(tmp_path / "tokenizer.json"))
    written = vocabulary_metadata(tmp_path, learned.get_vocab_size())
    assert written["tokenizer.ggml.pre"] == gguf_file.string("falcon")


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8))).map("".join))
def test_texts_become_the_tokens_of_falcons_own_tokenizer(text: str) -> None:
    """Of any text, with digits, marks and spaces beside each other in every way."""
    own, ours = both()
    assert ours.encode(text).ids == own.encode(text).ids


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's 1234567 of <b>!?", "It|'|s| |123|456|7| of| |<|b|>!?"),
        (" 12 a+1=$9", " 12| a|+|1|=$|9"),
        ("a\n\n  b \u20ac5", "a|\n\n | b| \u20ac|5"),
        ("1\u00bd\u066123", "1\u00bd\u066123"),
    ],
)
def test_words_are_those_of_llama_cpp(text: str, words: str) -> None:
    """Marks first, which has the apostrophe stand alone; then words; then ASCII digits by three."""
    cut = both()[1].pre_tokenizer
    assert cut is not None
    assert "|".join(text[first:end] for _, (first, end) in cut.pre_tokenize_str(text)) == words


def test_each_mark_of_ascii_stands_apart_from_the_space_before_it() -> None:
    """Those of currency and mathematics too, which Unicode does not call punctuation."""
    cut = both()[1].pre_tokenizer
    assert cut is not None
    for mark in string.punctuation:
        assert [word for word, _ in cut.pre_tokenize_str(f" {mark}x")] == ["\u0120", mark, "x"]
