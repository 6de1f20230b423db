"""Speculative decoding gives the answers that there are without it, token by token, whatever is asked for."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.calling_model import TEMPLATE, write_calling_model
from support.drafts import Eager, drafting
from support.native import assert_idle, at_once, chat, engine_of, options, run, running
from support.requests_of_all_kinds import SCHEMA, requests_of_all_kinds, told
from support.server import serving
from support.waiting import until

from pyagent.core.backends import collect
from pyagent.core.errors import ConfigError
from pyagent.core.messages import (
    ChatRequest,
    JsonSchemaFormat,
    ResponseFormat,
)
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.drafts.speculation import Speculation
from pyagent.infrastructure.engine.options import EngineOptions

PREFIX = "pyagent_engine_spec_decode_num"
Told = list[tuple[Any, ...]]


async def plain_answers(path: Path, asked: list[ChatRequest], chosen: EngineOptions | None = None) -> Told:
    async with running(path, chosen) as backend:
        return [told(answer) for answer in await at_once(backend, asked)]


async def same_twice(path: Path, asked: list[ChatRequest], chosen: EngineOptions | None = None) -> Eager:
    """Ask with drafts at once, and again, when earlier answers are proposed, which are right; compare with none."""
    expected = await plain_answers(path, asked, chosen)
    async with drafting(path, chosen) as (backend, eager):
        for _ in range(2):
            assert [told(answer) for answer in await at_once(backend, asked)] == expected
        pool = (await backend.load()).runner.pool
        await until(lambda: pool.stats().active == 0)
        pool.check()
    assert eager.counts.num_accepted_tokens > 0
    assert eager.counts.num_draft_tokens > eager.counts.num_accepted_tokens
    return eager


def test_answers_of_every_kind_are_the_same(tiny_model_path: Path) -> None:
    """In a batch of all of them, with log probabilities, forms, penalties, stop strings and several answers."""

    async def work() -> None:
        eager = await same_twice(tiny_model_path, requests_of_all_kinds())
        assert eager.counts.num_accepted_tokens > 500
        assert eager.counts.accepted_at["6"] > 10

    run(work())


@pytest.mark.parametrize(("kv_type", "isa"), [("f32", "scalar"), ("f16", None), ("int8", None)])
def test_answers_are_the_same_in_every_kv_type(tiny_gemma_path: Path, kv_type: Any, isa: str | None) -> None:
    """Also with windows, from which blocks slide while drafts are refused."""
    asked = requests_of_all_kinds()[: 4 if isa else 12]
    run(_discard(same_twice(tiny_gemma_path, asked, options(kv_type=kv_type, isa=isa, threads=2))))


async def _discard(work: Any) -> None:
    await work


@pytest.mark.parametrize("scheduling", ["on", "off"])
def test_answers_are_the_same_while_requests_are_preempted(tiny_model_path: Path, scheduling: Any) -> None:
    """With little KV memory, short steps, and the next step planned ahead where no draft forbids it."""

    async def work() -> None:
        chosen = replace(options(blocks=28, max_num_batched_tokens=40), async_scheduling=scheduling)
        short = [chat("on", max_tokens=2, seed=number) for number in range(12)]
        asked = [chat("the user is", max_tokens=150, seed=at, ignore_eos=True, temperature=0.4) for at in range(8)]
        expected = await plain_answers(tiny_model_path, asked)
        async with drafting(tiny_model_path, chosen) as (backend, eager):
            await at_once(backend, short)  # so that little is expected of the others
            for _ in range(2):
                assert [told(answer) for answer in await at_once(backend, asked)] == expected
            engine = (await backend.load()).engine
            assert engine.scheduler.num_preemptions.total() > 0
            await assert_idle(backend)
        assert eager.counts.num_accepted_tokens > 50

    run(work())


@pytest.mark.parametrize("scheduling", ["on", "off"])
def test_answers_are_the_same_where_drafts_are_verified_beside_prompts(tiny_model_path: Path, scheduling: Any) -> None:
    """Requests of every kind, in steps so short that long prompts take many of them and give up tokens for drafts."""

    async def work() -> None:
        chosen = replace(options(max_num_batched_tokens=48), async_scheduling=scheduling)
        text = "the user is at the system, and so on and on. "
        scored = chat(text[:-14] * 14, max_tokens=9, seed=3, prompt_logprobs=2)
        prompts = [chat(f"{at} " + text * 12, max_tokens=7, seed=at, ignore_eos=True) for at in range(9)]
        prompts += [msgspec.structs.replace(prompts[3], n=3), scored]
        eager = await same_twice(tiny_model_path, requests_of_all_kinds()[:22] + prompts, chosen)
        assert eager.num_beside_prompts > 300
        assert eager.num_put_off > 50

    run(work())


@pytest.mark.parametrize("num_tokens", [80, pytest.param(1500, marks=pytest.mark.slow)])
def test_greedy_answers_of_a_real_model_are_the_same(smollm2_path: Path, num_tokens: int) -> None:
    """SmolLM2 writes the same tokens in a batch of three with drafts and without; the second time most are right."""
    texts = ("Count from one to three hundred.", "Repeat 'no no yes' forever.", "Write a long story of a fox.")
    asked = [chat(text, max_tokens=num_tokens, temperature=0, ignore_eos=True) for text in texts]
    chosen = EngineOptions(RunnerOptions(threads=2, kv_bytes=1 << 28))

    async def work() -> None:
        eager = await same_twice(smollm2_path, asked, chosen)
        assert eager.counts.num_accepted_tokens > 2.5 * num_tokens

    run(work())


def test_thinking_budgets_and_forms_hold(tmp_path: Path) -> None:
    """What ends reasoning is forced where it was, in the middle of drafts too, and the form holds what comes then."""
    opening = TEMPLATE + "{{ '<think>\n' }}"
    model = write_calling_model(tmp_path / "thinking.gguf", tokenizer__chat_template=opening)
    form = ResponseFormat("json_schema", JsonSchemaFormat(schema=SCHEMA))
    asked = [
        msgspec.structs.replace(
            chat("go", max_tokens=100, seed=seed, thinking_token_budget=budget), response_format=held
        )
        for seed, budget in enumerate((3, 9, 10, 30, 60))
        for held in (form, None)
    ]

    async def work() -> None:
        async with drafting(model) as (backend, eager):
            answers = await at_once(backend, asked)
            assert all(any(delta.reasoning for delta in answer.deltas) for answer in answers)
            parsed = [json.loads(answer.text) for answer in answers[:-2:2]]
            assert all(set(one) == {"user", "at"} for one in parsed)
        eager = await same_twice(model, asked)
        assert eager.counts.num_accepted_tokens > 100

    run(work())


def test_predicted_output_is_copied(smollm2_path: Path) -> None:
    """An answer that is as predicted takes fewer steps; one that is not is the same as without a prediction."""
    chosen = EngineOptions(RunnerOptions(threads=2, kv_bytes=1 << 26))
    request = chat("Name five colours.", max_tokens=40, temperature=0)

    async def work() -> None:
        async with drafting(smollm2_path, chosen) as (backend, _):
            plain = await collect(backend.chat(request))
            engine = (await backend.load()).engine
            before = engine.counts.num_steps
            other = msgspec.structs.replace(request, origin=msgspec.structs.replace(request.origin, tenant="other"))
            for text in (plain.text, "The answer is: " + plain.text, "nothing of it <|im_end|>"):
                answer = await collect(backend.chat(msgspec.structs.replace(other, prediction=text)))
                assert answer.text == plain.text
                if text == plain.text:
                    assert engine.counts.num_steps - before < answer.usage.completion_tokens // 2  # type: ignore[union-attr]

    run(work())


def test_huge_prediction_costs_no_more_than_a_prompt(tiny_model_path: Path) -> None:
    """A predicted answer is read as far as the context goes, whatever is sent: one of 40 MB took minutes."""
    request = chat("on and on", max_tokens=8, temperature=0, ignore_eos=True)

    async def work() -> None:
        async with drafting(tiny_model_path) as (backend, _):
            plain = await collect(backend.chat(request))
            for text in ("on " * 13_000_000, "o" * 40_000_000):
                started = time.perf_counter()
                answer = await collect(backend.chat(msgspec.structs.replace(request, prediction=text)))
                assert answer.text == plain.text
                assert time.perf_counter() - started < 5

    run(work())


def test_drafts_of_one_tenant_are_not_of_another(tiny_model_path: Path) -> None:
    """An answer is proposed again to its own tenant, and to no other."""

    async def work() -> None:
        async with drafting(tiny_model_path) as (backend, eager):
            num_accepted: list[int] = []
            for tenant in ("a", "a", "b", "b"):
                before = eager.counts.num_accepted_tokens
                origin = msgspec.structs.replace(ChatRequest().origin, tenant=tenant)
                request = chat("hi", max_tokens=60, seed=1, ignore_eos=True)
                await collect(backend.chat(msgspec.structs.replace(request, origin=origin)))
                num_accepted.append(eager.counts.num_accepted_tokens - before)
            first, again, other, other_again = num_accepted
            assert max(first, other) < 10
            assert min(again, other_again) > 25

    run(work())


@pytest.mark.parametrize("process", [False, True])
def test_prediction_over_http_is_counted(smollm2_path: Path, process: bool) -> None:
    """OpenAI's field takes a text or its parts; usage and metrics have what came of it; other shapes are refused."""
    asked: dict[str, Any] = {
        "model": str(smollm2_path),
        "messages": [{"role": "user", "content": "Write the numbers from 1 to 40, with commas."}],
        "temperature": 0,
        "max_tokens": 60,
    }

    async def work() -> None:
        async with (
            engine_of(smollm2_path, process=process) as backend,
            serving(backend) as url,
            httpx.AsyncClient(timeout=600, base_url=url) as http,  # the first answer waits for the model, too
        ):
            plain = (await http.post("/v1/chat/completions", json=asked)).json()
            text = plain["choices"][0]["message"]["content"]
            for content in (text, [{"type": "text", "text": text[:40]}, {"type": "text", "text": text[40:]}]):
                body = asked | {"prediction": {"type": "content", "content": content}}
                for _ in range(20):  # steps that others held up may have cost the drafts their due for a while
                    reply = (await http.post("/v1/chat/completions", json=body)).json()
                    assert reply["choices"][0]["message"]["content"] == text
                    details = reply["usage"]["completion_tokens_details"]
                    if details["accepted_prediction_tokens"] > 10:
                        break
                assert 10 < details["accepted_prediction_tokens"] < 60
            metrics = (await http.get("/metrics")).text
            accepted = next(line for line in metrics.splitlines() if line.startswith(f"{PREFIX}_accepted_tokens_total"))
            assert float(accepted.split()[-1]) >= details["accepted_prediction_tokens"]
            told = re.findall(
                rf'^{PREFIX}_accepted_tokens_per_source_total{{.*source="(.*)"}} (.*)$', metrics, re.MULTILINE
            )
            assert float(dict(told)["predicted"]) > 10
            assert sum(float(number) for _, number in told) == float(accepted.split()[-1])
            for seconds in ("verify_seconds_total", "saved_seconds"):
                assert float(
                    re.findall(rf"^pyagent_engine_spec_decode_{seconds}{{.*}} (.*)$", metrics, re.MULTILINE)[0]
                )
            assert 'account="drafts:' in metrics
            for wrong in (
                "text",
                {"type": "content"},
                {"type": "text", "content": "a"},
                {"type": "content", "content": 1},
            ):
                reply = await http.post("/v1/chat/completions", json=asked | {"prediction": wrong})
                assert reply.status_code == 400
                assert "prediction" in reply.json()["error"]["message"]

    run(work())


def test_method_off_has_no_drafts(tiny_model_path: Path) -> None:
    """`engine.speculative.method` turns it off, and `ngram` keeps no answers for later requests."""

    async def drafts_of(**settings: object) -> Speculation | None:
        async with engine_of(tiny_model_path, process=False, **settings) as backend:
            await collect(backend.chat(chat("on and on and on", max_tokens=30, temperature=0, ignore_eos=True)))
            return (await backend.load()).engine.speculation

    async def work() -> None:
        assert await drafts_of(**{"engine.speculative.method": "off"}) is None
        of_own = await drafts_of(**{"engine.speculative.method": "ngram"})
        assert of_own is not None
        assert of_own._shared is None
        assert of_own._memory.num_bytes == 0
        with pytest.raises(ConfigError, match=r"engine\.speculative\.method"):
            await drafts_of(**{"engine.speculative.method": "eagle"})

    run(work())
