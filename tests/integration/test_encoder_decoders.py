"""Encoder-decoders: the same answers alone, in batches, in chunks, preempted and cached; refused by name otherwise."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from msgspec.structs import replace
from support.command_line import fresh_environment, pyagent
from support.encoder_decoders import END, PAD, PIECES, TRAINED, PromptRunner, t5_tensors, write_t5
from support.native import alone, assert_idle, at_once, chat, mixed_requests, native_server, options, run, running

from pyagent import _rust
from pyagent.core.backends import collect
from pyagent.core.errors import ContextOverflowError, UnsupportedError
from pyagent.core.messages import ChatRequest, Message, ResponseFormat, SamplingParams
from pyagent.core.runners.batch import PrefixKey
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.models.describe import describe_model

FORMATS: dict[str, EngineOptions] = {
    "two threads": options(threads=2),
    "seven tokens a step": options(max_num_batched_tokens=7),
    "little memory": options(blocks=200, max_num_batched_tokens=64),
    "plain": options(isa="scalar"),
}
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small T5."""
    return write_t5(tmp_path_factory.mktemp("t5") / "t5.gguf")


@pytest.fixture(scope="module")
def expected(path: Path) -> list[str]:
    """What requests of all kinds are answered, each alone."""
    return asyncio.run(alone(path, mixed_requests(12)))


@pytest.fixture(scope="module")
def url(path: Path) -> Iterator[str]:
    """A server with the model."""
    with native_server(path) as served:
        yield served


@pytest.mark.parametrize(
    "variant",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in {"plain", "two threads"})) for name in FORMATS],
)
def test_answers_in_a_batch_are_those_given_alone(path: Path, variant: str, expected: list[str]) -> None:
    """Twelve prompts of all lengths at once, twice, in chunks and preempted: each has the text it is given alone."""

    async def work() -> None:
        requests = mixed_requests(12)
        async with running(path, FORMATS[variant]) as backend:
            for _ in range(2):  # the second time prompts are cached
                assert [answer.text for answer in await at_once(backend, requests)] == expected
            await assert_idle(backend)
        assert len(set(expected)) > 7

    run(work())


@pytest.mark.parametrize("kind", ["recompute", "swap"])
def test_preempted_answers_are_unchanged(path: Path, kind: str) -> None:
    """Four long answers in memory for less: requests yield, and their texts are the same."""

    async def work() -> None:
        sampling: dict[str, object] = {"ignore_eos": True, "max_tokens": 250, "frequency_penalty": 1}
        seeded = [chat(f"{seed} the {'en' * 20 * seed}", seed=seed, **sampling) for seed in range(4)]
        texts = await alone(path, seeded)
        async with running(path, options(blocks=160)) as backend:
            await at_once(backend, [chat("the", max_tokens=1)] * 4)  # so that short answers are expected
            model: Any = await backend.load()
            model.runner.swap_seconds = lambda num_tokens: 0.0 if kind == "swap" else math.inf
            assert [answer.text for answer in await at_once(backend, seeded)] == texts
            assert model.engine.scheduler.num_preemptions[kind] > 0
            await assert_idle(backend)

    run(work())


def test_keys_and_values_of_another_prompt_are_never_used(path: Path) -> None:
    """Two prompts that begin alike share nothing, as a token is read with all others; the same one is found whole."""

    async def work() -> None:
        first, second = (ChatRequest(prompt="to the a " * 12 + end, sampling=GREEDY) for end in ("en", "er"))
        async with running(path) as backend, running(path) as cold:
            answers = [await collect(backend.chat(one)) for one in (first, second, first)]
            cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in answers]
            assert cached[:2] == [0, 0]
            assert cached[2] == answers[0].usage.prompt_tokens - 1
            assert answers[1].text == (await collect(cold.chat(second))).text
            assert answers[0].text == answers[2].text != answers[1].text
            await assert_idle(backend)

    run(work())


def test_what_is_explained_is_what_is_found(path: Path) -> None:
    """A prompt that was asked before is told as cached, as far as a request finds it; one that begins alike is not."""

    async def work() -> None:
        first, second = (ChatRequest(prompt="to the a " * 12 + end, sampling=GREEDY) for end in ("en", "er"))
        async with running(path) as backend:
            await collect(backend.chat(first))
            model = await backend.load()
            told = [model.explain(one).cached_tokens for one in (first, second)]
            again = (await collect(backend.chat(first))).usage
            assert told == [again.prompt_tokens_details.cached_tokens, 0] == [again.prompt_tokens - 1, 0]

    run(work())


def test_what_the_encoder_reads_counts_in_no_penalty(path: Path) -> None:
    """As in transformers a penalty of repetition is for the answer: its first token is the one without."""

    async def work() -> None:
        async with running(path) as backend:
            for prompt in ("abcdefghijklmnopqrstuvwxyz 0123456789.,:!", "the to a en er ch Hallo"):
                plain = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logit_bias={PAD: -100})
                both = (plain, replace(plain, repetition_penalty=100.0))
                texts = [(await collect(backend.chat(ChatRequest(prompt=prompt, sampling=one)))).text for one in both]
                assert texts[0] == texts[1] != ""

    run(work())


def test_several_answers_share_a_prompt(path: Path) -> None:
    """Of two answers to one prompt, each is what its seed gives; the memory is free afterwards."""

    async def work() -> None:
        sampling = SamplingParams(temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)
        request = ChatRequest(prompt="translate: the a to", sampling=sampling, n=2)
        async with running(path) as backend, running(path, options(max_num_batched_tokens=5)) as other:
            texts = [[delta.content for delta in (await collect(one.chat(request))).deltas] for one in (backend, other)]
            assert sorted("".join(texts[0])) == sorted("".join(texts[1]))
            await assert_idle(backend)

    run(work())


def test_a_conversation_is_read_anew_and_its_memory_stays(path: Path) -> None:
    """A second turn continues no tokens of the first; keys and values of a prompt do not move between engines."""

    async def work() -> None:
        first = replace(chat("to the a", max_tokens=9, temperature=0, ignore_eos=True), session="talk")
        async with running(path) as backend, running(path) as cold:
            said = (await collect(backend.chat(first))).text
            turns = [*first.messages, Message("assistant", said), Message("user", "ch en")]
            second = replace(first, messages=turns)
            texts = [(await collect(one.chat(second))).text for one in (backend, cold)]
            assert texts[0] == texts[1] != ""
            model = await backend.load()
            assert model.explain(second).log_tokens == 0
            assert (model.movable, "those of one prompt alone" in model.why_kv_stays) == (None, True)

    run(work())


def test_the_prompt_ends_and_the_answer_begins_as_the_model_was_trained(path: Path) -> None:
    """The encoder reads the text's pieces and the end token, without one that begins it; the answer begins after the
    padding token, and is the model's likeliest tokens without the marked space before the first word."""
    prompt = [PIECES.index(piece) for piece in ("▁the", "▁to")] + [END]
    runner, answer = PromptRunner(path), [PAD]
    runner.begin(1, prompt, answer)
    logits = runner.step((1, [*prompt, PAD]))
    for _ in range(8):
        answer.append(int(logits[-1].argmax()))
        logits = runner.step((1, answer[-1:]))

    async def work() -> None:
        sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        async with running(path, options(kv_type="f32")) as backend:
            got = await collect(backend.chat(ChatRequest(prompt="the to", sampling=sampling)))
            as_sent = await collect(backend.chat(ChatRequest(prompt_token_ids=prompt[:-1], sampling=sampling)))
        assert got.usage.prompt_tokens == len(prompt) + 1 == as_sent.usage.prompt_tokens + 1, (
            "ids have no end put behind"
        )
        assert got.text == ModelTokenizer.load(path, vocab_size=len(PIECES)).decode(answer[1:])

    run(work())


def test_clients_are_answered(url: str) -> None:
    """Completions, chats of one text and Ollama's generate, whole and streamed, give the same text."""
    client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    asked: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 12}
    whole = client.completions.create(prompt="translate: hello", **asked)
    assert whole.usage is not None
    assert whole.usage.prompt_tokens > 3
    pieces = client.completions.create(prompt="translate: hello", stream=True, **asked)
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == whole.choices[0].text
    said = client.chat.completions.create(messages=[{"role": "user", "content": "translate: hello"}], **asked)
    assert said.choices[0].message.content == whole.choices[0].text
    body = {"model": model, "prompt": "translate: hello", "stream": False}
    generated = httpx.post(f"{url}/api/generate", json={**body, "options": {"temperature": 0, "num_predict": 12}})
    assert generated.json()["response"] == whole.choices[0].text
    biased = {"logit_bias": {str(PIECES.index("▁Hallo")): 100}, "max_tokens": 1}
    first = client.completions.create(prompt="translate: hello", **{**asked, **biased})
    assert first.choices[0].text == "Hallo", "the space before a text's first word is no part of it"


def test_what_an_encoder_does_not_give_is_refused_by_name(url: str, path: Path) -> None:
    """Log probabilities of prompts, what is behind tokens, adapters, and prompts without room for an answer."""
    for field, told in (("prompt_logprobs", "no log probabilities of prompts"), ("logit_lens", "logit_lens")):
        body = {"model": "tiny", "prompt": "to the", "max_tokens": 2, field: 1}
        refused = httpx.post(f"{url}/v1/completions", json=body)
        assert refused.status_code in {400, 422}
        assert told in refused.text
    too_long = httpx.post(f"{url}/v1/completions", json={"prompt": [5] * (4 * TRAINED), "max_tokens": 2})
    assert too_long.status_code == 400
    assert "context" in too_long.text
    model = _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 22)
    with pytest.raises(_rust.ModelFileError, match="adapters of encoder-decoders are not implemented"):
        _rust.AdapterFile.open(model, path)

    async def work() -> None:
        async with running(path, options(max_model_len=64)) as backend:
            request = ChatRequest(prompt="to " * 70, sampling=GREEDY)
            with pytest.raises(ContextOverflowError):
                await collect(backend.chat(request))

    run(work())


def test_a_format_that_the_vocabulary_cannot_spell_is_refused_by_its_byte(path: Path) -> None:
    """T5's pieces have no braces: a JSON object cannot be written, and the error says why."""

    async def work() -> None:
        async with running(path) as backend:
            asked = ChatRequest(prompt="the", response_format=ResponseFormat("json_object"))
            why = r"no token of the answer spells '\{', which the grammar asks for next; a model whose vocabulary"
            with pytest.raises(UnsupportedError, match=why):
                await collect(backend.chat(asked))
            await assert_idle(backend)

    run(work())


def test_sequences_without_prompts_are_refused(path: Path) -> None:
    """Whoever forgets a prompt, or asks for logits of its tokens, is told so, and nothing is computed."""
    model = _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 22)
    pool = _rust.BlockPool(model.info()["num_pages"], groups=model.info()["kv_groups"])
    pool.add(1, [5, 6, 7])
    pool.reserve(1, 3)
    assert "has no prompt" in model.execute(pool, [1], [3], [5, 6, 7])[2][0]
    model.set_prompt(1, [5, 6, 7])
    assert "no logits" in model.execute(pool, [1], [3], [5, 6, 7], num_outputs=[1])[2][0]


def test_a_prompt_is_forgotten_with_its_sequence(path: Path) -> None:
    """Released or swapped out: nothing of it stays, and who computes on without it is told so."""
    runner, tokens = CpuRunner(path, RunnerOptions(threads=1, kv_bytes=1 << 22)), [5, 6, 7, PAD]
    for sequence, end in enumerate((runner.release, runner.swap_out)):
        runner.add(sequence, tokens, PrefixKey.of_encoded(tokens[:-1]))
        runner.reserve(sequence, len(tokens))
        asked = (runner.pool, [sequence], [len(tokens)], tokens)
        assert runner.model.execute(*asked)[2] == {}
        end(sequence)
        runner.pool.add(sequence, tokens)
        runner.reserve(sequence, len(tokens))
        assert "has no prompt" in runner.model.execute(*asked)[2][0]


@pytest.mark.parametrize(
    ("without", "changes", "told"),
    [
        ("dec.blk.1.cross_attn_k.weight", {}, "dec.blk.1.cross_attn_k.weight"),
        ("dec.blk.2.cross_attn_norm.weight", {}, "dec.blk.2.cross_attn_norm.weight"),
        ("enc.blk.1.ffn_up.weight", {}, "enc.blk.1.ffn_up.weight"),
        ("enc.output_norm.weight", {}, "enc.output_norm.weight"),
        ("dec.blk.0.attn_rel_b.weight", {}, "dec.blk.0.attn_rel_b.weight"),
        ("token_embd.weight", {}, "token_embd.weight"),
        ("", {"attention.relative_buckets_count": 32}, "attn_rel_b.weight' is 16 x 3; expected 32 x 3"),
        ("", {"attention.relative_buckets_count": 1 << 30}, "buckets of distances: 1073741824; expected 4 to 1024"),
        ("", {"attention.relative_buckets_count": 1}, "buckets of distances: 1; expected 4 to 1024"),
        ("", {"context_length": 1 << 31}, "positions of training: 2147483648; expected 16 to 16384"),
        ("", {"block_count": 1}, "there is a tensor 'enc.blk.1."),
        ("", {"decoder_block_count": 4}, "dec.blk.3."),
        ("", {"decoder_block_count": 1 << 31}, "layers of the decoder: 2147483648; expected 1 to 500"),
        ("", {"attention.key_length": 32, "attention.value_length": 32}, "is 48 x 64; expected 96 x 64"),
        ("", {"attention.head_count": 4}, "is 48 x 64; expected 64 x 64"),
        ("", {"attention.head_count": 4096, "context_length": 16384}, "numbers are added to scores by distance"),
        ("", {"decoder_start_token_id": 5_000}, "'decoder_start_token_id' is 5000, but the vocabulary has"),
        ("", {"attention.causal": False}, "'t5.attention.causal' is not implemented"),
    ],
)
def test_damaged_files_are_refused_by_name(without: str, changes: dict[str, object], told: str, tmp_path: Path) -> None:
    """What is missing, of another size or beyond any model is named before memory is taken."""
    path = write_t5(tmp_path / "t5.gguf", without=without, **changes)
    with pytest.raises(_rust.ModelFileError) as refused:
        _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 22)
    assert told in str(refused.value)


def test_models_show_says_what_it_is(path: Path, tmp_path: Path) -> None:
    """The card names the encoder-decoder, its one runner, and the built-in template that chats are asked by."""
    shown = pyagent("models", "show", str(path), env=fresh_environment(tmp_path)).stdout
    assert "t5, 3 layers; an encoder-decoder" in shown
    assert "plain (built in" in shown
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines() if not line.startswith(" "))
    assert "fault" not in lines
    assert lines["runners"] == "cpu"


@pytest.mark.parametrize("name", ["enc.blk.1.ffn_up.weight", "dec.blk.2.cross_attn_v.weight", "enc.output_norm.weight"])
def test_models_show_names_a_tensor_that_is_missing(name: str, tmp_path: Path) -> None:
    """A file without a tensor of either half has its name in the card, as loading would say it."""
    path = write_t5(tmp_path / "t5.gguf", without=name)
    assert f'"{name}" is missing' in (describe_model(path).fault or "")


def test_weights_and_steps_are_counted(path: Path) -> None:
    """What the model holds has the encoder's matrices too, and steps have what prompts are read in."""
    model = _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 22)
    num_bytes = sum(4 * len(values) for dims, (_, values) in t5_tensors().items() if "norm" not in dims)
    assert num_bytes <= model.info()["weight_bytes"] < 2 * num_bytes
    step = (64, 4, 4 * TRAINED)
    assert model.step_bytes(*step) <= _rust.most_step_bytes(path, 1, *step)
    short, long = (model.step_bytes(64, 4, positions) for positions in (64, 4 * TRAINED))
    assert long - short > (4 * TRAINED - 64) * 64 * 4 * 3
