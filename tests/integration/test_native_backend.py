"""The embedded engine behind `NativeBackend`: batches, memory, aborts, bad input, bad weights."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.tiny_model import CONTEXT, vocabulary, write_tiny_model

from pyagent import _rust
from pyagent.core.backends import Answer, collect
from pyagent.core.errors import (
    BackendError,
    ConfigError,
    ContextOverflowError,
    DeadlineError,
    ModelError,
    PyAgentError,
    RequestError,
)
from pyagent.core.messages import (
    ChatRequest,
    EmbedRequest,
    ImagePart,
    ImageUrl,
    JsonObject,
    JsonSchemaFormat,
    Message,
    ResponseFormat,
    SamplingParams,
)
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.model import EngineOptions
from pyagent.infrastructure.engine.queues import QueueOptions, make_queues
from pyagent.infrastructure.engine.runners.cpu import CpuOptions, KvType
from pyagent.infrastructure.engine.scheduler import SchedulerLimits

NUM_TOKENS = len(vocabulary()[0])
KV_BYTES_A_BLOCK = 256 * 16  # of the tiny model, in f16
SUM = "What is 2+2? Answer with the number only."


def options(
    *,
    blocks: int = 1024,
    threads: int = 1,
    isa: str | None = None,
    kv_type: KvType = "f16",
    token_budget: int = 1024,
    max_context: int | None = None,
) -> EngineOptions:
    cpu = CpuOptions(threads=threads, kv_bytes=blocks * KV_BYTES_A_BLOCK, isa=isa, kv_type=kv_type)
    return EngineOptions(cpu, SchedulerLimits(token_budget=token_budget), max_context)


@asynccontextmanager
async def running(path: Path, chosen: EngineOptions | None = None) -> AsyncIterator[NativeBackend]:
    backend = NativeBackend.of("tiny", lambda: path, chosen or options())
    try:
        yield backend
    finally:
        await backend.close()


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def chat(text: str, **sampling: object) -> ChatRequest:
    return ChatRequest(messages=[Message("user", text)], sampling=SamplingParams(**sampling))  # type: ignore[arg-type]


def mixed_requests(number: int) -> list[ChatRequest]:
    """Greedy and seeded requests of many lengths, some with penalties, stop texts and forms."""
    draw = random.Random(11)
    requests: list[ChatRequest] = []
    for index in range(number):
        text = "".join(draw.choices("the user is at ease, and 12 more\n", k=draw.choice([3, 20, 90, 200])))
        text = f"You are a helpful system and the user is here. {text}" if index % 3 else text
        sampling: dict[str, object] = {"max_tokens": draw.choice([1, 5, 17, 90]), "temperature": 0, "ignore_eos": True}
        if index % 2:
            sampling |= {"temperature": 1.0, "seed": index, "top_p": 0.95, "top_k": 50, "frequency_penalty": 0.5}
        if index % 5 == 0:
            sampling |= {"stop": ("the", "12"), "repetition_penalty": 1.2, "ignore_eos": False}
        requests.append(chat(text, **sampling))
    return requests


async def one_by_one(backend: NativeBackend, requests: list[ChatRequest]) -> list[Answer]:
    return [await collect(backend.chat(request)) for request in requests]


async def at_once(backend: NativeBackend, requests: list[ChatRequest]) -> list[Answer]:
    return list(await asyncio.gather(*(collect(backend.chat(request)) for request in requests)))


async def alone(path: Path, requests: list[ChatRequest], kv_type: KvType = "f16") -> list[str]:
    """Each answer from an engine that has seen nothing else."""
    texts: list[str] = []
    async with running(path, options(kv_type=kv_type)) as backend:
        model = await backend.load()
        for request in requests:
            model.runner.pool.clear_index()
            texts.append((await collect(backend.chat(request))).text)
    return texts


async def assert_idle(backend: NativeBackend) -> None:
    """No request is left, and no block is held."""
    model = await backend.load()
    for _ in range(500):
        stats = model.runner.pool.stats()
        if not model.engine.scheduler.has_work and stats.active == 0:
            break
        await asyncio.sleep(0.01)
    model.runner.pool.check()
    assert not model.engine.scheduler.has_work
    assert stats.active == 0
    assert stats.free == stats.num_pages


VARIANTS: dict[str, Callable[[], EngineOptions]] = {
    "one thread": options,
    "two threads": lambda: options(threads=2),
    "seven tokens a step": lambda: options(token_budget=7),
    "planned ahead": lambda: replace(options(), async_scheduling="on"),
    "little memory": lambda: options(blocks=28, token_budget=64),
    **{f"isa {isa}": (lambda isa=isa: options(isa=isa, threads=2)) for isa in _rust.cpu_features()["isas"]},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_answers_in_a_batch_are_those_given_alone(tiny_model_path: Path, variant: str) -> None:
    """Sixteen mixed requests at once give, bit for bit, what each gives alone: in chunks, preempted, on any isa."""

    async def work() -> None:
        requests = mixed_requests(16)
        expected = await alone(tiny_model_path, requests)
        async with running(tiny_model_path, VARIANTS[variant]()) as backend:
            for _ in range(2):  # the second time prefixes are cached
                assert [answer.text for answer in await at_once(backend, requests)] == expected
            await assert_idle(backend)
        assert len(set(expected)) > 12

    run(work())


@pytest.mark.parametrize(("kv_type", "eighths"), [("f32", 16), ("bf16", 8), ("int8", 5)])
def test_answers_of_every_kv_format_are_those_given_alone(tiny_model_path: Path, kv_type: KvType, eighths: int) -> None:
    """However keys and values are kept, chunks, cached prefixes, preemption and neighbours change no bit."""

    async def work() -> None:
        requests = mixed_requests(16)
        expected = await alone(tiny_model_path, requests, kv_type)
        for blocks, token_budget in ((1024, 7), (28, 64)):
            chosen = options(blocks=(blocks * eighths) // 8, token_budget=token_budget, threads=2, kv_type=kv_type)
            async with running(tiny_model_path, chosen) as backend:
                for _ in range(2):
                    assert [answer.text for answer in await at_once(backend, requests)] == expected
                await assert_idle(backend)
        if kv_type == "int8":
            assert expected != await alone(tiny_model_path, requests)

    run(work())


@pytest.mark.parametrize("kind", ["recompute", "swap"])
def test_preempted_answers_are_unchanged(tiny_model_path: Path, kind: str) -> None:
    """Four long answers in memory for one and a bit: requests yield, their KV is computed again or swapped, and their
    texts are the same."""

    async def work() -> None:
        sampling: dict[str, object] = {"ignore_eos": True, "max_tokens": 440, "frequency_penalty": 1}
        seeded = [chat(f"{seed} the", seed=seed, **sampling) for seed in range(4)]
        expected = await alone(tiny_model_path, seeded)
        async with running(tiny_model_path, options(blocks=32)) as backend:
            await at_once(backend, [chat("the", max_tokens=1)] * 4)  # so that short answers are expected
            model = await backend.load()
            model.runner.swap_seconds = lambda num_tokens: 0.0 if kind == "swap" else math.inf
            assert [answer.text for answer in await at_once(backend, seeded)] == expected
            assert model.engine.scheduler.num_preemptions[kind] > 0
            await assert_idle(backend)

    run(work())


def test_answers_that_lose_their_seats_are_unchanged(tiny_model_path: Path) -> None:
    """Two seats, levels of 4 draws: requests of all kinds take each other's seats, and their texts are the same."""

    async def work() -> None:
        requests = mixed_requests(24)
        expected = await alone(tiny_model_path, requests)
        queue = QueueOptions("mlfq", {"quantum": 4, "levels": 4})
        chosen = replace(options(), queues=lambda: make_queues({"default": queue}))
        chosen = replace(chosen, limits=replace(chosen.limits, max_num_seqs=2))
        async with running(tiny_model_path, chosen) as backend:
            model = await backend.load()
            assert [answer.text for answer in await at_once(backend, requests)] == expected
            assert model.engine.scheduler.num_preemptions["recompute"] > 0
            await assert_idle(backend)

    run(work())


@pytest.mark.slow
def test_greedy_answer_is_the_same_a_hundred_times(smollm2_path: Path) -> None:
    """The real model answers one question with the same bytes a hundred times, alone and among sixteen others."""

    async def work() -> None:
        async with running(smollm2_path, EngineOptions()) as backend:
            asked = chat(SUM, temperature=0, max_tokens=16)
            texts = {answer.text for answer in await one_by_one(backend, [asked] * 80)}
            for start in range(20):
                others = [chat(f"{start} {number}. Tell me of the sea.", max_tokens=8) for number in range(15)]
                texts.add((await at_once(backend, [*others[:7], asked, *others[7:]]))[7].text)
            assert len(texts) == 1

    run(work())


@pytest.mark.model
def test_real_model_answers_and_counts(smollm2_path: Path) -> None:
    """SmolLM2 adds two and two; the same question again finds its prompt computed and gives the same bytes."""

    async def work() -> None:
        async with running(smollm2_path, EngineOptions()) as backend:
            first, second = await one_by_one(backend, [chat(SUM, temperature=0, max_tokens=16)] * 2)
            assert "4" in first.text
            assert second.text == first.text
            assert first.last.finish_reason == "stop"
            assert (first.usage.prompt_tokens_details.cached_tokens, first.usage.prompt_tokens) == (0, 43)
            assert second.usage.prompt_tokens_details.cached_tokens == 32
            timings = first.usage.timings
            assert timings is not None
            assert 0 <= timings.queue_seconds < timings.first_token_seconds < timings.total_seconds

    run(work())


@pytest.mark.model
def test_real_model_follows_a_schema_and_a_choice(smollm2_path: Path) -> None:
    """Among other requests, an answer that must follow a form follows it, at temperature 1."""
    schema: JsonObject = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    forms = [
        ResponseFormat(type="choice", choice=["positive", "negative"]),
        ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=schema)),
    ]

    async def work() -> None:
        async with running(smollm2_path, EngineOptions()) as backend:
            sampling = SamplingParams(max_tokens=60)
            asked = [
                ChatRequest(messages=[Message("user", "Paris?")], response_format=form, sampling=sampling)
                for form in forms
            ]
            choice, answer = await at_once(backend, asked)
            assert choice.text in {"positive", "negative"}
            value = json.loads(answer.text)
            assert set(value) == {"city", "size"}
            assert value["size"] in {"small", "large"}

    run(work())


SCHEMAS: list[tuple[JsonObject, Callable[[object], bool]]] = [
    ({"type": "boolean"}, lambda value: isinstance(value, bool)),
    ({"type": "null"}, lambda value: value is None),
    ({"type": "integer", "minimum": 3, "maximum": 17}, lambda value: isinstance(value, int) and 3 <= value <= 17),
    ({"type": "integer", "minimum": -5, "maximum": 5}, lambda value: isinstance(value, int) and -5 <= value <= 5),
    ({"type": "number", "minimum": 0, "maximum": 1}, lambda value: isinstance(value, int | float) and 0 <= value <= 1),
    ({"enum": ["a", 1, None]}, lambda value: value in ("a", 1, None)),
    ({"const": {"a": [1]}}, lambda value: value == {"a": [1]}),
    ({"type": "string", "maxLength": 4}, lambda value: isinstance(value, str) and len(value) <= 4),
    ({"type": "string", "minLength": 2, "maxLength": 3}, lambda value: isinstance(value, str) and 2 <= len(value) <= 3),
    (
        {"type": "string", "pattern": "^[ab]{3}$"},
        lambda value: value in {a + b + c for a in "ab" for b in "ab" for c in "ab"},
    ),
    ({"type": "string", "format": "date"}, lambda value: isinstance(value, str) and len(value) == 10),
    (
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        lambda value: isinstance(value, list) and len(value) <= 3 and all(isinstance(item, bool) for item in value),
    ),
    (
        {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 4},
        lambda value: isinstance(value, list) and 2 <= len(value) <= 4 and set(value) <= {1, 2},
    ),
    (
        {"type": "array", "prefixItems": [{"const": 1}, {"const": "x"}], "items": False, "minItems": 2},
        lambda value: value == [1, "x"],
    ),
    ({"anyOf": [{"const": 1}, {"type": "boolean"}]}, lambda value: value == 1 or isinstance(value, bool)),
    (
        {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False},
        lambda value: value == {"a": 1},
    ),
    (
        {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": False},
        lambda value: isinstance(value, dict) and value.items() <= {"a": 1, "b": 2}.items(),
    ),
    (
        {
            "type": "object",
            "properties": {
                "in": {
                    "type": "object",
                    "properties": {"x": {"const": None}},
                    "required": ["x"],
                    "additionalProperties": False,
                }
            },
            "required": ["in"],
            "additionalProperties": False,
        },
        lambda value: value == {"in": {"x": None}},
    ),
    (
        {"$defs": {"bit": {"enum": [0, 1]}}, "type": "array", "items": {"$ref": "#/$defs/bit"}, "maxItems": 5},
        lambda value: isinstance(value, list) and set(value) <= {0, 1},
    ),
    (
        {"type": ["string", "null"], "maxLength": 3},
        lambda value: value is None or (isinstance(value, str) and len(value) <= 3),
    ),
]


def test_twenty_schemas_are_followed_by_a_model_that_talks_nonsense(tiny_model_path: Path) -> None:
    """Random weights at temperature 1 give JSON that fits each of twenty schemas, all in one batch, thrice."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            for seed in range(3):
                asked = [
                    ChatRequest(
                        messages=[Message("user", "go")],
                        response_format=ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=schema)),
                        sampling=SamplingParams(seed=seed, max_tokens=200),
                    )
                    for schema, _ in SCHEMAS
                ]
                answers = await at_once(backend, asked)
                for (schema, fits), answer in zip(SCHEMAS, answers, strict=True):
                    assert answer.last.finish_reason == "stop", (schema, answer.text)
                    assert fits(json.loads(answer.text)), (schema, answer.text)
            await assert_idle(backend)

    run(work())


def test_closing_a_stream_aborts_and_frees(tiny_model_path: Path) -> None:
    """A reader that leaves after the first piece frees the request's memory while others go on undisturbed."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            model = await backend.load()
            asked = chat("the", ignore_eos=True, max_tokens=400, temperature=0)
            other = asyncio.create_task(collect(backend.chat(asked)))
            for _ in range(5):
                async with aclosing(backend.chat(chat("and", ignore_eos=True, max_tokens=450))) as stream:
                    async for _ in stream:
                        break
            assert (await other).last.finish_reason == "length"
            await assert_idle(backend)
            assert model.engine.counts.finished.total() == 6

    run(work())


def test_cancelled_reader_frees_its_request(tiny_model_path: Path) -> None:
    """Cancelling the task that reads ends the request too."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            await backend.load()
            asked = chat("the", ignore_eos=True, max_tokens=450)
            tasks = [asyncio.create_task(collect(backend.chat(asked))) for _ in range(8)]
            await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await assert_idle(backend)

    run(work())


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        (ChatRequest(), RequestError, "the prompt is empty"),
        (ChatRequest(prompt=""), RequestError, "the prompt is empty"),
        (chat(""), RequestError, "the prompt is empty"),
        (chat("a" * 600), ContextOverflowError, r"the prompt has \d+ tokens, but the model's context is 512"),
        (chat("a", temperature=-1), RequestError, "temperature must be between 0 and 2, got -1"),
        (chat("a", top_p=0), RequestError, "top_p must be greater than 0"),
        (chat("a", max_tokens=0), RequestError, "max_tokens must be between 1"),
        (chat("a", stop=("",)), RequestError, "stop takes up to 16 texts"),
        (chat("a", logit_bias={NUM_TOKENS: 1.0}), RequestError, "logit_bias names token 325; the vocabulary has 325"),
        (chat("a", logit_bias={1: float("nan")}), RequestError, "bias"),
        (
            ChatRequest(messages=[Message("user", [ImagePart(ImageUrl("data:,"))])]),
            RequestError,
            "reads text only; send no images",
        ),
    ],
)
def test_bad_request_is_refused_at_the_door(
    tiny_model_path: Path, request_: ChatRequest, error: type[PyAgentError], text: str
) -> None:
    """What cannot be served is refused with the field and the reason, and never reaches the engine."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            with pytest.raises(error, match=text):
                await collect(backend.chat(request_))
            assert (await backend.load()).engine.counts.num_steps == 0

    run(work())


def test_overflow_carries_its_numbers(tiny_model_path: Path) -> None:
    """`ContextOverflowError` says how many tokens were sent and how many fit; a setting can shorten the context."""

    async def work() -> None:
        async with running(tiny_model_path, options(max_context=40)) as backend:
            with pytest.raises(ContextOverflowError) as caught:
                await collect(backend.chat(ChatRequest(prompt="z" * 40)))
            assert (caught.value.num_tokens, caught.value.limit) == (40, 40)
            answer = await collect(backend.chat(ChatRequest(prompt="z" * 39, sampling=SamplingParams(ignore_eos=True))))
            assert answer.usage.total_tokens == 40

    run(work())


def test_memory_too_small_for_the_context_shortens_it(tiny_model_path: Path) -> None:
    """With KV memory for 64 tokens an answer ends at 64 tokens by length; a longer prompt is told of engine.memory."""

    async def work() -> None:
        async with running(tiny_model_path, options(blocks=4)) as backend:
            asked = ChatRequest(prompt="zz", sampling=SamplingParams(ignore_eos=True))
            answers = await at_once(backend, [asked] * 3)
            assert {(answer.usage.total_tokens, answer.last.finish_reason) for answer in answers} == {(64, "length")}
            with pytest.raises(ContextOverflowError, match=r"holds 64; raise engine\.memory"):
                await collect(backend.chat(ChatRequest(prompt="z" * 65)))

    run(work())


def test_answer_can_fill_the_context_to_its_last_position(tiny_model_path: Path) -> None:
    """Without max_tokens an answer goes on to the model's last position and ends by length."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            answer = await collect(backend.chat(chat("the", ignore_eos=True, temperature=0)))
            assert (answer.last.finish_reason, answer.usage.total_tokens) == ("length", CONTEXT)

    run(work())


@pytest.mark.parametrize(
    ("damage", "error", "text"),
    [
        (lambda path: path.unlink(), ModelError, "absent|No such file|cannot be"),
        (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), ModelError, "cut short"),
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), ModelError, r"m\.gguf"),
        (lambda path: path.write_bytes(b"GGUF" + bytes(100)), ModelError, r"m\.gguf"),
        (lambda path: path.write_bytes(b""), ModelError, r"m\.gguf"),
    ],
)
def test_bad_file_is_a_model_error(
    tmp_path: Path, damage: Callable[[Path], object], error: type[PyAgentError], text: str
) -> None:
    """A file that is missing, cut or no model raises `ModelError` naming it, each time it is asked."""
    path = write_tiny_model(tmp_path / "m.gguf")
    damage(path)

    async def work() -> None:
        async with running(path) as backend:
            for _ in range(2):
                with pytest.raises(error, match=text):
                    await collect(backend.chat(chat("a")))

    run(work())


def test_unknown_instruction_set_is_a_config_error(tiny_model_path: Path) -> None:
    """An instruction set this CPU lacks is refused with those it has."""

    async def work() -> None:
        async with running(tiny_model_path, options(isa="sse9")) as backend:
            with pytest.raises(ConfigError, match="instruction set 'sse9' is not one of scalar") as caught:
                await backend.load()
            assert caught.value.key == "engine.isa"

    run(work())


def test_deadline_ends_the_request_and_frees_it(tiny_model_path: Path) -> None:
    """A caller's deadline raises `DeadlineError`, before or while the answer comes, and the engine is idle after."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            await backend.load()
            for seconds in (0.0, 0.02):
                sampling = SamplingParams(ignore_eos=True)
                asked = [ChatRequest(prompt="the" * 9, timeout_seconds=seconds, sampling=sampling)] * 16
                results = await asyncio.gather(*(collect(backend.chat(item)) for item in asked), return_exceptions=True)
                assert any(isinstance(result, DeadlineError) for result in results)
            await assert_idle(backend)

    run(work())


def test_deadline_holds_while_the_model_loads(tiny_model_path: Path) -> None:
    """A caller waits no longer than its deadline for a model that is still being fetched; the next one gets it."""
    import threading

    may_load = threading.Event()

    def locate() -> Path:
        may_load.wait(10)
        return tiny_model_path

    async def work() -> None:
        backend = NativeBackend.of("tiny", locate, options())
        with pytest.raises(DeadlineError):
            await collect(backend.chat(ChatRequest(prompt="a", timeout_seconds=0.05)))
        may_load.set()
        assert (await collect(backend.chat(ChatRequest(prompt="a", sampling=SamplingParams(max_tokens=1))))).deltas
        await backend.close()

    run(work())


def test_two_hundred_requests_at_once_are_all_answered(tiny_model_path: Path) -> None:
    """Two hundred requests against memory for a few are all answered, with the lengths asked for."""

    async def work() -> None:
        async with running(tiny_model_path, options(blocks=64, token_budget=256)) as backend:
            asked = [chat(f"the user {number}", ignore_eos=True, max_tokens=1 + number % 9) for number in range(200)]
            answers = await at_once(backend, asked)
            assert [answer.usage.completion_tokens for answer in answers] == [1 + number % 9 for number in range(200)]
            await assert_idle(backend)

    run(work())


def test_logits_that_are_not_numbers_end_that_request_with_the_reason(tmp_path: Path) -> None:
    """Weights with NaN end a request with a reason that names them; the engine lives and answers the same again."""
    path = write_tiny_model(tmp_path / "nan.gguf", is_damaged=True)

    async def work() -> None:
        async with running(path) as backend:
            for _ in range(3):
                with pytest.raises(BackendError, match=r"(?i)nan|not a number|finite"):
                    await collect(backend.chat(chat("a", max_tokens=3)))
            await assert_idle(backend)

    run(work())


def test_client_whose_event_loop_is_gone_does_not_end_the_engine(tiny_model_path: Path) -> None:
    """A program that leaves its event loop in the middle of an answer can ask the same backend again in another."""
    backend = NativeBackend.of("tiny", lambda: tiny_model_path, options())
    asked = chat("the", ignore_eos=True, max_tokens=450)
    loop = asyncio.new_event_loop()
    stream = backend.chat(asked)
    loop.run_until_complete(anext(stream))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()

    async def again() -> None:
        answer = await asyncio.wait_for(collect(backend.chat(chat("the", max_tokens=5, ignore_eos=True))), 20)
        assert answer.usage.completion_tokens == 5
        await backend.close()

    run(again())
    del stream
    gc.collect()


def test_close_ends_running_requests_and_the_thread(tiny_model_path: Path) -> None:
    """Closing a backend ends what runs with a reason, and leaves no engine thread."""
    import threading

    async def work() -> None:
        backend = NativeBackend.of("tiny", lambda: tiny_model_path, options())
        stream = backend.chat(chat("the", ignore_eos=True, max_tokens=450))
        await anext(stream)
        await backend.close()
        with pytest.raises(BackendError, match="the engine stopped"):
            async for _ in stream:
                pass
        await backend.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "pyagent-engine"]

    run(work())


def test_seed_decides_what_is_drawn(tiny_model_path: Path) -> None:
    """With a seed an answer is the same every time; without one, and with another, it is not."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:

            def ask(seed: int | None) -> ChatRequest:
                return chat("the", ignore_eos=True, max_tokens=30, seed=seed)

            texts = [answer.text for answer in await at_once(backend, [ask(1), ask(1), ask(2), ask(None), ask(None)])]
            assert texts[0] == texts[1]
            assert len(set(texts)) == 4

    run(work())


def test_logprobs_come_with_their_tokens(tiny_model_path: Path) -> None:
    """Each drawn token has its log probability and its rivals', best first, and greedy draws the best."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            answer = await collect(
                backend.chat(chat("the", temperature=0, ignore_eos=True, max_tokens=6, top_logprobs=3))
            )
            drawn = [entry for delta in answer.deltas for entry in delta.logprobs]
            assert len(drawn) == 6
            for entry in drawn:
                assert [value for _, value in entry.top_logprobs] == sorted(
                    (v for _, v in entry.top_logprobs), reverse=True
                )
                assert entry.top_logprobs[0] == (entry.token, entry.logprob)
                assert len(entry.top_logprobs) == 3
                assert entry.logprob < 0

    run(work())


def test_models_health_and_embed_say_what_there_is(tiny_model_path: Path) -> None:
    """Before loading the name alone, after it the sizes; health fetches nothing; embedding is refused."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            assert (await backend.health()).detail == "loads on first use"
            (before,) = await backend.models()
            assert (before.id, before.is_loaded, before.context_length) == ("tiny", False, None)
            await backend.load()
            assert (await backend.health()).detail == "loaded"
            (after,) = await backend.models()
            assert (after.architecture, after.is_loaded, after.context_length) == ("llama", True, CONTEXT)
            with pytest.raises(RequestError, match="cannot embed"):
                await backend.embed(EmbedRequest(model="tiny", input=["a"]))

    def fail() -> str:
        raise ModelError("no such model", model="x")

    async def unhealthy() -> None:
        backend = NativeBackend.of("x", lambda: tiny_model_path, look=fail)
        health = await backend.health()
        assert (health.is_ready, health.detail) == (False, "no such model")

    run(work())
    run(unhealthy())
