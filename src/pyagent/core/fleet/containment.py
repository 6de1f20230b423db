"""Other people's code, contained: what an agent, a tool or a `close` does wrong ends its own step and nothing else.

A call runs in a task of its own. `SystemExit` and the like become errors instead of ending the event loop, a
cancellation that was not requested is an error instead of the run's end, a result after the deadline is not taken, and
a task that does not end when it is cancelled is left behind. What runs without ever awaiting cannot be interrupted
from the event loop: `core.fleet.watchdog` names it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import isasyncgen, isawaitable
from typing import Any, cast

from pyagent.core.errors import DeadlineError, PyAgentError
from pyagent.core.resilience.deadline import Deadline

logger = logging.getLogger(__name__)
GRACE_SECONDS = 2.0
"""How long cancelled work may take to clean up before it is left behind."""
CLOSE_SECONDS = 5.0
"""How long an agent or a backend may take to close."""


@contextmanager
def contained(what: str, error_of: Callable[[str], PyAgentError]) -> Generator[None]:
    """Turn what would end more than `what` itself into `error_of(sentence)`; a cancellation asked for goes through."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise error_of(f"{what} raised CancelledError, though it was not cancelled") from error
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit and the like would end the program
        raise error_of(f"{what} raised {type(error).__name__}: {error}") from error


_caller: ContextVar[Call | None] = ContextVar("the call that tasks begun now belong to", default=None)


def contain_tasks() -> None:
    """Contain the tasks that calls begin on this event loop too: `SystemExit` in one of them would end the loop.

    The loop's task factory stays in place around whatever was there, and touches no task that a call did not begin.
    """
    loop = asyncio.get_running_loop()
    inner = loop.get_task_factory()
    if getattr(inner, "contains", False):
        return

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
        call = _caller.get()
        if call is not None:
            coroutine = _Contained(call, coroutine)
        if inner is None:
            return asyncio.Task(coroutine, loop=loop, **options)
        return inner(loop, coroutine, **options)

    factory.contains = True  # type: ignore[attr-defined]
    loop.set_task_factory(factory)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine whose `SystemExit` and the like are errors of the call that began it.

    Not an `async def` around it: a task that is cancelled before it starts would leave the one inside never awaited.
    """

    def __init__(self, call: Call, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._call = call
        self._coroutine = coroutine

    def send(self, value: object) -> object:
        """Go on."""
        return self._guarded(lambda: self._coroutine.send(value))

    def throw(self, *error: Any) -> object:
        """Raise inside."""
        return self._guarded(lambda: self._coroutine.throw(*error))

    def close(self) -> None:
        """End it."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def _guarded(self, step: Callable[[], object]) -> object:
        try:
            return step()
        except (Exception, asyncio.CancelledError, GeneratorExit):  # StopIteration has its result
            raise
        except BaseException as error:
            text = f"{self._call.what} raised {type(error).__name__} in a task: {error}"
            raise self._call.error_of(text) from error


@dataclass(frozen=True, slots=True)
class Call:
    """A call of other people's code: `what` names it in errors and warnings, `error_of` makes them."""

    what: str
    start: Callable[[], object]
    error_of: Callable[[str], PyAgentError]
    deadline: Deadline
    grace_seconds: float = GRACE_SECONDS

    async def result(self) -> object:
        """What the call returned before the deadline. Raises `DeadlineError` after it, and what the call raised."""
        task = asyncio.create_task(self._run(), name=self.what)
        is_in_time = False
        try:
            timeout = self.deadline.remaining_seconds if self.deadline.is_set else None
            await asyncio.wait([task], timeout=timeout)
            is_in_time = task.done()
        finally:
            if not task.done():
                await self._end(task)
        returned, error = task.result() if is_in_time else (None, None)
        if error is not None:
            raise error
        if not is_in_time or self.deadline.is_past:
            raise DeadlineError(f"the deadline passed while waiting for {self.what}")
        return returned

    async def _run(self) -> tuple[object, BaseException | None]:
        _caller.set(self)
        try:
            with contained(self.what, self.error_of):
                return await self._started(), None
        except GeneratorExit:  # its own, or it was left behind unread
            return None, self.error_of(f"{self.what} raised GeneratorExit")
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - raised by `result`
            return None, error

    def _started(self) -> Awaitable[object]:
        started = self.start()
        if not isawaitable(started):
            kind = "is an async generator" if isasyncgen(started) else f"returned {type(started).__name__}"
            raise self.error_of(f"{self.what} {kind}, expected an `async def` that returns its result")
        return started

    async def _end(self, task: asyncio.Task[tuple[object, BaseException | None]]) -> None:
        """Cancel the task, wait a little, leave it behind when it goes on all the same."""
        task.cancel()
        try:
            await asyncio.wait([task], timeout=self.grace_seconds)
        finally:
            if not task.done():
                logger.warning("%s does not end when it is cancelled, and is left behind", self.what)
                _leave_behind(task)


def _leave_behind(task: asyncio.Task[tuple[object, BaseException | None]]) -> None:
    """Close the coroutine under the task, which then ends at its next step: the program's end waits for all tasks."""
    with suppress(RuntimeError):  # what runs in it ignores GeneratorExit as well, and is dropped where it stands
        cast("Generator[object]", task.get_coro()).close()
    task.add_done_callback(lambda task: task.cancelled() or task.exception())  # its outcome is not needed
    task.cancel()


async def close_all(closers: dict[str, Callable[[], object]]) -> None:
    """Close each in turn, whatever the others do; one that fails or hangs is named in a warning."""
    for what, close in closers.items():
        call = Call(what, close, PyAgentError, Deadline.after(CLOSE_SECONDS))
        try:
            await call.result()
        except Exception as error:  # noqa: BLE001 - other people's code; the rest has to be closed
            logger.warning("%s cannot be closed: %s: %s", what, type(error).__name__, error)
