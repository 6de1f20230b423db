"""Bad input and faults through the backend: only the request at fault ends, with a reason; nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import pytest
from support.cpu_runners import only
from support.tiny_model import write_tiny_model
from support.waiting import until

from pyagent import _rust
from pyagent.core.backends import Answer, collect
from pyagent.core.errors import BackendError, CapacityError, ContextOverflowError
from pyagent.core.messages import ChatDelta, ChatRequest, Message, SamplingParams
from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions, LoadedModel
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.scheduler.scheduler import SchedulerLimits

KV_BYTES_A_BLOCK = 256 * 16


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def ask(text: str, **sampling: object) -> ChatRequest:
    params = {"max_tokens": 60, "ignore_eos": True, "temperature": 0, **sampling}
    return ChatRequest(prompt=text, sampling=SamplingParams(**params))  # type: ignore[arg-type]


def backend_of(
    path: Path, *, blocks: int = 1024, num_waiting: int = 4096, runner: type[CpuRunner] = CpuRunner
) -> NativeBackend:
    cpu = RunnerOptions(threads=1, kv_bytes=blocks * KV_BYTES_A_BLOCK)
    options = EngineOptions(cpu, SchedulerLimits(max_num_waiting=num_waiting), runners=only(runner))
    return NativeBackend.of("tiny", lambda: path, options)


async def normalized(backend: NativeBackend) -> _rust.PoolStats:
    """The pool's counts once nothing runs."""
    model = await backend.load()
    assert isinstance(model, LoadedModel)
    await until(lambda: not model.engine.scheduler.has_work and model.runner.pool.stats().active == 0)
    model.runner.pool.check()
    return model.runner.pool.stats()


async def at_once(backend: NativeBackend, requests: list[ChatRequest]) -> list[Answer | BaseException]:
    return await asyncio.gather(*(collect(backend.chat(one)) for one in requests), return_exceptions=True)


def test_logits_that_are_not_numbers_leave_others_alone(tiny_model_path: Path, tmp_path: Path) -> None:
    """A request whose logits are NaN ends with that reason in the middle of its answer; seven others are unchanged."""
    damaged = write_tiny_model(tmp_path / "nan.gguf", is_damaged=True)
    sick = CpuRunner(damaged, RunnerOptions(threads=1, kv_bytes=64 * KV_BYTES_A_BLOCK))
    is_sick: list[int] = []
    reasons: list[str] = []

    class Sickening(CpuRunner):
        """Draws the 20th token of the sick ones by the damaged model."""

        def execute(self, batch: Batch) -> StepOutput:
            output = super().execute(batch)
            for row, step in enumerate(batch.steps):
                if step == 20 and batch.sequence_ids[row] in is_sick:
                    sick.add(1, [1, 2, 3])
                    sick.reserve(1, 3)
                    draw = Batch([1], [3], [1, 2, 3], [batch.samplers[row]], [step])
                    output.errors[row] = sick.execute(draw).errors[0]
                    reasons.append(output.errors[row])
                    sick.release(1)
            return output

    async def work() -> None:
        others = [ask(f"the user {number}") for number in range(7)]
        backend = backend_of(tiny_model_path, runner=Sickening)
        expected = [(await collect(backend.chat(one))).text for one in others]
        model = await backend.load()
        assert isinstance(model, LoadedModel)
        is_sick.append((await model.input_processor.process(ask("z"), lambda _: None)).id + 1)
        answers = await at_once(backend, [ask("the sick one"), *others])
        failed = answers.pop(0)
        assert isinstance(failed, BackendError)
        assert reasons[0] in str(failed)
        assert "nan" in reasons[0].lower() or "number" in reasons[0].lower() or "finite" in reasons[0].lower()
        assert [answer.text for answer in answers if isinstance(answer, Answer)] == expected
        assert (await normalized(backend)).active == 0
        await backend.close()

    run(work())


def test_prompt_of_ten_megabytes_is_refused_and_others_go_on(tiny_model_path: Path) -> None:
    """Ten megabytes of prompt, words or one word, are refused before they are tokenised; others go on."""

    async def work() -> None:
        backend = backend_of(tiny_model_path)
        expected = await collect(backend.chat(ask("the user", max_tokens=400)))
        many = ChatRequest(messages=[Message("user", "x")] * 100_000)
        requests = [ask("the user is " * (10_000_000 // 12)), ask("aB3/" * 2_500_000), many]
        *huge, other = await at_once(backend, [*requests, ask("the user", max_tokens=400)])
        for error in huge:
            assert isinstance(error, ContextOverflowError)
            assert error.num_tokens > error.limit
            assert "more than" in str(error)
        assert isinstance(other, Answer)
        assert other.text == expected.text
        assert (await normalized(backend)).active == 0
        await backend.close()

    run(work())


def test_ten_thousand_requests_are_answered_or_refused_with_a_time(tiny_model_path: Path) -> None:
    """Of 10,000 requests at once those beyond the queue are refused with a time to try again; others are answered."""
    may_compute = threading.Event()
    may_compute.set()

    class Waiting(CpuRunner):
        def execute(self, batch: Batch) -> StepOutput:
            may_compute.wait(60)
            return super().execute(batch)

    async def until_refused(stream: AsyncIterator[ChatDelta]) -> Answer:
        try:
            return await collect(stream)
        except CapacityError:
            may_compute.set()
            raise

    async def work() -> None:
        backend = backend_of(tiny_model_path, num_waiting=500, runner=Waiting)
        expected = (await collect(backend.chat(ask("the user", max_tokens=2)))).text
        may_compute.clear()  # however slowly requests come here, the queue fills
        asked = [until_refused(backend.chat(ask("the user", max_tokens=2))) for _ in range(10_000)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        kinds = Counter(type(answer) for answer in answers)
        assert set(kinds) == {Answer, CapacityError}
        assert kinds[Answer] >= 500
        for answer in answers:
            if isinstance(answer, CapacityError):
                assert answer.retry_after_seconds
            elif isinstance(answer, Answer):
                assert answer.text == expected
        assert (await collect(backend.chat(ask("the user", max_tokens=2)))).text == expected
        assert (await normalized(backend)).active == 0
        await backend.close()

    run(work())


def test_exhausted_kv_memory_costs_time_and_no_text(tiny_model_path: Path) -> None:
    """With KV memory for one long answer, eight of them take turns; texts are as they are alone, pages free."""

    async def work() -> None:
        requests = [ask(f"{number} the", seed=number, temperature=1.0, max_tokens=440) for number in range(8)]
        roomy = backend_of(tiny_model_path)
        expected = [answer.text for answer in await at_once(roomy, requests) if isinstance(answer, Answer)]
        await roomy.close()
        backend = backend_of(tiny_model_path, blocks=32)
        answers = await at_once(backend, requests)
        assert [answer.text for answer in answers if isinstance(answer, Answer)] == expected
        stats = await normalized(backend)
        assert (stats.active, stats.free) == (0, stats.limit)
        await backend.close()

    run(work())


def test_engine_whose_loop_ended_is_seen_and_loaded_again(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its health says so and mends it; a request mends it too, and then is answered as before."""

    async def work() -> None:
        backend = backend_of(tiny_model_path)
        before = await collect(backend.chat(ask("hello")))
        for is_asked_first in (True, False):
            model = await backend.load()
            assert isinstance(model, LoadedModel)
            monkeypatch.setattr(model.engine, "_turn", lambda: 1 / 0)
            for _ in range(2):  # the loop may have been in a turn when it was broken
                with contextlib.suppress(BackendError, CapacityError):
                    await collect(backend.chat(ask("hello")))
                if model.engine.fault is not None:
                    break
            await until(lambda engine=model.engine: engine.fault is not None)
            if is_asked_first:
                health = await backend.health()
                assert (health.is_ready, "division by zero" in health.detail) == (False, True)
                while not (await backend.health()).is_ready:  # noqa: ASYNC110 - the backend has no event to wait for
                    await asyncio.sleep(0.01)
            assert (await collect(backend.chat(ask("hello")))).text == before.text
        await backend.close()

    run(work())
