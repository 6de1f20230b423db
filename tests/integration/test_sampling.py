"""What is drawn over HTTP, against each sampler's formula in float64 on the model's own logits."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.native import NUM_TOKENS, engine_logits
from support.reference_decoder import softmax
from support.reference_sampling import Sampler, assert_follows

from pyagent.infrastructure.engine.tokens import ModelTokenizer

PROMPT = "the user is at the system and on"
KV_TYPE = "bf16"
"""As the engine keeps keys and values by default."""
NUM_ANSWERS, NUM_REQUESTS = 16, 40


@pytest.fixture(scope="module")
def prompt(tokenizer: ModelTokenizer) -> list[int]:
    return tokenizer.encode_text(PROMPT)


@pytest.fixture(scope="module")
def logits(tiny_model_path: Path, prompt: list[int]) -> list[float]:
    return engine_logits(tiny_model_path, prompt, KV_TYPE)[-1]


def completed(url: str, **body: Any) -> list[dict[str, Any]]:
    """The choices of a completion of the prompt."""
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": PROMPT, "ignore_eos": True, **body}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def first_tokens(url: str, **sampling: Any) -> Counter[str]:
    """How often each token was drawn first, for many seeds."""
    counts = Counter[str]()
    for request in range(NUM_REQUESTS):
        asked = {"n": NUM_ANSWERS, "max_tokens": 1, "logprobs": 0, "seed": 1000 + request * NUM_ANSWERS, **sampling}
        counts.update(choice["logprobs"]["tokens"][0] for choice in completed(url, **asked))
    return counts


def by_text(shares: list[float], tokenizer: ModelTokenizer) -> dict[str, float]:
    """Tokens that are shown alike, halves of characters, are told apart by nobody."""
    total = defaultdict[str, float](float)
    for token, share in enumerate(shares):
        total[tokenizer.token_text(token)] += share
    return total


SAMPLERS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.4},
    "hot": {"temperature": 2.0},
    "top_k": {"temperature": 1.0, "top_k": 5},
    "top_p": {"temperature": 1.0, "top_p": 0.6},
    "small_top_p": {"temperature": 1.0, "top_p": 0.2},
    "min_p": {"temperature": 1.0, "min_p": 0.3},
    "repetition": {"temperature": 1.0, "repetition_penalty": 0.5},
    "bias": {"temperature": 1.0, "top_k": 20},
    "frequency": {"temperature": 1.0, "frequency_penalty": 2.0, "presence_penalty": 2.0},
    "typical": {"temperature": 1.0, "typical_p": 0.5},
    "xtc": {"temperature": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.02},
    "thresholds": {"temperature": 1.2, "top_n_sigma": 2.0, "epsilon_cutoff": 0.002, "eta_cutoff": 0.004},
    "top_h": {"temperature": 1.0, "top_h": 0.7},
    "all": {"temperature": 0.8, "top_k": 30, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.3},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_first_tokens_follow_the_samplers_formula(
    name: str, url: str, tokenizer: ModelTokenizer, prompt: list[int], logits: list[float]
) -> None:
    """640 seeds: the tokens drawn first are distributed as the formula says, prompt counted where it should be."""
    sampling = SAMPLERS[name]
    if name == "bias":
        best = max(range(len(logits)), key=logits.__getitem__)
        sampling = {**sampling, "logit_bias": {str(best): -3.0, str(prompt[0]): 4.0}}
    ours = Sampler(**{**sampling, "logit_bias": {int(k): v for k, v in sampling.get("logit_bias", {}).items()}})
    assert_follows(first_tokens(url, **sampling), by_text(ours.shares(logits, prompt), tokenizer))


PENALTIES: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.7},
    {"frequency_penalty": 1.2},
    {"presence_penalty": 1.7},
    {"frequency_penalty": -0.3, "presence_penalty": 0.9, "repetition_penalty": 1.2},
    {"logit_bias": {"40": 3.0, "300": -2.0, "310": 2.5}, "frequency_penalty": 0.8},
]


@pytest.mark.parametrize("penalties", PENALTIES)
def test_greedy_text_follows_biases_and_penalties(
    penalties: dict[str, Any], url: str, tiny_model_path: Path, tokenizer: ModelTokenizer, prompt: list[int]
) -> None:
    """Thirty tokens at temperature 0 are each the best by the formula, over prompt and output so far."""
    bias = {int(token): value for token, value in penalties.get("logit_bias", {}).items()}
    sampler = Sampler(**{**penalties, "logit_bias": bias})
    (choice,) = completed(url, temperature=0, max_tokens=30, logprobs=0, **penalties)
    drawn = choice["logprobs"]["tokens"]
    output: list[int] = []
    for token in drawn:
        adjusted = sampler.adjusted(engine_logits(tiny_model_path, prompt + output, KV_TYPE)[-1], prompt, output)
        best = max(range(NUM_TOKENS), key=adjusted.__getitem__)
        assert tokenizer.token_text(best) == token, len(output)
        output.append(best)
    assert len(output) == 30


def test_draws_of_one_answer_are_independent(
    url: str, tiny_model_path: Path, tokenizer: ModelTokenizer, prompt: list[int]
) -> None:
    """Where in its step's distribution each token of an answer lies is even over the steps."""
    text_to_tokens = defaultdict[str, list[int]](list)
    for token in range(NUM_TOKENS):
        text_to_tokens[tokenizer.token_text(token)].append(token)
    # Tokens that are shown as others are, halves of characters, cannot be told apart: they are not drawn.
    bias = {token: -100.0 for tokens in text_to_tokens.values() if len(tokens) > 1 for token in tokens}
    sampler = Sampler(temperature=1.5, logit_bias=bias)
    fifths = [0.0] * 5
    for seed in range(8):
        asked = {"temperature": 1.5, "logit_bias": {str(token): value for token, value in bias.items()}}
        (choice,) = completed(url, max_tokens=60, logprobs=0, seed=seed, **asked)
        output = [text_to_tokens[text][0] for text in choice["logprobs"]["tokens"]]
        rows = engine_logits(tiny_model_path, prompt + output, KV_TYPE)[len(prompt) - 1 : -1]
        for token, row in zip(output, rows, strict=True):
            low, high = place_of(token, sampler.shares(row))
            for index in range(5):  # a token counts in each fifth by the part of it that lies there
                part = max(0.0, min(high, (index + 1) / 5) - max(low, index / 5))
                fifths[index] += part / (high - low)
    assert sum(fifths) == pytest.approx(8 * 60)
    assert all(0.13 < count / sum(fifths) < 0.27 for count in fifths), fifths


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"temperature": 2.0, "top_k": 3}, {"logit_bias": {"5": -100}}]
)
def test_entropy_is_the_models_own_in_float64(sampling: dict[str, Any], url: str, logits: list[float]) -> None:
    """Over HTTP, to 1e-5: of all tokens before temperature and filters, and after what excludes or penalises some."""
    (choice,) = completed(url, max_tokens=2, logprobs=0, return_entropy=True, seed=4, **sampling)
    biases = {int(token): bias for token, bias in sampling.get("logit_bias", {}).items()}
    shares = softmax([logit + biases.get(token, 0.0) for token, logit in enumerate(logits)])
    exact = -math.fsum(share * math.log(share) for share in shares if share)
    first, second = choice["logprobs"]["token_entropies"]
    assert first == pytest.approx(exact, abs=1e-5)
    assert 0 < second != first


def test_entropy_is_told_where_it_is_asked_for(url: str) -> None:
    """Chats have it beside each log probability, whole and streamed, and no number without it is another."""
    body = {
        "messages": [{"role": "user", "content": PROMPT}],
        "logprobs": True,
        "top_logprobs": 20,
        "max_tokens": 3,
        "ignore_eos": True,
        "allowed_token_ids": [*range(60, 80)],
        "temperature": 0,
    }

    def entries(**more: Any) -> list[dict[str, Any]]:
        reply = httpx.post(f"{url}/v1/chat/completions", json=body | more, timeout=120)
        assert reply.status_code == 200, reply.text
        if not more.get("stream"):
            return reply.json()["choices"][0]["logprobs"]["content"]
        pieces = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        told = [choice["logprobs"] for piece in pieces for choice in piece["choices"] if choice.get("logprobs")]
        return [entry for one in told for entry in one["content"]]

    whole = entries(return_entropy=True)
    for entry in whole:
        told = [rival["logprob"] for rival in entry["top_logprobs"]]
        assert len(told) == 20
        assert entry["entropy"] == pytest.approx(-math.fsum(math.exp(one) * one for one in told), abs=1e-5)
    assert entries(return_entropy=True, stream=True) == whole
    assert entries() == [{name: entry[name] for name in entry if name != "entropy"} for entry in whole]
    alone = httpx.post(f"{url}/v1/chat/completions", json=body | {"logprobs": False, "return_entropy": True})
    assert alone.status_code == 400


def place_of(token: int, shares: list[float]) -> tuple[float, float]:
    """Where a token lies, from 0 to 1, when the likeliest comes first."""
    order = sorted(range(len(shares)), key=lambda other: (-shares[other], other))
    below = sum(shares[other] for other in order[: order.index(token)])
    return below, below + shares[token]


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.3}, {"temperature": 2.0, "top_k": 3}])
def test_logprobs_are_the_models_own_at_any_temperature(
    sampling: dict[str, Any], url: str, tokenizer: ModelTokenizer, logits: list[float]
) -> None:
    """Log-probabilities are of the whole distribution at temperature 1, whatever was drawn from."""
    (choice,) = completed(url, max_tokens=1, logprobs=5, seed=4, **sampling)
    told = choice["logprobs"]
    known = defaultdict[str, list[float]](list)
    for token, share in enumerate(softmax(logits)):
        known[tokenizer.token_text(token)].append(math.log(share))
    assert told["token_logprobs"][0] == pytest.approx(known[told["tokens"][0]][0], abs=1e-4)
    for text, logprob in told["top_logprobs"][0].items():
        assert min(abs(logprob - value) for value in known[text]) < 1e-4
