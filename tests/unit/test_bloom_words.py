"""BLOOM's words: GGUF files name them `bloom`, its own tokenizer.json spells them out otherwise."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, pre_tokenizers

from pyagent.infrastructure.engine.tokens.gguf_vocabulary import build_tokenizer
from pyagent.infrastructure.engine.tokens.huggingface import byte_alphabet

MARKS = ".,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c"
PIECES = [*MARKS, "(", ")", "|", "  ", "\n\n", "\t", "12345", " 7", "it's", " $a", "\u4e16\u754c", "e\u0301", "\u2028"]


@functools.cache
def ours(name: str) -> Tokenizer:
    """The tokenizer of a GGUF file that names its words so."""
    tokens = [*sorted(byte_alphabet()), "aa"]
    described = {"model": "gpt2", "pre": name, "tokens": tokens, "merges": ["a a"]}
    return build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in described.items()}, "m")


def words(cut: pre_tokenizers.PreTokenizer | None, text: str) -> list[str]:
    """The words that a text is cut into."""
    assert cut is not None
    return [text[first:end] for _, (first, end) in cut.pre_tokenize_str(text)]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8))).map("".join))
def test_texts_are_cut_as_blooms_own_tokenizer_does(text: str) -> None:
    """Of any text, with marks and spaces beside each other in every way."""
    split = pre_tokenizers.Split(Regex(rf" ?[^(\s|[{MARKS}])]+"), "isolated")
    own = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    assert words(ours("bloom").pre_tokenizer, text) == words(own, text)


@pytest.mark.parametrize("name", ["bloom", "gpt3-finnish", "poro-chat"])
def test_words_are_those_of_llama_cpp(name: str) -> None:
    """Numbers and other marks stay with the word before them."""
    assert words(ours(name).pre_tokenizer, "It's 1234, of (a|b)  x!?") == [
        *("It's", " 1234", ",", " of", " (", "a", "|", "b", ") ", " x", "!?"),
    ]
