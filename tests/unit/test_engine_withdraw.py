"""Requests that are given back before they begin: which, and what becomes of the others."""

from __future__ import annotations

import asyncio
import itertools
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.counting_runner import Client, CountingRunner, run_to_end
from support.native import assert_idle, chat, engine_of, options, run, running
from support.waiting import until

from pyagent.core.backends import Answer, collect
from pyagent.core.errors import CapacityError, MovedError
from pyagent.core.messages import ChatRequest, Origin
from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.core.withdrawal import Withdrawal
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.options import EngineOptions, SchedulerLimits


def one_at_a_time() -> EngineOptions:
    return replace(options(), limits=SchedulerLimits(max_num_seqs=1))


def movable(text: str, num_tokens: int = 3, **more: object) -> ChatRequest:
    request = chat(text, max_tokens=num_tokens, temperature=0, ignore_eos=True)
    return msgspec.structs.replace(request, **{"is_movable": True, **more})


def ask(backend: NativeBackend, request: ChatRequest) -> asyncio.Task[Answer]:
    return asyncio.create_task(collect(backend.chat(request)))


async def with_queue(backend: NativeBackend, requests: list[ChatRequest]) -> tuple[Engine, list[asyncio.Task[Answer]]]:
    """Have one long request run and these wait behind it, in order."""
    engine = (await backend.load()).engine  # type: ignore[attr-defined]
    running_one = ask(backend, movable("the user", 400))
    await until(lambda: engine.scheduler.num_running == 1)
    waiting: list[asyncio.Task[Answer]] = []
    for request in requests:
        waiting.append(ask(backend, request))
        await until(lambda: engine.scheduler.queues.num_waiting == len(waiting))
    return engine, [running_one, *waiting]


def test_withdraw_gives_back_what_waits_and_nothing_else(tiny_model_path: Path) -> None:
    """Two of three waiting requests go, the first in line first; the one that runs and the last are answered whole."""

    async def work() -> None:
        async with running(tiny_model_path, one_at_a_time()) as backend:
            alone = (await collect(backend.chat(movable("the system")))).text
            _engine, tasks = await with_queue(backend, [movable(text) for text in ("a", "b", "the system")])
            assert await backend.withdraw(Withdrawal(at_most=2, to="desk")) == 2
            for task in tasks[1:3]:
                with pytest.raises(MovedError) as moved:
                    await task
                assert moved.value.to == "desk"
            assert (await tasks[3]).text == alone
            assert len((await tasks[0]).deltas) > 1
            await assert_idle(backend)
            assert await backend.withdraw(Withdrawal(at_most=5)) == 0

    run(work())


@pytest.mark.parametrize(
    ("wanted", "num_given"),
    [
        (Withdrawal(at_most=9), 2),
        (Withdrawal(at_most=9, of_peers=True), 1),
        (Withdrawal(at_most=9, waited_seconds=3600.0), 0),
        (Withdrawal(at_most=9, model="other"), 0),
        (Withdrawal(at_most=9, model="tiny"), 2),
        (Withdrawal(at_most=0), 0),
    ],
)
def test_withdraw_takes_only_what_is_asked_for(tiny_model_path: Path, wanted: Withdrawal, num_given: int) -> None:
    """Of a peer, of a model, or after a wait; a request whose sender asked nobody else stays whatever is asked."""

    async def work() -> None:
        async with running(tiny_model_path, one_at_a_time()) as backend:
            waiting = [movable("a"), movable("b", origin=Origin(node="n1")), movable("c", is_movable=False)]
            _engine, tasks = await with_queue(backend, waiting)
            assert await backend.withdraw(wanted) == num_given
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert sum(isinstance(end, MovedError) for end in ends) == num_given
            assert sum(isinstance(end, Answer) for end in ends) == len(tasks) - num_given
            await assert_idle(backend)

    run(work())


def test_request_that_has_begun_once_is_not_given_back(tiny_model_path: Path) -> None:
    """One that was preempted waits again, but some of it was computed and told: it stays."""

    async def work() -> None:
        async with running(tiny_model_path, one_at_a_time()) as backend:
            engine, tasks = await with_queue(backend, [movable("a"), movable("b")])
            preempted = next(iter(engine.scheduler.queues.waiting))
            preempted.scheduled = preempted.arrived
            assert await backend.withdraw(Withdrawal(at_most=9)) == 1
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(end).__name__ for end in ends] == ["Answer", "Answer", "MovedError"]

    run(work())


def test_withdraw_ends_all_samples_of_a_request(tiny_model_path: Path) -> None:
    """A request for three answers goes as one, and leaves no memory behind."""

    async def work() -> None:
        async with running(tiny_model_path, one_at_a_time()) as backend:
            _engine, tasks = await with_queue(backend, [movable("a", n=3)])
            assert await backend.withdraw(Withdrawal(at_most=9)) == 1
            with pytest.raises(MovedError):
                await tasks[1]
            await tasks[0]
            await assert_idle(backend)

    run(work())


def test_withdraw_from_an_engine_in_its_own_process(tiny_model_path: Path) -> None:
    """Over the process's socket too: what waits comes back as `MovedError` with its node, what runs goes on."""

    async def withdrawn(backend: NativeBackend, first: asyncio.Task[Answer]) -> int:
        while not first.done():  # it is begun when the others wait
            stats = (await backend.engine_state()).stats
            if any(sum(one.waiting.values()) == 2 and one.num_running for one in stats.values()):
                return await backend.withdraw(Withdrawal(at_most=9, to="box"))
            await asyncio.sleep(0.01)
        return 0

    async def work() -> None:
        async with engine_of(tiny_model_path, **{"engine.max_num_seqs": 1}) as backend:
            for _ in range(20):  # on a busy machine all may be over before the state is told
                tasks = [ask(backend, movable("the user", num)) for num in (300, 3, 3)]
                given = await withdrawn(backend, tasks[0])
                ends = await asyncio.gather(*tasks, return_exceptions=True)
                if given == 2:
                    break
            assert [type(end).__name__ for end in ends] == ["Answer", "MovedError", "MovedError"]
            assert isinstance(ends[1], MovedError)
            assert ends[1].to == "box"

    run(work())


def test_engine_outlives_a_withdrawal_that_nobody_waits_for_any_more(tiny_model_path: Path) -> None:
    """Who asks while a step takes long may stop waiting: nothing is given back, and every request is answered."""

    async def work() -> None:
        async with running(tiny_model_path, one_at_a_time()) as backend:
            engine, tasks = await with_queue(backend, [movable("a")])
            go_on, execute = threading.Event(), engine.runner.execute
            stands = threading.Event()

            def slow(batch: Batch) -> StepOutput:
                stands.set()
                go_on.wait(60)
                return execute(batch)

            engine.runner.execute = slow  # type: ignore[method-assign]
            await asyncio.to_thread(stands.wait, 60)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(backend.withdraw(Withdrawal(at_most=9)), 0.1)
            go_on.set()
            assert [len((await task).deltas) > 1 for task in tasks] == [True, True]
            assert engine.fault is None
            await assert_idle(backend)

    run(work())


def test_withdrawn_requests_do_not_shorten_the_time_to_come_back() -> None:
    """Requests that leave the queue unbegun say nothing of how quick others are: Retry-After stays as it was."""
    now = 0.0
    limits = SchedulerLimits(max_num_seqs=1, max_num_waiting=8)
    engine = Engine(CountingRunner(num_blocks=100), limits, clock=lambda: now)
    for number in range(3):
        engine.scheduler.add(Client(number, [number], 1).request)
        run_to_end(engine)
        now += 100.0

    def retry_seconds() -> float:
        while engine.scheduler.queues.num_waiting < limits.max_num_waiting:
            client = Client(next(numbers), [1], 1)
            client.request.is_movable = True
            engine.scheduler.add(client.request)
        with pytest.raises(CapacityError) as caught:
            engine.submit(Client(next(numbers), [1], 1).request)
        return caught.value.retry_after_seconds or 0.0

    numbers = itertools.count(10)
    before = retry_seconds()
    assert before > 5
    assert engine._withdraw(Withdrawal(at_most=7)) == 7
    assert retry_seconds() == before
