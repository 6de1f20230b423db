"""What changes over an answer, over HTTP: temperature, penalties and bad words by the place of a token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from support.native import native_server

from pyagent import ChatRequest, Message, PenaltySchedule, SamplingParams, TemperatureSchedule, UnsupportedError
from pyagent.assembly import make_chain
from pyagent.core.backends import collect
from pyagent.core.config import load_settings
from pyagent.core.plugins import PluginHost
from pyagent.testing.openai import openai_server

PROMPT = "the user is at the system and on"
LOOP = {"logit_bias": {"40": 30.0, "41": 30.0}}
"""Two tokens are all that is said."""


@pytest.fixture(scope="module")
def url(tiny_model_path: Path) -> Iterator[str]:
    with native_server(tiny_model_path) as url:
        yield url


def ask(url: str, **body: Any) -> httpx.Response:
    asked = {"prompt": PROMPT, "ignore_eos": True, "temperature": 0, "max_tokens": 24, "return_token_ids": True, **body}
    return httpx.post(f"{url}/v1/completions", json=asked, timeout=120)


def answers(url: str, **body: Any) -> list[list[int]]:
    """The tokens of each answer."""
    answer = ask(url, **body)
    assert answer.status_code == 200, answer.text
    return [choice["token_ids"] for choice in answer.json()["choices"]]


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_temperature_may_go_down_to_greedy(url: str, shape: str) -> None:
    """After the schedule's tokens the answer goes on as a greedy one would; before, seeds tell answers apart."""
    schedule = {"end": 0, "tokens": 8, "shape": shape}
    bold = {"temperature": 2, "temperature_schedule": schedule}
    told = ask(url, **bold, seed=1).json()["choices"][0]
    first, rest = told["token_ids"][:8], told["token_ids"][8:]
    assert answers(url, prompt=[*told["prompt_token_ids"], *first], max_tokens=16) == [rest]
    (other,) = answers(url, **bold, seed=2)
    assert other[:8] != first


def test_schedules_are_those_of_each_answer_in_any_batch(url: str) -> None:
    """Several answers at once, each at its own place, are the answers that the same seeds give alone."""
    asked = {
        "temperature": 1.5,
        "temperature_schedule": {"end": 0.2, "tokens": 12},
        "penalty_schedule": {"warmup_tokens": 6, "decay_tokens": 6, "shape": "cosine"},
        "presence_penalty": 1.5,
        "repetition_penalty": 1.3,
        "top_k_entropy": 1.5,
        "min_p": 0.05,
        "min_p_entropy": 0.5,
    }
    at_once = answers(url, **asked, n=3, seed=5)
    assert at_once == [answers(url, **asked, seed=seed)[0] for seed in (5, 6, 7)]
    assert len({tuple(answer) for answer in at_once}) == 3


def test_penalties_grow_and_fall_with_the_answer(url: str) -> None:
    """A penalty that has not grown yet, or has fallen away, is none; in between it ends a loop."""
    (plain,) = answers(url, **LOOP)
    assert len(set(plain)) < 3
    penalty = {**LOOP, "presence_penalty": 2, "frequency_penalty": 2}
    assert answers(url, **penalty, penalty_schedule={"warmup_tokens": 10**6}) == [plain]
    (grown,) = answers(url, **penalty, penalty_schedule={"warmup_tokens": 8})
    assert grown[0] == plain[0]
    assert len(set(grown)) > 2 or grown != plain
    # At the first token there is nothing to penalise, and then no penalty is left.
    assert answers(url, **penalty, penalty_schedule={"decay_tokens": 1}) == [plain]


def test_bad_words_may_be_forbidden_at_the_beginning_only(url: str) -> None:
    """What is forbidden for so many tokens comes right after them; a penalty wears off."""
    (plain,) = answers(url, **LOOP)
    texts = {token: ask(url, **LOOP, max_tokens=1).json()["choices"][0]["text"] for token in plain[:1]}
    word = texts[plain[0]]
    (said,) = answers(url, logit_bias={str(plain[0]): 60.0}, bad_words=[word], bad_words_decay_tokens=5)
    assert plain[0] not in said[:5]
    assert said[5:] == [plain[0]] * 19
    soft = {"bad_words": [word], "bad_words_penalty": 100.0, "bad_words_decay_tokens": 10}
    (worn,) = answers(url, logit_bias={str(plain[0]): 60.0}, **soft)
    assert plain[0] not in worn[:2]
    assert worn[10:] == [plain[0]] * 14


def test_certain_and_unsure_rows_are_cut_differently(url: str) -> None:
    """Where one token has nearly all the mass, top-k by entropy leaves it alone; elsewhere many."""
    sure = {"logit_bias": {"40": 60.0}, "temperature": 2, "top_k_entropy": 1.0}
    assert {token for answer in answers(url, **sure, n=4, seed=1) for token in answer} == {40}
    unsure = answers(url, temperature=2, top_k_entropy=1.0, n=4, seed=1)
    assert len({token for answer in unsure for token in answer}) > 10


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"temperature_schedule": {"end": 0.5}}, "temperature_schedule.tokens", "is required"),
        (
            {"temperature": 1, "temperature_schedule": {"end": 0.5, "tokens": 5, "shape": "steps"}},
            "temperature_schedule.shape",
            "steps",
        ),
        ({"temperature": 1, "temperature_schedule": {"end": 9, "tokens": 5}}, "temperature_schedule.end", "got 9"),
        ({"temperature_schedule": {"end": 1, "tokens": 5}}, "temperature_schedule", "above 0, got temperature 0"),
        ({"penalty_schedule": {"warm_up": 5}}, "penalty_schedule.warm_up", "unknown field"),
        ({"penalty_schedule": {}}, "penalty_schedule", "neither is above 0"),
        ({"bad_words_decay_tokens": 1.5}, "bad_words_decay_tokens", "integer"),
        ({"top_k_entropy": "all"}, "top_k_entropy", "number"),
        ({"min_p_entropy": -1}, "min_p_entropy", "between 0 and 100"),
        *(
            ({name: value, "use_beam_search": True, "return_token_ids": None}, name, f"cannot be combined with {name}")
            for name, value in (
                ("temperature_schedule", {"end": 0.5, "tokens": 5}),
                ("penalty_schedule", {"warmup_tokens": 5}),
                ("top_k_entropy", 1.0),
            )
        ),
    ],
)
def test_wrong_schedules_are_400s_that_name_the_field(url: str, fields: dict[str, Any], param: str, said: str) -> None:
    """A wrong value inside a schedule is named with its path."""
    answer = ask(url, **{"temperature": 1, **fields} if "use_beam_search" in fields else fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert said in answer.json()["error"]["message"]


def test_other_servers_are_not_sent_what_is_too_hot_without_its_schedule() -> None:
    """A temperature that is to fall is refused by name; a hint is left out and named."""

    async def work() -> None:
        with openai_server() as server:
            settings = load_settings(overrides={"chain": [f"openai:{server.url}"]}).settings
            chain = make_chain(settings, PluginHost.discover(settings.plugins))
            asked = ChatRequest(messages=[Message("user", "hello")])
            falling = SamplingParams(temperature_schedule=TemperatureSchedule(end=0.2, tokens=9))
            with pytest.raises(UnsupportedError, match="temperature_schedule"):
                await collect(chain.chat(replace(asked, sampling=falling)))
            hints = SamplingParams(presence_penalty=1, penalty_schedule=PenaltySchedule(9), top_k_entropy=1.0)
            answer = await collect(chain.chat(replace(asked, sampling=hints)))
            assert sorted(answer.usage.ignored) == ["penalty_schedule", "top_k_entropy"]
            await chain.close()

    asyncio.run(work())
