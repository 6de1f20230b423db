"""Checks of answers in threads of their own, each with a bound on what it may take, and one tenant's one after another.

A grammar may be ambiguous: to find that a text of it matches takes time that grows with the cube of its length, and
each call into llguidance keeps the interpreter's lock. So a check goes in short calls, asks between them whether it may
go on, and no request waits for more than its bound. Knows no grammar and no backend.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Generic, TypeVar, cast

from pyagent.core.errors import InvalidOutputError
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.structured_output.deep_stack import run_deep, start_deep

T = TypeVar("T")
WORK_SECONDS = 2.0
"""Of the processor, for one answer: twenty times what 100 kB take of a grammar that is not ambiguous."""
_PATIENCE_SECONDS = 60.0
"""How long an answer waits for the checks before it and its own, on a machine with other things to do."""


class TooLongToCheckError(InvalidOutputError):
    """An answer whose check takes more than its bound: nothing is known of it."""

    def __init__(self, what: str) -> None:
        hint = "make the grammar less ambiguous, or the answer shorter"
        super().__init__(
            f"response_format: checking {what} takes over {WORK_SECONDS:g} s; {hint}", param="response_format"
        )


class Work:
    """What one check may still take of its thread's time."""

    def __init__(self) -> None:
        self.is_given_up = False
        self._until = 0.0

    def do(self, check: Callable[[], T]) -> T:
        """Return what a check returns, bound by this from now on in this thread."""
        self._until = time.thread_time() + WORK_SECONDS
        token = _under_way.set(self)
        try:
            return check()
        finally:
            _under_way.reset(token)

    @property
    def is_over(self) -> bool:
        """Whether the check is to end."""
        return self.is_given_up or time.thread_time() > self._until


_under_way: ContextVar[Work | None] = ContextVar("the work under way", default=None)


def go_on(what: str) -> None:
    """Raise `TooLongToCheckError` where the check of `what` has taken all that it may."""
    work = _under_way.get()
    if work is not None and work.is_over:
        raise TooLongToCheckError(what)


def bounded(check: Callable[[], T]) -> T:
    """Return what a check returns: within the bound of the check that it is a part of, or one of its own."""
    if _under_way.get() is not None:
        return check()
    return run_deep(lambda: Work().do(check))


async def checked_aside(check: Callable[[], T], deadline: Deadline, tenant: str = "") -> T:
    """Return what a check returns, or raise what it raises, while the event loop goes on.

    Past the deadline it is given up. A tenant's checks wait for each other alone.
    """
    queued = _Check(check)
    _enqueue(queued, tenant)
    try:
        return await deadline.bound(_patiently(queued.result), "the check of an answer")
    finally:
        queued.work.is_given_up = True


async def _patiently(result: Future[T]) -> T:
    timer = asyncio.timeout(_PATIENCE_SECONDS)
    try:
        async with timer:
            return await asyncio.wrap_future(result)
    except TimeoutError:
        if not timer.expired():
            raise
        raise TooLongToCheckError("the answer") from None


class _Check(Generic[T]):
    """A check that waits for its turn, and what comes of it."""

    def __init__(self, check: Callable[[], T]) -> None:
        self.result = Future[T]()
        self.work = Work()
        self._check = check

    def run(self) -> None:
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            value = self.work.do(self._check)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self.result.set_exception(error)
        else:
            self.result.set_result(value)


_tenant_to_queue: dict[str, deque[_Check[object]]] = {}
_queues = threading.Lock()


def _enqueue(check: _Check[T], tenant: str) -> None:
    """Put a check behind those of its tenant, whose thread lives as long as there are any."""
    queued = cast("_Check[object]", check)
    with _queues:
        if (queue := _tenant_to_queue.get(tenant)) is not None:
            queue.append(queued)
            return
        _tenant_to_queue[tenant] = deque([queued])
    try:
        start_deep(lambda: _run_all(tenant), "pyagent-check")
    except BaseException:
        with _queues:
            for waiting in _tenant_to_queue.pop(tenant):
                waiting.result.cancel()
        raise


def _run_all(tenant: str) -> None:
    while True:
        with _queues:
            queue = _tenant_to_queue[tenant]
            if not queue:
                del _tenant_to_queue[tenant]
                return
            check = queue.popleft()
        check.run()
