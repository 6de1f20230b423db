"""What earlier tokens do to the next ones, over HTTP: n-grams, DRY, bad words, allowed tokens, windows, Mirostat."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest
from support.native import NUM_TOKENS

from pyagent import _rust
from pyagent.infrastructure.engine.tokens import ModelTokenizer

PROMPT = "the user is at the system and on"


def ask(url: str, **body: Any) -> httpx.Response:
    asked = {"prompt": PROMPT, "ignore_eos": True, "temperature": 0, "max_tokens": 60, "logprobs": 0, **body}
    return httpx.post(f"{url}/v1/completions", json=asked, timeout=120)


def tokens(url: str, **body: Any) -> list[str]:
    answer = ask(url, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["logprobs"]["tokens"]


def ids(url: str, tokenizer: ModelTokenizer, **body: Any) -> list[int]:
    """The answer's tokens, of which each of the tiny model's that it says is shown in its own way."""
    by_text = {tokenizer.token_text(token): token for token in range(NUM_TOKENS)}
    return [by_text[text] for text in tokens(url, **body)]


def repeats(sequence: list[str], size: int) -> int:
    """How many sequences of so many tokens come again; parts of characters are shown alike and left out."""
    grams = [tuple(sequence[start : start + size]) for start in range(len(sequence) - size + 1)]
    grams = [gram for gram in grams if "\ufffd" not in gram]
    return len(grams) - len(set(grams))


LOOP = {"logit_bias": {"40": 30.0, "41": 30.0}}
"""Two tokens are all that is said."""


def test_no_sequence_of_tokens_comes_twice(url: str) -> None:
    """`no_repeat_ngram_size` forbids the token that would complete a sequence a second time."""
    assert repeats(tokens(url, **LOOP), 3) > 0
    assert repeats(tokens(url, **LOOP, no_repeat_ngram_size=3), 3) == 0


def test_dry_ends_a_loop(url: str) -> None:
    """DRY's penalty grows until something else is said; without breakers that stop it."""
    looping = repeats(tokens(url, **LOOP), 8)
    said = tokens(url, **LOOP, dry_multiplier=5.0, dry_sequence_breakers=["\n"])
    assert repeats(said, 8) == 0 < looping
    broken = tokens(url, **LOOP, dry_multiplier=5.0, dry_sequence_breakers=list(dict.fromkeys(tokens(url, **LOOP))))
    assert repeats(broken, 8) == looping


def test_dry_leaves_what_alone_may_be_said() -> None:
    """However long it was repeated: the penalty is bounded, so that no token is left out by it alone."""
    sampler = _rust.SamplerState(dry_multiplier=5.0, dry_base=4.0)
    sampler.observe_prompt([1] * 1_000)
    assert sampler.distribution([-math.inf, 0.0, -math.inf]) == [(1, 1.0)]
    assert sampler.distribution([-100.0, 0.0, -math.inf])[0] == (0, 1.0)


def test_bad_words_are_not_said(url: str, tokenizer: ModelTokenizer) -> None:
    """A word's tokens do not follow one another; a penalty makes it rarer instead."""
    plain = tokens(url)
    word = next(text for text in plain if text.strip().isalpha() and len(text.strip()) > 1)
    assert word not in tokens(url, bad_words=[word])
    assert word.strip() not in [text.strip() for text in tokens(url, bad_words=[word.strip()])]
    assert tokens(url, bad_words=[word], bad_words_penalty=0.0) == plain
    newline = tokenizer.encode_further("\n")
    assert tokenizer.words_as_tokens(["\n", "\n"]) == [newline]  # no space of its own is forbidden
    pair = "".join(plain[3:5])
    if tokenizer.words_as_tokens([pair])[0] == ids(url, tokenizer)[3:5]:
        assert pair not in "".join(tokens(url, bad_words=[pair]))


def test_only_allowed_tokens_are_sampled(url: str, tokenizer: ModelTokenizer) -> None:
    """`allowed_token_ids` is all that an answer has, with and without a temperature."""
    allowed = list(range(40, 60))
    for sampling in ({}, {"temperature": 1.5, "seed": 4}):
        said = set(tokens(url, allowed_token_ids=allowed, **sampling))
        assert said <= {tokenizer.token_text(token) for token in allowed}


def test_penalties_see_the_last_tokens_only(url: str) -> None:
    """With a window of 0 penalties do nothing; a short one forgets what a long one sees."""
    plain = tokens(url, **LOOP)
    penalty = {"presence_penalty": 2.0, "frequency_penalty": 2.0}
    assert tokens(url, **LOOP, **penalty, repeat_last_n=0) == plain
    whole = tokens(url, **LOOP, **penalty)
    assert len(set(tokens(url, **LOOP, **penalty, repeat_last_n=1))) < len(set(whole))
    assert len(set(tokens(url, **LOOP, **penalty, penalty_decay=0.01))) < len(set(whole))


@pytest.mark.parametrize("algorithm", [1, 2])
def test_mirostat_holds_the_surprise(url: str, algorithm: int) -> None:
    """The mean surprise of an answer's tokens is near the wanted one, in bits, and a seed gives one text."""
    asked = {"temperature": 1.0, "seed": 3, "mirostat": algorithm, "mirostat_tau": 5.0, "max_tokens": 200}
    answer = ask(url, **asked).json()["choices"][0]
    assert ask(url, **asked).json()["choices"][0]["text"] == answer["text"]
    bits = [-logprob / math.log(2) for logprob in answer["logprobs"]["token_logprobs"]]
    assert sum(bits) / len(bits) == pytest.approx(5.0, abs=0.8)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"typical_p": 1.5}, "typical_p", "typical_p must be between 0 and 1, got 1.5"),
        ({"xtc_threshold": 0}, "xtc_threshold", "xtc_threshold must be greater than 0, got 0"),
        ({"bad_words": [""]}, "bad_words", "bad_words takes up to 256 texts, none of them empty, got an empty one"),
        ({"bad_words": ["a" * 300]}, "bad_words", "bad_words takes texts of up to 256 characters, got one of 300"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "allowed_token_ids is empty"),
        (
            {"bad_words": ["a"], "use_beam_search": True, "logprobs": None},
            "bad_words",
            "cannot be combined with bad_words",
        ),
        *(
            (
                {**named, "use_beam_search": True, "logprobs": None},
                next(iter(named)),
                f"beam search cannot be combined with {next(iter(named))}",
            )
            for named in ({"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1})
        ),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids", "allowed_token_ids takes token ids from 0 to"),
    ],
)
def test_fields_out_of_range_are_refused_by_name(url: str, fields: dict[str, Any], param: str, said: str) -> None:
    """A wrong value is a 400 that names the field and what it takes."""
    answer = ask(url, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert said in answer.json()["error"]["message"]


def test_what_nothing_can_follow_ends_that_answer_only(url: str) -> None:
    """Allowed tokens and a response format that exclude each other end the request with the reason."""
    both = ask(url, allowed_token_ids=[5], response_format={"type": "choice", "choice": ["a", "b"]})
    assert both.status_code == 400
    assert "allowed_token_ids, response_format leave no token that may be sampled" in both.text
    for _ in range(6):  # a request's own fault opens no circuit breaker
        assert ask(url, allowed_token_ids=[5], no_repeat_ngram_size=1, min_tokens=1).status_code == 400
    assert tokens(url)
