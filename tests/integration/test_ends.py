"""Where answers end, over HTTP: tokens to stop at, a least number of tokens, control tokens shown."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from support.native import NUM_TOKENS

from pyagent.core.grammars import mask_bytes
from pyagent.infrastructure.engine.step_masks import allow, allows, forbid
from pyagent.infrastructure.engine.tokens import ModelTokenizer

GREEDY = {"prompt": "the user is at", "temperature": 0, "max_tokens": 24, "logprobs": 0}


def ask(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json={**GREEDY, **body}, timeout=60)


def choice(url: str, **body: Any) -> dict[str, Any]:
    answer = ask(url, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def id_of(text: str, tokenizer: ModelTokenizer) -> int:
    """The token shown so; only one is."""
    (token,) = (token for token in range(NUM_TOKENS) if tokenizer.token_text(token) == text)
    return token


def test_an_answer_ends_before_a_stop_token(url: str, tokenizer: ModelTokenizer) -> None:
    """`stop_token_ids` end an answer where the token is drawn first; it is no part of the text."""
    plain = choice(url, ignore_eos=True)
    drawn = plain["logprobs"]["tokens"]
    place, text = next((place, text) for place, text in enumerate(drawn) if place > 3 and "\ufffd" not in text)
    stopped = choice(url, ignore_eos=True, stop_token_ids=[id_of(text, tokenizer)])
    first = drawn.index(text)
    assert stopped["logprobs"]["tokens"] == drawn[:first]
    assert first <= place
    assert stopped["finish_reason"] == "stop"
    assert plain["finish_reason"] == "length"
    assert plain["text"].startswith(stopped["text"])


@pytest.mark.parametrize("num_tokens", [1, 7, 20])
def test_no_end_is_drawn_before_the_least_number_of_tokens(
    num_tokens: int, url: str, tokenizer: ModelTokenizer
) -> None:
    """`min_tokens` keeps end tokens out of the draws until then, and no longer."""
    end = min(tokenizer.end_ids)
    bias = {str(end): 100}
    assert choice(url, logit_bias=bias)["text"] == ""
    ended = choice(url, logit_bias=bias, min_tokens=num_tokens)
    assert len(ended["logprobs"]["tokens"]) == num_tokens
    assert ended["finish_reason"] == "stop"
    form = {"type": "choice", "choice": ["a"]}
    formed = choice(url, response_format=form, min_tokens=num_tokens)
    assert formed["text"] == "a"  # what follows a form's end is nothing


def test_control_tokens_are_shown_when_asked_for(url: str) -> None:
    """`skip_special_tokens: false` writes control tokens into the text; otherwise they are left out."""
    asked = {"logit_bias": {"1": 100}, "max_tokens": 3}
    assert choice(url, **asked)["text"] == ""
    assert choice(url, **asked, skip_special_tokens=False)["text"] == "<|im_start|>" * 3


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stop_token_ids": [-1]}, "stop_token_ids takes token ids from 0 on, got -1"),
        (
            {"stop_token_ids": [NUM_TOKENS]},
            f"stop_token_ids takes token ids from 0 to {NUM_TOKENS - 1} of this model, got {NUM_TOKENS}",
        ),
        ({"stop_token_ids": [1] * 257}, "stop_token_ids takes up to 256 token ids, got 257"),
        ({"min_tokens": -1}, "min_tokens must be between 0"),
        ({"min_tokens": 25}, "min_tokens must be at most max_tokens"),
        ({"min_tokens": 2, "use_beam_search": True, "logprobs": None}, "cannot be combined with min_tokens"),
    ],
)
def test_ends_that_cannot_be_are_refused_by_name(fields: dict[str, Any], expected: str, url: str) -> None:
    """A field out of its range is a 400 that names it."""
    answer = ask(url, **fields)
    assert answer.status_code == 400
    assert expected in answer.json()["error"]["message"]


def test_a_mask_without_tokens_keeps_all_others() -> None:
    """Only the tokens named are taken out of a mask, whatever its length."""
    mask = memoryview(bytearray(b"\xff" * mask_bytes(70)))
    forbid(mask, {0, 33, 99})
    assert [token for token in range(70) if not allows(mask, token)] == [0, 33]
    allow(mask, {33})
    assert [token for token in range(70) if not allows(mask, token)] == [0]
