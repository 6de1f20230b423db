"""Several prompts, and prompts of token ids, in one completion."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.native import NUM_TOKENS

from pyagent.infrastructure.engine.tokens import ModelTokenizer

PROMPTS = ["the user is at", "system and", "12 is on the"]
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def ask(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json={**GREEDY, **body}, timeout=60)


def completed(url: str, **body: Any) -> dict[str, Any]:
    answer = ask(url, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_several_prompts_are_answered_as_each_alone(url: str) -> None:
    """The choices of a list of prompts are those of the prompts alone, in order; the usage is the sum."""
    alone = [completed(url, prompt=prompt) for prompt in PROMPTS]
    together = completed(url, prompt=PROMPTS)
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in together["choices"]] == [one["choices"][0]["text"] for one in alone]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert together["usage"][count] == sum(one["usage"][count] for one in alone)


def test_choices_of_several_prompts_go_by_prompt(url: str) -> None:
    """With `n`, choice i * n + j is the j-th of prompt i."""
    sampled = {"temperature": 1.0, "seed": 5, "n": 2}
    alone = [completed(url, prompt=prompt, **sampled)["choices"] for prompt in PROMPTS]
    together = completed(url, prompt=PROMPTS, **sampled)["choices"]
    assert [choice["text"] for choice in together] == [choice["text"] for one in alone for choice in one]
    assert [choice["index"] for choice in together] == list(range(6))


def test_several_prompts_are_streamed_side_by_side(url: str) -> None:
    """Streamed pieces say which prompt they answer; each ends once, and the usage comes last."""
    whole = completed(url, prompt=PROMPTS)
    body = {**GREEDY, "prompt": PROMPTS, "stream": True, "stream_options": {"include_usage": True}}
    texts, ends, usage = defaultdict[int, str](str), list[int](), list[dict[str, Any]]()
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            usage += [event["usage"]] if event.get("usage") else []
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
                ends += [choice["index"]] if choice["finish_reason"] else []
    assert [texts[index] for index in range(3)] == [choice["text"] for choice in whole["choices"]]
    assert sorted(ends) == [0, 1, 2]
    assert [one["total_tokens"] for one in usage] == [whole["usage"]["total_tokens"]]


def test_token_ids_are_a_prompt(url: str, tiny_model_path: Path) -> None:
    """Token ids are taken as they are, alone and in lists, as lm-eval sends them."""
    tokenizer = ModelTokenizer.load(tiny_model_path, vocab_size=NUM_TOKENS)
    ids = [tokenizer.encode_text(prompt) for prompt in PROMPTS]
    expected = [choice["text"] for choice in completed(url, prompt=PROMPTS)["choices"]]
    assert [choice["text"] for choice in completed(url, prompt=ids)["choices"]] == expected
    assert completed(url, prompt=ids[0])["choices"][0]["text"] == expected[0]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([], "prompt takes 1 to 64 prompts, got 0"),
        (["a"] * 65, "prompt takes 1 to 64 prompts, got 65"),
        (["a", ""], "prompt is empty"),
        ([[1, "a"]], "prompt takes a text, token ids, or a list of either"),
        ([[1], [NUM_TOKENS]], f"prompt takes token ids from 0 to {NUM_TOKENS - 1} of this model, got {NUM_TOKENS}"),
        ([-1], "of this model, got -1"),
        (["fine", "a " * 5000], "the prompt has"),
    ],
)
def test_prompts_that_cannot_be_are_refused(prompt: object, expected: str, url: str) -> None:
    """What is no prompt is a 400 that says so, also when other prompts are sound."""
    answer = ask(url, prompt=prompt)
    assert answer.status_code == 400
    assert expected in answer.json()["error"]["message"]
