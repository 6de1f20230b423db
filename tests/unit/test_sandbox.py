"""Workers in processes of their own: one that is killed, slow or left takes no other question with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from support.sandbox_worker import Order, Told

from pyagent.core.errors import AgentError
from pyagent.logic.sandbox.pool import Work, WorkerPool
from pyagent.logic.sandbox.serving import Question

Body = Callable[[WorkerPool[Told]], Coroutine[None, None, None]]


def with_pool(body: Body, *, max_workers: int = 1, seconds: float = 20.0) -> None:
    """Run a test with workers that are ended afterwards."""

    async def main() -> None:
        work = Work("digger", "support.sandbox_worker", Told, "less", "nothing", seconds)
        pool = WorkerPool(work, max_workers=max_workers)
        try:
            await body(pool)
        finally:
            await pool.close()

    asyncio.run(main())


def is_running(process_id: int) -> bool:
    """Whether a process is there, and is not a dead one that waits to be reaped."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that comes to be so."""
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - no event to await
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_worker_killed_in_a_question_fails_it_alone_and_is_replaced(number: signal.Signals) -> None:
    """The error names the signal; the next question is answered by a new process."""

    async def body(pool: WorkerPool[Told]) -> None:
        first = await pool.ask(Order())
        slow = asyncio.create_task(pool.ask(Order("wait", 60.0)))
        await asyncio.sleep(0.2)
        os.kill(first.process_id, number)
        with pytest.raises(AgentError, match=f"digger cannot do this: its process ended with signal {number:d}"):
            await asyncio.wait_for(slow, 10)
        assert pool._crew.idle.qsize() == 1, "the next one is begun at once"  # pyright: ignore[reportPrivateUsage]
        after = await pool.ask(Order())
        assert after.process_id != first.process_id
        assert after.num_asked == 1

    with_pool(body)


def test_worker_killed_between_questions_is_replaced() -> None:
    """The next question does not notice."""

    async def body(pool: WorkerPool[Told]) -> None:
        first = await pool.ask(Order())
        os.kill(first.process_id, signal.SIGKILL)
        await until(lambda: not is_running(first.process_id))
        assert (await pool.ask(Order())).num_asked == 1

    with_pool(body)


@pytest.mark.parametrize(
    ("what", "message"),
    [("exit", "ended with code 3"), ("fill", "needs more memory"), ("write", "No usable temporary directory")],
)
def test_question_that_ends_its_worker_is_told_from_one_that_takes_too_long(what: str, message: str) -> None:
    """Nothing is said of seconds where none passed."""

    async def body(pool: WorkerPool[Told]) -> None:
        with pytest.raises(AgentError, match=message) as caught:
            await pool.ask(Order(what))  # pyright: ignore[reportArgumentType]
        assert "gave up" not in str(caught.value)
        assert (await pool.ask(Order())).process_id

    with_pool(body)


def test_worker_ends_itself_past_its_seconds_of_the_processor() -> None:
    """Also when the one that asks is too busy to see to it."""
    question = Question(msgspec.Raw(msgspec.json.encode(Order("spin"))), 0.2)
    done = subprocess.run(
        [sys.executable, "-m", "support.sandbox_worker", str(1 << 30)],
        input=msgspec.json.encode(question) + b"\n",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGPROF


def test_questions_that_wait_keep_no_thread_of_the_program_from_its_work() -> None:
    """However many wait for a worker, a file is still read at once."""

    async def body(pool: WorkerPool[Told]) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await pool.ask(Order())
        waiting = [asyncio.create_task(pool.ask(Order("wait", 0.4))) for _ in range(4)]
        await asyncio.sleep(0.05)
        assert await asyncio.to_thread(lambda: "read") == "read"
        assert not any(task.done() for task in waiting)
        told = await asyncio.gather(*waiting)
        assert [each.num_asked for each in told] == [2, 3, 4, 5]

    with_pool(body)


def test_question_whose_caller_left_before_its_turn_is_never_asked() -> None:
    """The worker that is busy with another goes on."""

    async def body(pool: WorkerPool[Told]) -> None:
        slow = asyncio.create_task(pool.ask(Order("wait", 0.4)))
        await asyncio.sleep(0.05)
        left = asyncio.create_task(pool.ask(Order("wait", 60.0)))
        await asyncio.sleep(0.05)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        first = await slow
        after = await pool.ask(Order())
        assert (after.process_id, after.num_asked) == (first.process_id, 2)

    with_pool(body)


def test_closed_pool_ends_a_busy_worker_with_its_question() -> None:
    """The question is answered, its process ends, and what is asked later gets a new one."""

    async def body(pool: WorkerPool[Told]) -> None:
        first = await pool.ask(Order())
        slow = asyncio.create_task(pool.ask(Order("wait", 0.5)))
        await asyncio.sleep(0.1)
        await pool.close()
        assert is_running(first.process_id)
        assert (await slow).process_id == first.process_id
        await until(lambda: not is_running(first.process_id))
        assert (await pool.ask(Order())).process_id != first.process_id

    with_pool(body)


def test_closing_ends_idle_workers_at_once() -> None:
    """No process is left behind."""

    async def body(pool: WorkerPool[Told]) -> None:
        told = await asyncio.gather(*(pool.ask(Order("wait", 0.2)) for _ in range(3)))
        processes = {each.process_id for each in told}
        assert len(processes) == 3
        await pool.close()
        assert not any(map(is_running, processes))

    with_pool(body, max_workers=3)


def test_many_questions_take_one_process_and_leave_no_file_open() -> None:
    """Two hundred questions, each fiftieth of which ends its worker."""

    async def body(pool: WorkerPool[Told]) -> None:
        await pool.ask(Order())
        before = len(os.listdir("/proc/self/fd"))
        for nth in range(200):
            if nth % 50 == 49:
                with pytest.raises(AgentError):
                    await pool.ask(Order("exit"))
            else:
                assert (await pool.ask(Order())).num_asked == nth % 50 + (2 if nth < 50 else 1)
        assert len(os.listdir("/proc/self/fd")) <= before

    started = time.monotonic()
    with_pool(body)
    assert time.monotonic() - started < 60
