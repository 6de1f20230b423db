"""Copies of an engine that answer as one: the same answers, spread over them, also when copies are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.engine_process import POISON, answers_in_this_process, ask, process_id, remote, told
from support.installed import install
from support.native import engine_of, mixed_requests, run
from support.tiny_model import write_tiny_model
from support.waiting import until

from pyagent.core.backends import Answer, collect
from pyagent.core.errors import BackendError, CapacityError
from pyagent.core.messages import ChatDelta, ChatRequest, Message, Origin, SamplingParams
from pyagent.core.prompt_cache import ExplainPrompt, PinPrompt, UnpinPrompt, ViewCache
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import EngineState
from pyagent.infrastructure.engine.subprocess.copies import Copies
from pyagent.infrastructure.observability.engine_metrics import collect_engines

LONG = "You are a careful helper of the user, who is at ease. " * 8


@asynccontextmanager
async def copies_of(path: Path, num_copies: int = 2, **more: object) -> AsyncIterator[NativeBackend]:
    """Copies of an engine with one thread each, all of them with the model."""
    settings = {"engine.data_parallel": num_copies, "engine.threads": num_copies, **more}
    async with engine_of(path, process=False, **settings) as backend:
        await backend.load()
        yield backend


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop that the copies live in."""
    with asyncio.Runner() as one:
        yield one


@pytest.fixture(scope="module")
def second_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a second model that the copies may load."""
    return write_tiny_model(tmp_path_factory.mktemp("second") / "b.gguf", seed=2)


@pytest.fixture(scope="module")
def second(second_path: Path) -> str:
    """The second model's name."""
    return second_path.stem


@pytest.fixture(scope="module")
def copies(runner: asyncio.Runner, tiny_model_path: Path, second_path: Path) -> Iterator[NativeBackend]:
    """Two copies for all tests of this file, as starting their processes takes longest; each test leaves both up."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5a,1,0")
        models = [str(tiny_model_path), str(second_path)]
        settings = {"engine.memory": "1GB", "engine.runner": "cpu", "engine.models": models}
        opened = copies_of(tiny_model_path, **settings)
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


@pytest.fixture
def backend(runner: asyncio.Runner, copies: NativeBackend) -> NativeBackend:
    """The two copies, both with the model."""
    runner.run(copies.load())
    return copies


async def state_of(backend: NativeBackend) -> EngineState:
    """The state once every copy says its own: on a busy machine one may take too long."""
    async with asyncio.timeout(60):
        state = await backend.engine_state()
        while not all(copy.memory_bytes for copy in state.copies):
            state = await backend.engine_state()
    return state


async def asked_of_all(backend: NativeBackend, requests: list[ChatRequest]) -> list[Answer]:
    return list(await asyncio.gather(*(collect(backend.chat(request)) for request in requests)))


def test_copies_answer_as_one_engine(runner: asyncio.Runner, backend: NativeBackend, tiny_model_path: Path) -> None:
    """Greedy and seeded answers of every copy are those of one engine; what is told is of all of them, and of each."""

    async def work() -> None:
        requests = mixed_requests(24)
        expected = [told(answer) for answer in await answers_in_this_process(tiny_model_path, requests)]
        assert [told(answer) for answer in await asked_of_all(backend, requests)] == expected
        state = await state_of(backend)
        tokens = [copy.stats["tiny"].generation_tokens for copy in state.copies]
        assert all(tokens), "every copy answered"
        assert state.stats["tiny"].generation_tokens == sum(tokens)
        assert len({copy.process_id for copy in state.copies} - {None, os.getpid()}) == 2
        assert [copy.memory_bytes for copy in state.copies] == [500_000_000] * 2
        assert state.memory_bytes == 1_000_000_000
        assert (await backend.health()).detail.endswith("; 2 of 2 copies are ready")
        metrics = {metric.name: metric for metric in collect_engines([state])}
        rows = metrics["pyagent_engine_generation_tokens"].samples
        assert [(row.labels["engine"], row.value) for row in rows] == [("0", tokens[0]), ("1", tokens[1])]
        assert metrics["pyagent_engine_waves"].samples[0].value >= 1
        for copy in (0, 1):  # each by itself, too
            other = remote(backend).copies
            other._coordinator.died(1 - copy)
            assert [told(answer) for answer in await asked_of_all(backend, requests[:6])] == expected[:6]
            other._coordinator.is_back(1 - copy)

    runner.run(work())


def test_prompts_whose_answers_began_are_not_left_to_compute(runner: asyncio.Runner, backend: NativeBackend) -> None:
    """Of eight streams the prompts count until their first outputs are there, and what ends leaves nothing behind."""

    def left() -> int:
        return sum(map(remote(backend).copies.num_prompt_tokens_left_of, (0, 1)))

    async def sent() -> None:
        for _ in range(3):  # a request is sent in the first turns of its task
            await asyncio.sleep(0)

    async def work() -> None:
        streams = [aiter(backend.chat(ask(f"the user {number}", max_tokens=400))) for number in range(8)]
        firsts = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await sent()
        assert left() > 0
        await asyncio.gather(*firsts)
        assert left() == 0
        leaving = [asyncio.create_task(collect(backend.chat(ask("the user", max_tokens=1)))) for _ in range(4)]
        await sent()
        assert left() > 0
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        assert left() == 0
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]

    runner.run(work())


def test_each_copy_is_told_its_own_gpus(runner: asyncio.Runner, backend: NativeBackend) -> None:
    """Of the GPUs that this process may use each copy begins with its own, in their order."""

    def gpus(copy: int) -> str:
        variables = Path(f"/proc/{process_id(backend, copy)}/environ").read_text().split("\0")
        return next(line for line in variables if line.startswith("CUDA_VISIBLE_DEVICES=")).partition("=")[2]

    assert [gpus(0), gpus(1)] == ["3", "GPU-5a"]


async def killed_when(backend: NativeBackend, requests: list[ChatRequest], num_pieces: int, copy: int) -> list[Answer]:
    """The answers, with a copy killed when so many pieces have come of each on average."""
    count, has_killed = 0, False

    async def one(request: ChatRequest) -> Answer:
        nonlocal count, has_killed
        deltas: list[ChatDelta] = []
        async for delta in backend.chat(request):
            deltas.append(delta)
            count += 1
            if not has_killed and count >= num_pieces * len(requests):
                has_killed = True
                os.kill(process_id(backend, copy), signal.SIGKILL)
        return Answer(text="".join(delta.content for delta in deltas), last=deltas[-1], deltas=deltas)

    answers = list(await asyncio.gather(*(one(request) for request in requests)))
    assert has_killed
    return answers


def test_streams_of_a_killed_copy_go_on_at_the_other(
    runner: asyncio.Runner, backend: NativeBackend, tiny_model_path: Path
) -> None:
    """Kill -9 of one of two copies under forty streams: each ends with the same text, none waited for the restart."""

    async def work() -> None:
        schedule = {"temperature": 0, "max_tokens": 120}
        restarts = [one.status.num_restarts for one in remote(backend).copies.supervisors]
        requests = [
            ask(f"the user {number}", **(schedule if number % 2 else schedule | {"temperature": 1.0, "seed": number}))
            for number in range(40)
        ]
        expected = [told(answer) for answer in await answers_in_this_process(tiny_model_path, requests)]
        answers = await killed_when(backend, requests, 20, copy=1)
        assert [told(answer) for answer in answers] == expected
        assert all(remote(backend).copies.num_requests_of(copy) == 0 for copy in (0, 1))
        await until(lambda: remote(backend).copies.supervisors[1].status.num_restarts == restarts[1] + 1)
        assert remote(backend).copies.supervisors[0].status.num_restarts == restarts[0]
        await until(lambda: not remote(backend).copies._coordinator._copies[1].is_down)
        assert (await asked_of_all(backend, requests[:4]))[3].text == expected[3][0]

    runner.run(work())


def test_conversations_go_on_at_any_copy(runner: asyncio.Runner, backend: NativeBackend, tiny_model_path: Path) -> None:
    """Each turn at another copy than the last: the texts and token counts are those of one engine."""

    async def talk(backend: NativeBackend, *, moves: bool) -> list[tuple[str, int]]:
        messages, said = [Message("user", "the user")], list[tuple[str, int]]()
        for turn in range(4):
            if moves:
                coordinator = remote(backend).copies._coordinator
                coordinator.died(turn % 2)
                coordinator.is_back(1 - turn % 2)
            sampling = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
            answer = await collect(backend.chat(ChatRequest(messages=list(messages), sampling=sampling, session="s")))
            said.append((answer.text, answer.usage.prompt_tokens))
            messages += [Message("assistant", answer.text), Message("user", "and then?")]
        return said

    async def work() -> None:
        async with engine_of(tiny_model_path, process=False) as alone:
            expected = await talk(alone, moves=False)
        assert await talk(backend, moves=True) == expected
        remote(backend).copies._coordinator.is_back(1)

    runner.run(work())


def test_prompts_are_asked_where_they_are_warm_and_pinned_in_all(
    runner: asyncio.Runner, backend: NativeBackend, tiny_model_path: Path
) -> None:
    """Requests with one long beginning go to one copy; pins are in every copy, and views tell of all."""

    async def prompt_tokens() -> list[int]:
        return [copy.stats["tiny"].prompt_tokens for copy in (await state_of(backend)).copies]

    async def work() -> None:
        asked = [Message("system", LONG), Message("user", "hi")]
        sampling = SamplingParams(temperature=0, max_tokens=2)
        before = await prompt_tokens()
        for number in range(6):
            messages = [*asked[:1], Message("user", f"{number}")]
            await collect(backend.chat(ChatRequest(messages=messages, sampling=sampling)))
        asked_of = [after - earlier for after, earlier in zip(await prompt_tokens(), before, strict=True)]
        assert 0 in asked_of, "all six at the copy that has the beginning"
        request = ChatRequest(messages=asked)
        assert (await backend.query_cache(ExplainPrompt(request))).report is not None
        pinned = (await backend.query_cache(PinPrompt("p", request))).num_tokens
        assert pinned > 0
        [seen] = (await backend.query_cache(ViewCache())).models
        assert seen.pins == {"p": pinned}
        assert seen.pages is not None
        assert seen.pages.pinned_pages == 2 * -(-pinned // 16)
        assert (await backend.query_cache(UnpinPrompt("p"))).num_tokens == pinned

    runner.run(work())


def test_request_for_a_copy_that_has_just_died_is_answered_by_the_other(
    runner: asyncio.Runner, backend: NativeBackend
) -> None:
    """One that was on its way to a copy as it died does not wait for the restart."""

    async def answered_before_the_restart(copies: Copies) -> bool:
        coordinator, dying = copies._coordinator, copies.supervisors[1]
        num_restarts = dying.status.num_restarts
        os.kill(process_id(backend, 1), signal.SIGKILL)
        await until(lambda: dying._is_down and coordinator._copies[1].is_down)
        coordinator.is_back(1)  # as it was known when the request was given to it
        coordinator._copies[0].num_requests += 100
        try:
            assert (await collect(backend.chat(ask(max_tokens=2)))).usage.completion_tokens == 2
        finally:
            coordinator._copies[0].num_requests -= 100
        is_before = dying.status.num_restarts == num_restarts
        await until(lambda: dying.status.num_restarts > num_restarts)
        return is_before

    async def work() -> None:
        copies = remote(backend).copies
        for _ in range(5):  # on a busy machine the restart may come first
            if await answered_before_the_restart(copies):
                break
        else:
            pytest.fail("each answer waited for the restart")
        assert all(copies.num_requests_of(copy) == 0 for copy in (0, 1))

    runner.run(work())


def test_copy_that_died_has_the_pins_again(runner: asyncio.Runner, backend: NativeBackend) -> None:
    """Prompts that are pinned in all copies are pinned in the next process of one, those unpinned before are not."""

    async def pinned() -> tuple[set[str], int]:
        [seen] = (await backend.query_cache(ViewCache())).models
        return set(seen.pins), 0 if seen.pages is None else seen.pages.pinned_pages

    async def work() -> None:
        request = ChatRequest(messages=[Message("system", LONG), Message("user", "hi")])
        other = ChatRequest(messages=[Message("system", f"Another. {LONG}")])
        await backend.query_cache(PinPrompt("gone", other))
        num_tokens = (await backend.query_cache(PinPrompt("kept", request))).num_tokens
        await backend.query_cache(UnpinPrompt("gone"))
        of_both = {"kept"}, 2 * -(-num_tokens // 16)
        assert await pinned() == of_both
        os.kill(process_id(backend, 1), signal.SIGKILL)
        await until(lambda: remote(backend).copies.supervisors[1]._is_down)
        async with asyncio.timeout(60):
            while await pinned() != of_both:
                pass
        await backend.query_cache(UnpinPrompt("kept"))
        assert await pinned() == (set(), 0)

    runner.run(work())


def test_drain_and_sleep_wait_until_the_processes_say_so(
    runner: asyncio.Runner, backend: NativeBackend, tiny_model_path: Path
) -> None:
    """A request whose reader left keeps the wave going until its process has ended it; then models are unloaded."""

    async def work() -> None:
        streams = [backend.chat(ask(max_tokens=450)) for _ in range(6)]
        for stream in streams:
            await anext(stream)
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        await backend.sleep(2)
        state = await state_of(backend)
        assert state.state == "deep asleep"
        assert not any(account.startswith(("weights", "kv")) for account in state.memory), state.memory
        assert not any(copy.num_running for copy in state.copies)
        assert (await collect(backend.chat(ask(max_tokens=3)))).usage.completion_tokens == 3
        running = asyncio.create_task(collect(backend.chat(ask(max_tokens=300))))
        await until(lambda: remote(backend).life.num_running == 1)
        assert await backend.drain(60) == 0
        assert (await running).usage.completion_tokens == 300
        with pytest.raises(CapacityError, match="draining"):
            await collect(backend.chat(ask()))
        await backend.wake()
        assert (await collect(backend.chat(ask(max_tokens=3)))).usage.completion_tokens == 3

    runner.run(work())


def test_requests_left_before_a_process_began_them_end_the_wave(tiny_model_path: Path) -> None:
    """A request and its abort that a busy process reads at once are ended too: a drain has nothing to wait for."""

    async def work() -> None:
        async with copies_of(tiny_model_path) as backend:
            for copy in (0, 1):
                os.kill(process_id(backend, copy), signal.SIGSTOP)
            readers = [asyncio.create_task(collect(backend.chat(ask(f"{number}")))) for number in range(6)]
            copies = remote(backend).copies
            await until(lambda: copies.wait_for_wave(0) == 6)
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            await until(lambda: not copies.num_requests)
            for copy in (0, 1):
                os.kill(process_id(backend, copy), signal.SIGCONT)
            await until(lambda: copies.wait_for_wave(0) == 0)

    run(work())


def test_answer_that_cannot_move_because_the_engine_closes_ends(tiny_model_path: Path) -> None:
    """A copy that dies while the other one is being closed fails its requests: no reader waits for ever."""

    async def work() -> None:
        async with copies_of(tiny_model_path) as backend:
            copies, dying = remote(backend).copies, process_id(backend, 0)
            os.kill(dying, signal.SIGSTOP)
            copies._coordinator.died(1)
            answering = asyncio.create_task(collect(backend.chat(ask())))
            await until(lambda: copies.wait_for_wave(0) == 1)
            copies._coordinator.is_back(1)
            await asyncio.to_thread(copies.supervisors[1].close)
            os.kill(dying, signal.SIGKILL)
            await until(answering.done)
            with pytest.raises(BackendError, match="the engine stopped"):
                answering.result()
            await until(lambda: copies.supervisors[0].status.num_restarts == 1)

    run(work())


def test_model_that_one_copy_cannot_take_is_placed_in_none(
    runner: asyncio.Runner, backend: NativeBackend, second: str
) -> None:
    """Where a copy ends while it loads a placed model, the others give it up again, and it can be placed later."""

    async def work() -> None:
        stopped = (await state_of(backend)).copies[1].process_id
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        placing = asyncio.create_task(backend.place(second))
        async with asyncio.timeout(60):
            while second not in await loaded(backend):
                assert not placing.done()
        os.kill(stopped, signal.SIGKILL)
        with pytest.raises(BackendError):
            await placing
        assert second not in await loaded(backend)
        assert list(await backend.placeable([second])) == [second]
        await backend.place(second)
        copies = (await state_of(backend)).copies
        assert [second in {model.id for model in copy.models} for copy in copies] == [True, True]

    runner.run(work())


async def loaded(backend: NativeBackend) -> set[str]:
    return {model.id for model in (await backend.engine_state()).models}


@pytest.mark.slow
def test_request_that_kills_ends_two_processes_among_others_at_most(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes one copy with it, then the one it went on at; there it is tried alone, and failed by the copy's name."""
    install(monkeypatch, tmp_path, "poison", POISON)

    async def work() -> None:
        requests = mixed_requests(8)
        expected = [answer.text for answer in await answers_in_this_process(tiny_model_path, requests)]
        poison = ChatRequest(prompt="die", sampling=SamplingParams(ignore_eos=True), origin=Origin(client="poison"))
        async with copies_of(tiny_model_path, **{"engine.queues": {"default": {"policy": "poisoned"}}}) as backend:
            answers = await asyncio.gather(
                *(collect(backend.chat(request)) for request in [*requests, poison]), return_exceptions=True
            )
            failed = answers.pop()
            assert isinstance(failed, BackendError)
            assert "the process of engine " in str(failed)
            assert "ended 2 times while it worked on this request alone" in str(failed)
            assert [answer.text for answer in answers if isinstance(answer, Answer)] == expected
            copies = remote(backend).copies
            await until(lambda: sum(one.status.num_restarts for one in copies.supervisors) == 4)

    run(work())
    assert "the process of engine 0 ended (signal SIGKILL)" in caplog.text
