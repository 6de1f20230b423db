"""Work that ends when its client does, in one task with whoever waits for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from pyagent.infrastructure.server.streaming import ClientLeftError, unless_gone


def leaving(after: float | None) -> Callable[[], Awaitable[Message]]:
    """A connection whose client leaves after so many seconds; None is never."""

    async def receive() -> Message:
        await asyncio.sleep(3600 if after is None else after)
        return {"type": "http.disconnect"}

    return receive


def num_tasks() -> int:
    return len(asyncio.all_tasks())


def test_client_that_leaves_ends_the_work_and_not_its_task() -> None:
    """The work is cancelled and has cleaned up; the task that waited goes on, and can still be timed and cancelled."""
    told: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            told.append("cleaned up")

    async def main() -> None:
        with pytest.raises(ClientLeftError):
            await unless_gone(work(), leaving(0.01))
        assert told == ["cleaned up"]
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(3600)
        await asyncio.sleep(0)
        assert num_tasks() == 1

    asyncio.run(main())


def test_work_that_is_done_first_is_the_answer() -> None:
    """A result or an error of the work comes as it is, and nobody watches any more."""

    async def fails() -> None:
        raise ValueError("no")

    async def main() -> None:
        assert await unless_gone(asyncio.sleep(0.01, "done"), leaving(None)) == "done"
        with pytest.raises(ValueError, match="no"):
            await unless_gone(fails(), leaving(None))
        await asyncio.sleep(0)
        assert num_tasks() == 1

    asyncio.run(main())


@pytest.mark.parametrize("after", [0.0, 0.01])
def test_work_that_ends_as_the_client_leaves_disturbs_nothing_later(after: float) -> None:
    """Whichever comes first, no cancellation is left over for what the task awaits next."""

    async def main() -> None:
        for _ in range(50):
            with contextlib.suppress(ClientLeftError):
                assert await unless_gone(asyncio.sleep(after, "done"), leaving(after)) == "done"
            await asyncio.sleep(0)

    asyncio.run(main())


def test_a_deadline_in_the_work_stays_a_deadline() -> None:
    """Time that runs out inside the work is told as such, and a client that leaves inside a deadline is no timeout."""

    async def slow(seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await asyncio.sleep(3600)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await unless_gone(slow(0.01), leaving(None))
        with pytest.raises(ClientLeftError):
            await unless_gone(slow(60), leaving(0.01))

    asyncio.run(main())


def test_cancelling_from_outside_is_no_client_that_left() -> None:
    """A server that stops cancels its tasks, and the work hears of that."""

    async def main() -> None:
        task = asyncio.create_task(unless_gone(asyncio.sleep(3600), leaving(None)))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
