"""Log probabilities of a prompt's tokens: against plain arithmetic, however the prompt is computed, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from support.cpu_runners import only
from support.native import (
    NUM_TOKENS,
    assert_idle,
    at_once,
    chat,
    engine_logits,
    engine_of,
    one_by_one,
    options,
    run,
    running,
)
from support.reference_decoder import reference_logits, write_family
from support.tiny_model import write_tiny_model

from pyagent import _rust
from pyagent.core.backends import Answer, collect
from pyagent.core.errors import RequestError, UnsupportedError
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import BeamSearch, ChatRequest, SamplingParams
from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.infrastructure.engine import prompt_logprobs
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.scheduler.queues import QueueOptions, make_queues
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.server.openai import prompts
from pyagent.logic.agents.code_health import CodeHealthAgent
from pyagent.testing import ScriptedBackend, serve

TEXT = "the user is at ease, and 12 more; the system is on" * 4
PROMPT = tuple((7 * place * place + 3 * place) % (NUM_TOKENS - 3) + 3 for place in range(150))
Entries = list[dict[int, Any] | None]


def scoring(prompt: tuple[int, ...] = PROMPT, top: int = 3, **fields: Any) -> ChatRequest:
    sampling = {"temperature": 0, "max_tokens": 4, "ignore_eos": True, **fields}
    return ChatRequest(prompt_token_ids=prompt, sampling=SamplingParams(prompt_logprobs=top, **sampling))


def plain(request: ChatRequest) -> ChatRequest:
    return ChatRequest(
        prompt_token_ids=request.prompt_token_ids,
        sampling=SamplingParams(temperature=0, max_tokens=request.sampling.max_tokens, ignore_eos=True),
    )


def scored(answer: Answer) -> Entries:
    (found,) = [delta.prompt_logprobs for delta in answer.deltas if delta.prompt_logprobs]
    return found


def log_softmax(row: list[float]) -> list[float]:
    greatest = max(row)
    total = math.log(math.fsum(math.exp(logit - greatest) for logit in row))
    return [logit - greatest - total for logit in row]


def expect(entries: Entries, tokens: tuple[int, ...], rows: list[list[float]], top: int, tolerance: float) -> None:
    """Every entry is what float64 arithmetic makes of the logits."""
    assert len(entries) == len(tokens)
    assert entries[0] is None
    for token, entry, row in zip(tokens[1:], entries[1:], rows, strict=False):
        assert entry is not None
        logprobs = log_softmax(row)
        order = sorted(range(len(row)), key=lambda other: (-row[other], other))
        assert next(iter(entry)) == token
        assert set(entry) == {token, *order[:top]}
        for other, one in entry.items():
            assert one.logprob == pytest.approx(logprobs[other], abs=tolerance)
            assert order[one.rank - 1] == other


def test_prompt_logprobs_are_the_log_softmax_of_the_models_logits(tiny_model_path: Path) -> None:
    """Each prompt token's entry is the float64 log-softmax of the logits before it, with rank and the likeliest."""

    async def main() -> None:
        async with running(tiny_model_path, options(kv_type="f32")) as backend:
            for top in (0, 1, 5):
                answer = await collect(backend.chat(scoring(top=top)))
                expect(scored(answer), PROMPT, engine_logits(tiny_model_path, [*PROMPT]), top, 1e-5)

    run(main())


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_prompt_logprobs_agree_with_a_plain_decoder(family: str, tmp_path: Path) -> None:
    """A decoder in plain Python gives the same numbers from the same weights, also where layers see a window only."""
    config, tensors = write_family(tmp_path, family)
    tokens = [(7 * place + place * place) % config["vocab_size"] for place in range(40)]
    expected = [log_softmax(row) for row in reference_logits(config, tensors, tokens)]
    model = _rust.CpuModel.load(tmp_path, threads=1, kv_bytes=1 << 24, kv_type="f32")
    pool = _rust.BlockPool(model.info()["num_pages"], groups=model.info()["kv_groups"])
    pool.add(1, tokens)
    pool.reserve(1, len(tokens))
    scores = _rust.PromptScores(tokens, 1)
    for start in range(0, len(tokens), 11):
        part = tokens[start : start + 11]
        model.execute(pool, [1], [len(part)], part, scores={0: scores})
    assert scores.is_complete
    for token, row, (logprob, _, top) in zip(tokens[1:], expected, scores.read(0, len(tokens)), strict=False):
        assert logprob == pytest.approx(row[token], abs=1e-3)
        assert top[0][1] == pytest.approx(max(row), abs=1e-3)


def test_prompt_logprobs_are_the_same_however_the_prompt_is_computed(tiny_model_path: Path) -> None:
    """Alone, in chunks of any size, among others, after a cached prefix: not a bit of any number changes."""
    requests = [scoring(), scoring(PROMPT[:97], 0), scoring((*PROMPT[:64], *PROMPT[:30])), scoring(PROMPT[:1])]
    neighbours = [chat(f"the user and {index}", max_tokens=20, temperature=0) for index in range(3)]

    async def main() -> None:
        async with running(tiny_model_path) as backend:
            expected = [scored(answer) for answer in await one_by_one(backend, requests)]
        assert expected[3] == [None]
        for tokens in (1024, 33, 7, 3):
            async with running(tiny_model_path, options(max_num_batched_tokens=tokens, threads=2)) as backend:
                await collect(backend.chat(plain(requests[0])))  # its prefix is cached
                answers = await at_once(backend, [*neighbours, *requests])
                assert [scored(answer) for answer in answers[3:]] == expected, tokens
                await assert_idle(backend)

    run(main())


def test_prompt_logprobs_survive_preemption_in_the_prompt(tiny_model_path: Path) -> None:
    """A request preempted in the middle of its prompt goes on where it was scored, and has the same numbers."""
    queue = QueueOptions("priority", {"preempts": True})
    chosen = replace(options(max_num_batched_tokens=20), queues=lambda: make_queues({"default": queue}))
    chosen = replace(chosen, limits=replace(chosen.limits, max_num_seqs=1))
    urgent = msgspec.structs.replace(plain(scoring(PROMPT[50:60])), priority=-1)
    is_under_way, is_submitted = threading.Event(), threading.Event()

    async def main() -> None:
        async with running(tiny_model_path) as backend:
            expected = await collect(backend.chat(scoring()))
        async with running(tiny_model_path, chosen) as backend:
            engine = (await backend.load()).engine
            execute, submit, steps = engine.runner.execute, engine.submit, list[int]()

            def fourth_step_waits(batch: Batch) -> StepOutput:
                steps.append(len(batch.tokens))
                if len(steps) == 4:
                    is_under_way.set()
                    assert is_submitted.wait(60)
                return execute(batch)

            engine.runner.execute = fourth_step_waits
            asked = asyncio.create_task(collect(backend.chat(scoring())))
            assert await asyncio.to_thread(is_under_way.wait, 60)
            engine.submit = lambda request: (submit(request), is_submitted.set())[0]
            await collect(backend.chat(urgent))
            answer = await asked
            assert engine.scheduler.num_preemptions["recompute"] == 1
            assert steps[4:6] == [10, 1]  # the urgent prompt, in the middle of the other
            assert sum(steps) < 250  # what was computed and scored before was not computed again
            await assert_idle(backend)
        assert answer.text == expected.text
        assert scored(answer) == scored(expected)

    run(main())


@pytest.mark.parametrize("kind", ["recompute", "swap"])
def test_prompt_logprobs_survive_preemption_for_memory(tiny_model_path: Path, kind: str) -> None:
    """Requests that yield their KV memory while they decode have the same numbers and texts."""
    requests = [scoring((*PROMPT[index:100], *PROMPT[:index]), max_tokens=350) for index in range(4)]

    async def main() -> None:
        async with running(tiny_model_path) as backend:
            expected = await one_by_one(backend, requests)
        async with running(tiny_model_path, options(blocks=32)) as backend:
            await at_once(backend, [chat("the", max_tokens=1)] * 4)  # so that short answers are expected
            model = await backend.load()
            model.runner.swap_seconds = lambda num_tokens: 0.0 if kind == "swap" else math.inf
            answers = await at_once(backend, requests)
            assert model.engine.scheduler.num_preemptions[kind] > 0
            await assert_idle(backend)
        assert [answer.text for answer in answers] == [answer.text for answer in expected]
        assert [scored(answer) for answer in answers] == [scored(answer) for answer in expected]

    run(main())


def test_others_are_not_changed_by_a_scored_prompt(tiny_model_path: Path) -> None:
    """A request beside one that asks writes, and reports, byte for byte what it does alone."""
    other = ChatRequest(
        prompt=TEXT, sampling=SamplingParams(temperature=1.0, seed=3, max_tokens=30, top_logprobs=2, ignore_eos=True)
    )

    async def main() -> None:
        async with running(tiny_model_path, options(max_num_batched_tokens=48)) as backend:
            alone = await collect(backend.chat(other))
        async with running(tiny_model_path, options(max_num_batched_tokens=48)) as backend:
            beside, _ = await at_once(backend, [other, scoring()])
            again, _ = await at_once(backend, [other, scoring(PROMPT[:90])])
        for answer in (beside, again):
            assert answer.text == alone.text
            assert [delta.logprobs for delta in answer.deltas] == [delta.logprobs for delta in alone.deltas]
            assert not any(delta.prompt_logprobs for delta in answer.deltas)

    run(main())


def test_a_scored_prompt_is_computed_anew_and_cached_for_others(tiny_model_path: Path) -> None:
    """A request that asks takes nothing from the prefix cache, and leaves what it computed there."""

    async def main() -> None:
        async with running(tiny_model_path) as backend:
            first = await collect(backend.chat(scoring()))
            then = await collect(backend.chat(plain(scoring())))
            again = await collect(backend.chat(scoring()))
        assert first.usage.prompt_tokens_details.cached_tokens == 0
        assert then.usage.prompt_tokens_details.cached_tokens > 128
        assert again.usage.prompt_tokens_details.cached_tokens == 0
        assert again.usage.cache is not None
        assert again.usage.cache.miss is None
        assert "all of it was computed" in again.usage.cache.note
        assert scored(again) == scored(first)
        assert first.text == then.text == again.text

    run(main())


def test_a_damaged_prompt_fails_alone(tmp_path: Path) -> None:
    """Where the logits of a prompt in chunks are no numbers, that request ends with the reason, and no other."""
    path = write_tiny_model(tmp_path / "nan.gguf", damaged_token=7)
    good = tuple(token for token in PROMPT if token != 7)

    async def main() -> None:
        async with running(path, options(max_num_batched_tokens=32)) as backend:
            expected = await collect(backend.chat(scoring(good)))
            bad, fine = await asyncio.gather(
                collect(backend.chat(scoring((*good[:5], 7, *good[5:])))),
                collect(backend.chat(scoring(good))),
                return_exceptions=True,
            )
        assert "the model's output is broken" in str(bad)
        assert isinstance(fine, Answer)
        assert scored(fine) == scored(expected)

    run(main())


def test_what_cannot_be_scored_is_refused(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beams, a chat to repeat, too many numbers: each is refused by its field, and nothing is computed."""
    beam = msgspec.structs.replace(scoring(), beam=BeamSearch(width=2))
    repeated = chat("hi", echo=True)
    monkeypatch.setattr(prompt_logprobs, "MAX_ENTRIES", 400)

    async def refused(backend: NativeBackend, request: ChatRequest) -> RequestError:
        with pytest.raises(RequestError) as found:
            await collect(backend.chat(request))
        return found.value

    async def main() -> None:
        async with running(tiny_model_path) as backend:
            assert (await refused(backend, beam)).param == "prompt_logprobs"
            assert (await refused(backend, repeated)).param == "echo"
            much = await refused(backend, scoring())
            assert much.param == "prompt_logprobs"
            assert "600 in all; at most 400" in str(much)
            assert (await collect(backend.chat(scoring(PROMPT[:90])))).text

    run(main())


def test_runners_that_cannot_score_refuse(tiny_model_path: Path) -> None:
    """Where the runner does not score prompts, a request for it is refused by the caller's words; others are served."""

    class Scoreless(CpuRunner):
        scores_prompts = False

    async def main() -> None:
        async with running(tiny_model_path, replace(options(), runners=only(Scoreless))) as backend:
            with pytest.raises(UnsupportedError, match="no log probabilities of prompts") as named:
                await collect(backend.chat(scoring()))
            assert named.value.param == "prompt_logprobs"
            echoing = ChatRequest(prompt_token_ids=PROMPT, sampling=SamplingParams(echo=True, top_logprobs=1))
            with pytest.raises(UnsupportedError, match="echo with logprobs asks") as named:
                await collect(backend.chat(echoing))
            assert named.value.param == "echo"
            assert (await collect(backend.chat(plain(scoring())))).text

    run(main())


def test_an_engine_in_its_own_process_scores_prompts(tiny_model_path: Path) -> None:
    """Scores and echoed prompts cross the process border unchanged, for one answer and for several."""
    echoed = ChatRequest(prompt=TEXT, n=3, sampling=SamplingParams(echo=True, top_logprobs=1, max_tokens=3, seed=1))

    async def main() -> None:
        async with engine_of(tiny_model_path, process=False) as backend:
            expected = [await collect(backend.chat(request)) for request in (scoring(), echoed)]
        async with engine_of(tiny_model_path, process=True) as backend:
            found = [await collect(backend.chat(request)) for request in (scoring(), echoed)]
        assert scored(found[0]) == scored(expected[0])
        for index in range(3):
            one, other = (
                [entry for delta in answer.deltas if delta.index == index for entry in delta.logprobs]
                for answer in (found[1], expected[1])
            )
            assert one == other
            texts = [delta.content for delta in found[1].deltas if delta.index == index]
            assert "".join(texts).startswith(TEXT)

    run(main())


# -- over HTTP --------------------------------------------------------------------------------------------------------


def post(url: str, path: str = "completions", **body: Any) -> httpx.Response:
    body = {"model": "tiny", "temperature": 0, "max_tokens": 4, "ignore_eos": True, **body}
    return httpx.post(f"{url}/v1/{path}", json=body, timeout=60)


def completed(url: str, path: str = "completions", **body: Any) -> dict[str, Any]:
    answer = post(url, path, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_openai_clients_get_prompt_logprobs_as_vllm_gives_them(url: str) -> None:
    """A chat's come beside the choices, a completion's with each choice: null, then entries by token id."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=2, extra_body={"prompt_logprobs": 2}
    )
    assert answer.model_extra
    found = answer.model_extra["prompt_logprobs"]
    assert answer.usage
    assert found[0] is None
    assert len(found) == answer.usage.prompt_tokens
    for entry in found[1:]:
        assert all(key.isdigit() and set(one) == {"logprob", "rank", "decoded_token"} for key, one in entry.items())
        assert {1, 2} <= {one["rank"] for one in entry.values()}
        assert len(entry) in {2, 3}
    older = client.completions.create(model="tiny", prompt=[TEXT, "12"], n=2, extra_body={"prompt_logprobs": 0})
    sizes = [len((choice.model_extra or {})["prompt_logprobs"]) for choice in older.choices]
    assert sizes[0] == sizes[1] > sizes[2] == sizes[3]
    plain = client.completions.create(model="tiny", prompt="12")
    assert "prompt_logprobs" not in (plain.choices[0].model_extra or {})


def test_an_echoed_prompt_begins_text_and_logprobs(url: str, tiny_model_path: Path) -> None:
    """With echo the text begins with the prompt, the entries with its tokens; the first has no log probability."""
    plain = completed(url, prompt=TEXT, logprobs=2)["choices"][0]
    choice = completed(url, prompt=TEXT, logprobs=2, echo=True)["choices"][0]
    assert choice["text"] == TEXT + plain["text"]
    tokenizer = ModelTokenizer.load(tiny_model_path, vocab_size=NUM_TOKENS)
    num_prompt = len(tokenizer.encode_text(TEXT))
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    assert all(logprob < 0 for logprob in found["token_logprobs"][1:])
    # parts of characters have one text
    assert all(len(top) in {1, 2} for top in found["top_logprobs"][1:])
    for field in ("tokens", "token_logprobs", "top_logprobs"):
        assert found[field][num_prompt:] == plain["logprobs"][field]
    lengths = [len(token) for token in found["tokens"]]
    assert found["text_offset"] == [sum(lengths[:place]) for place in range(len(lengths))]
    bare = completed(url, prompt=TEXT, echo=True)["choices"][0]
    assert (bare["text"], bare["logprobs"]) == (choice["text"], None)


def test_several_echoed_answers_each_begin_with_the_prompt(url: str) -> None:
    """With `n`, `best_of` and several prompts every choice has its own prompt, in text and entries."""
    asked = {"n": 2, "temperature": 1.0, "seed": 4, "logprobs": 1, "prompt": [TEXT, "12 more"]}
    choices = completed(url, **asked, echo=True)["choices"]
    plain = completed(url, **asked)["choices"]
    for place, (choice, other) in enumerate(zip(choices, plain, strict=True)):
        assert choice["text"] == (TEXT, "12 more")[place // 2] + other["text"]
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    best = completed(url, prompt="12 more", best_of=3, n=2, seed=4, temperature=1.0, logprobs=0, echo=True)
    assert all(choice["text"].startswith("12 more") for choice in best["choices"])
    assert all(choice["logprobs"]["token_logprobs"][0] is None for choice in best["choices"])


def test_prompts_are_scored_up_to_a_number_together(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many scored prompts in one request are refused past a number of log probabilities."""
    monkeypatch.setattr(prompts, "MAX_PROMPT_LOGPROBS", 100)
    assert post(url, prompt=["12 more"] * 3, logprobs=1, echo=True).status_code == 200
    for asked in ({"logprobs": 1, "echo": True}, {"prompt_logprobs": 1}):
        refused = post(url, prompt=["12 more"] * 30, **asked)
        assert refused.status_code == 400
        assert "send fewer at once" in refused.json()["error"]["message"]


def test_an_echoed_stream_begins_with_the_prompt(url: str) -> None:
    """The first event of each choice has the prompt; joined, the events are what is answered whole."""
    body = {"prompt": TEXT, "logprobs": 1, "echo": True, "n": 2, "seed": 4, "temperature": 1.0}
    whole = completed(url, **body)["choices"]
    texts, tokens = {0: "", 1: ""}, {0: list[str](), 1: list[str]()}
    request = {"model": "tiny", "max_tokens": 4, "ignore_eos": True, "stream": True, **body}
    with httpx.stream("POST", f"{url}/v1/completions", json=request, timeout=60) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                assert texts[choice["index"]] or choice["text"].startswith(TEXT)
                texts[choice["index"]] += choice["text"]
                tokens[choice["index"]] += (choice["logprobs"] or {"tokens": []})["tokens"]
    assert [texts[0], texts[1]] == [choice["text"] for choice in whole]
    assert [tokens[0], tokens[1]] == [choice["logprobs"]["tokens"] for choice in whole]


def loglikelihood(choice: dict[str, Any], num_context: int) -> tuple[float, bool]:
    """What lm-evaluation-harness reads from a choice of /v1/completions: its `parse_logprobs`."""
    logprobs = choice["logprobs"]["token_logprobs"][num_context:-1]
    tops = choice["logprobs"]["top_logprobs"][num_context:-1]
    return sum(logprobs), all(logprob == max(top.values()) for logprob, top in zip(logprobs, tops, strict=True))


def test_evaluation_harnesses_read_loglikelihoods(url: str, tiny_model_path: Path) -> None:
    """Token ids with echo, logprobs=1, max_tokens=1 or 0 give a continuation's likelihood and whether it is greedy."""
    tokenizer = ModelTokenizer.load(tiny_model_path, vocab_size=NUM_TOKENS)
    context, other = tokenizer.encode_text("the user is"), tokenizer.encode_text(" at 12")
    greedy = completed(url, prompt=context, max_tokens=3, logprobs=1)["choices"][0]["logprobs"]
    rows = [log_softmax(row) for row in engine_logits(tiny_model_path, [*context, *other], "bf16")]
    expected = sum(rows[len(context) - 1 + place][token] for place, token in enumerate(other))
    best = next(token for token in range(NUM_TOKENS) if tokenizer.token_text(token) == greedy["tokens"][0])
    asked = {"prompt": [[*context, *other], [*context, best]], "max_tokens": 1, "logprobs": 1, "echo": True, "seed": 1}
    choices = completed(url, **asked)["choices"]
    assert loglikelihood(choices[0], len(context)) == (pytest.approx(expected, abs=1e-4), False)
    assert loglikelihood(choices[1], len(context)) == (pytest.approx(greedy["token_logprobs"][0], abs=1e-6), True)
    none = completed(url, prompt=[*context, *other], max_tokens=0, logprobs=1, echo=True)
    assert none["choices"][0]["logprobs"]["tokens"] == choices[0]["logprobs"]["tokens"][:-1]
    assert none["choices"][0]["logprobs"]["token_logprobs"] == choices[0]["logprobs"]["token_logprobs"][:-1]
    assert none["choices"][0]["finish_reason"] == "length"
    assert none["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {"prompt": "x", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("completions", {"prompt": "x", "prompt_logprobs": 21}, "prompt_logprobs"),
        ("completions", {"prompt": "x", "prompt_logprobs": -1}, "prompt_logprobs"),
        ("completions", {"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ("completions", {"prompt": "x", "echo": True, "use_beam_search": True, "n": 2}, "echo"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "echo": True}, "echo"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "max_tokens"),
    ],
)
def test_wrong_requests_are_refused_by_field(url: str, path: str, body: dict[str, Any], param: str) -> None:
    """What cannot be given is refused with status 400 and the field's name."""
    answer = post(url, path, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {"prompt": "x", "echo": True}, "echo"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "prompt_logprobs": 0}, "prompt_logprobs"),
    ],
)
def test_agents_refuse_to_score(path: str, body: dict[str, Any], param: str) -> None:
    """An agent has no one prompt: what asks about it is refused by name, not left out in silence."""
    agents = AgentBackend(lambda: Fleet(ScriptedBackend([]), [CodeHealthAgent()]))
    with serve(create_app(ScriptedBackend([]), agents=agents)) as url:
        answer = post(url, path, **{"model": "agent:code-health", **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
