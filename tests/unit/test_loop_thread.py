"""An event loop in a thread: whoever waits for it gets an end, whoever closes it and whenever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.waiting import wait_until

from pyagent.core.errors import CapacityError, RequestError
from pyagent.core.loop_thread import LoopThread


async def two_and_no_end() -> AsyncGenerator[int, None]:
    yield 1
    yield 2
    await asyncio.Event().wait()


def test_close_ends_what_other_threads_wait_for() -> None:
    """A result and an item that never come are a clear error in the threads that wait, when another one closes."""
    loop, seen = LoopThread("test-loop"), list[int]()

    def read() -> None:
        for item in loop.iterate(two_and_no_end()):
            seen.append(item)

    waits: list[Callable[[], object]] = [lambda: loop.run(asyncio.Event().wait()), read]
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(wait) for wait in waits]
        wait_until(lambda: len(seen) == 2)
        for closing in [threads.submit(loop.close) for _ in range(2)]:
            closing.result(60)
        for one in waiting:
            with pytest.raises(CapacityError, match="closed; make a new one"):
                one.result(60)
    assert not loop.is_open
    with pytest.raises(CapacityError, match="closed"):
        loop.run(asyncio.sleep(0))


def test_loop_is_used_and_closed_within_a_running_loop() -> None:
    """A program with an event loop of its own (a notebook) may use one, and close it."""

    async def program() -> list[int]:
        with LoopThread("test-loop") as loop:
            items = loop.iterate(two_and_no_end())
            seen = [next(items), loop.run(asyncio.sleep(0, 3))]
            items.close()
        return seen

    assert asyncio.run(program()) == [1, 3]
    assert "test-loop" not in {thread.name for thread in threading.enumerate()}


def test_waiting_in_the_loops_own_thread_is_refused() -> None:
    """What runs in the loop and asks it to wait would wait forever: it is told so."""
    with LoopThread("test-loop") as loop:

        async def asks_itself() -> None:
            loop.run(asyncio.sleep(0))

        async def reads_itself() -> None:
            next(loop.iterate(two_and_no_end()))

        for work in (asks_itself(), reads_itself()):
            with pytest.raises(RequestError, match="its own event loop"):
                loop.run(work)


def test_items_after_the_close_end_in_an_error() -> None:
    """A stream that is read on after the close yields what had come, then says why there is no more."""
    loop = LoopThread("test-loop")
    items = loop.iterate(two_and_no_end())
    assert next(items) == 1
    loop.close()
    with pytest.raises(CapacityError, match="closed"):
        list(items)
