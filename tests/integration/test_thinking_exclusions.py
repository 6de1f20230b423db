"""A bound on thinking beside what excludes tokens: the thoughts end all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import logits_plugin
from support.calling_model import TEMPLATE, write_calling_model

from pyagent.assembly import make_chain
from pyagent.core.config import load_settings
from pyagent.core.plugins import PluginHost
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

NUM_TOKENS = 40
LETTERS = [*range(70, 80)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose model's prompts end within thoughts, which end at 5 tokens and a message."""
    template = TEMPLATE.rpartition("{% if enable_thinking")[0] + "{{ '<think>' }}"
    path: Path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_calling_model(path, tokenizer__chat_template=template)
    chosen: dict[str, object] = {
        "engine.models": [str(path)],
        "engine.threads": 1,
        "engine.thinking_token_budget": 5,
        "engine.thinking_budget_message": " so so so",
    }
    settings = load_settings(overrides=chosen).settings
    host = PluginHost.discover(settings.plugins)
    host.register(logits_plugin, "tests")
    chain = make_chain(settings, host, ["native"])
    try:
        with serve(create_app(chain)) as served:
            yield served
    finally:
        asyncio.run(chain.close())


def answered(url: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": NUM_TOKENS, "ignore_eos": True}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body | {"temperature": 0} | fields, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize(
    "excluding",
    [
        {"no_repeat_ngram_size": 1},
        {"bad_words": ["</think>", "so"]},
        {"allowed_token_ids": LETTERS},
        {"min_tokens": NUM_TOKENS - 1},
        {"logits_processors": [{"name": "only", "args": {"tokens": [70]}}]},
        {"logit_bias": dict.fromkeys(map(str, LETTERS), 100), "repetition_penalty": 5, "dry_multiplier": 5},
    ],
    ids=str,
)
def test_thoughts_end_whatever_is_excluded(url: str, excluding: dict[str, Any]) -> None:
    """The message and the tag that end thoughts are sampled at the bound, and the answer goes on as the fields say."""
    free, bounded = answered(url), answered(url, **excluding, logprobs=True, top_logprobs=1)
    message, usage = bounded["choices"][0]["message"], bounded["usage"]
    assert message["reasoning_content"].endswith(" so so so")
    thought = usage["completion_tokens_details"]["reasoning_tokens"]
    assert thought == free["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert usage["completion_tokens"] == NUM_TOKENS
    logprobs = bounded["choices"][0]["logprobs"]["content"]
    assert len(logprobs) == NUM_TOKENS
    assert all(one["logprob"] == 0 for one in logprobs[5:thought])


def test_forced_tokens_are_seen_by_what_counts_tokens(url: str) -> None:
    """After the bound no token of the message comes again where none may be repeated."""
    answer = answered(url, no_repeat_ngram_size=1, return_token_ids=True)
    tokens = answer["choices"][0]["token_ids"]
    forced = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert len(tokens) == NUM_TOKENS
    assert not set(tokens[forced:]) & set(tokens[:forced])


def test_processors_see_the_forced_tokens(url: str) -> None:
    """A processor whose choice depends on all tokens before chooses the same in both forms, past the bound."""
    texts = [
        answered(url, logits_processors=[{"name": name, "args": {"key": 3}}])["choices"][0]["message"]["content"]
        for name in ("walk", "crowd")
    ]
    assert texts[0] == texts[1]
