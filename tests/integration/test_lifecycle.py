"""An engine's life: drain, sleep at two levels, wake; the same for one in this process and one in its own."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.native import engine_of, run
from support.waiting import until

from pyagent.core.backends import collect
from pyagent.core.errors import CapacityError, RequestError
from pyagent.core.messages import ChatRequest, Message, SamplingParams
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.lifecycle import LifeCycle, State

both = pytest.mark.parametrize("process", [False, True], ids=["here", "own process"])


def ask(**sampling: object) -> ChatRequest:
    params = {"max_tokens": 12, "ignore_eos": True, "temperature": 0, **sampling}
    return ChatRequest(messages=[Message("user", "the user")], sampling=SamplingParams(**params))  # type: ignore[arg-type]


async def state(backend: NativeBackend) -> str:
    return (await backend.engine_state()).state


@given(st.lists(st.sampled_from(State), max_size=20))
def test_only_transitions_of_the_table_happen(wanted: list[State]) -> None:
    """A state follows another only where the table says so; a refused change leaves the state as it was."""
    life = LifeCycle()
    for new in wanted:
        before = life.state
        try:
            life.become(new)
        except RequestError:
            assert life.state is before
            assert new is not before
        else:
            assert life.state is new
            assert before is not State.STOPPED or new is State.STOPPED


def test_requests_are_counted_and_waited_for() -> None:
    """Of threads that come and go while it drains again and again, none is in when the drain says nobody is."""
    life = LifeCycle()
    inside: set[int] = set()
    faults: list[str] = []
    is_over = threading.Event()

    def come_and_go(number: int) -> None:
        draw = random.Random(number)
        while not is_over.is_set():
            try:
                life.enter()
            except CapacityError:
                time.sleep(0.0005)
                continue
            inside.add(number)
            time.sleep(draw.random() * 0.002)
            inside.discard(number)
            life.leave()

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for turn in range(40):
        level = turn % 2 + 1
        life.sleep(level, lambda _: faults.extend(f"{number} is in" for number in inside))
        time.sleep(0.002)
    is_over.set()
    for thread in threads:
        thread.join()
    assert not faults
    assert life.num_running == 0


@both
def test_draining_refuses_new_requests_and_finishes_old_ones(tiny_model_path: Path, process: bool) -> None:
    """A draining engine is not ready, says when to try again, and ends when its last answer is whole."""

    async def work() -> None:
        async with engine_of(tiny_model_path, process=process) as backend:
            (whole,) = [await collect(backend.chat(ask(max_tokens=450)))]
            stream = backend.chat(ask(max_tokens=450))
            first = await anext(stream)
            assert await backend.drain(0.01) == 1
            assert await state(backend) == "draining"
            health = await backend.health()
            assert (health.is_ready, health.detail) == (False, "the engine is draining")
            with pytest.raises(CapacityError, match="draining; 1 requests finish") as refused:
                await collect(backend.chat(ask()))
            assert refused.value.retry_after_seconds
            rest = [delta.content async for delta in stream]
            assert first.content + "".join(rest) == whole.text
            assert await backend.drain() == 0
            await backend.wake()
            assert (await collect(backend.chat(ask()))).deltas
            assert await state(backend) == "ready"

    run(work())


@both
def test_sleep_gives_memory_back_and_the_next_request_wakes(tiny_model_path: Path, process: bool) -> None:
    """Level 1 forgets the KV and keeps the model, level 2 unloads it; the next answer comes by itself, the same."""

    async def work() -> None:
        async with engine_of(tiny_model_path, process=process) as backend:
            first = await collect(backend.chat(ask()))
            again = await collect(backend.chat(ask()))
            assert again.usage.prompt_tokens_details.cached_tokens == 16
            await backend.sleep(1)
            seen = await backend.engine_state()
            assert (seen.state, len(seen.models)) == ("asleep", 1)
            assert (await backend.health()).is_ready
            woken = await collect(backend.chat(ask()))
            assert (woken.text, woken.usage.prompt_tokens_details.cached_tokens) == (first.text, 0)
            assert await state(backend) == "ready"
            await backend.sleep(1)
            await backend.sleep(2)
            await backend.sleep(1)
            seen = await backend.engine_state()
            assert (seen.state, seen.models, set(seen.memory)) == ("deep asleep", [], {"process"})
            assert (await collect(backend.chat(ask()))).text == first.text
            with pytest.raises(RequestError, match="sleeps at level 1 or 2, got 3"):
                await backend.sleep(3)

    run(work())


@both
def test_idle_engine_sleeps_by_itself(tiny_model_path: Path, process: bool) -> None:
    """After the time of the settings without a request the models are unloaded; the next request loads them."""

    async def work() -> None:
        rest = {"engine.idle_sleep_seconds": 0.2, "engine.idle_sleep_level": 2}
        async with engine_of(tiny_model_path, process=process, **rest) as backend:
            first = await collect(backend.chat(ask()))
            async with asyncio.timeout(60):
                while await state(backend) != "deep asleep":  # noqa: ASYNC110 - as `until`, which asks no coroutine
                    await asyncio.sleep(0.05)
            assert (await backend.engine_state()).models == []
            assert (await collect(backend.chat(ask()))).text == first.text
        await until(lambda: not any(thread.name == "pyagent-idle" for thread in threading.enumerate()))

    run(work())


def test_sleep_before_anything_was_asked_starts_nothing(tiny_model_path: Path) -> None:
    """An engine whose process has not started sleeps and wakes without one."""

    async def work() -> None:
        async with engine_of(tiny_model_path, process=True) as backend:
            await backend.sleep(2)
            assert await state(backend) == "deep asleep"
            await backend.wake()
            assert await state(backend) == "ready"
            assert (await backend.engine_state()).process_id is None

    run(work())


def test_closed_engine_stays_closed(tiny_model_path: Path) -> None:
    """After its end an engine neither wakes nor drains, and says so."""

    async def work() -> None:
        async with engine_of(tiny_model_path, process=False) as backend:
            await backend.close()
            for change in (backend.wake(), backend.drain(), backend.sleep(1)):
                with pytest.raises(RequestError, match="the engine is stopped; it cannot become"):
                    await change

    run(work())
