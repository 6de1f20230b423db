"""The embedded engine behind `NativeBackend`: real answers, aborts, deadlines, many at once, closing."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import aclosing
from pathlib import Path

import pytest
from support.native import (
    SUM,
    assert_idle,
    at_once,
    chat,
    one_by_one,
    options,
    run,
    running,
)
from support.tiny_model import CONTEXT

from pyagent.core.backends import collect
from pyagent.core.errors import (
    BackendError,
    DeadlineError,
    ModelError,
    RequestError,
)
from pyagent.core.messages import (
    ChatRequest,
    EmbedRequest,
    SamplingParams,
)
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions


@pytest.mark.model
def test_real_model_answers_and_counts(smollm2_path: Path) -> None:
    """SmolLM2 adds two and two; the same question again finds its prompt computed and gives the same bytes."""

    async def work() -> None:
        async with running(smollm2_path, EngineOptions()) as backend:
            asked = time.perf_counter()
            first, second = await one_by_one(backend, [chat(SUM, temperature=0, max_tokens=16)] * 2)
            assert "4" in first.text
            assert second.text == first.text
            assert first.last.finish_reason == "stop"
            assert (first.usage.prompt_tokens_details.cached_tokens, first.usage.prompt_tokens) == (0, 43)
            assert second.usage.prompt_tokens_details.cached_tokens == 42
            timings = first.usage.timings
            assert timings is not None
            assert 0 <= timings.queue_seconds < timings.first_token_seconds < timings.total_seconds
            assert timings.queued_at is not None
            assert asked < timings.queued_at < time.perf_counter() - timings.total_seconds

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
        async with running(tiny_model_path, options(blocks=64, max_num_batched_tokens=256)) as backend:
            asked = [chat(f"the user {number}", ignore_eos=True, max_tokens=1 + number % 9) for number in range(200)]
            answers = await at_once(backend, asked)
            assert [answer.usage.completion_tokens for answer in answers] == [1 + number % 9 for number in range(200)]
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
        others = set(threading.enumerate())  # a backend that another test left open may have a thread too
        backend = NativeBackend.of("tiny", lambda: tiny_model_path, options())
        stream = backend.chat(chat("the", ignore_eos=True, max_tokens=450))
        await anext(stream)
        await backend.close()
        with pytest.raises(BackendError, match="the engine stopped"):
            async for _ in stream:
                pass
        await backend.close()
        assert "pyagent-engine" not in {thread.name for thread in set(threading.enumerate()) - others}

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
