"""A load that callers share: one at a time of a thing, in a thread of its own, for all callers that wait.

Knows nothing of what is loaded. A caller who gives up, or whose event loop ends, leaves the load to the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class SharedLoad(Generic[T]):
    """The load of one thing, as often as it is asked for; `running` is the one under way."""

    def __init__(self, name: str, lock: AbstractContextManager[object]) -> None:
        """`name` is the thread's; `lock` guards `running`, and what `keep` notes."""
        self.running: Future[T] | None = None
        self._name = name
        self._lock = lock

    def begin(
        self, load: Callable[[], T], keep: Callable[[T], None], then: Callable[[T], None] | None = None
    ) -> Future[T]:
        """Return the load under way, or begin one; the caller holds the lock.

        In the thread, `load` makes the thing, and cleans up after itself where it raises; `keep` notes it, with the
        lock held; `then` does what is to be done before any caller has it. What they raise, all who wait get.
        """
        if self.running is None:
            self.running = loading = Future[T]()
            loading.set_running_or_notify_cancel()
            threading.Thread(target=self._run, args=(loading, load, keep, then), name=self._name, daemon=True).start()
        return self.running

    def _run(
        self,
        loading: Future[T],
        load: Callable[[], T],
        keep: Callable[[T], None],
        then: Callable[[T], None] | None,
    ) -> None:
        try:
            loaded = load()
        except BaseException as error:  # noqa: BLE001 - the callers who wait must get it
            with self._lock:
                self.running = None
            loading.set_exception(error)
            return
        with self._lock:
            keep(loaded)
            self.running = None
        try:
            if then is not None:
                then(loaded)
        except BaseException as error:  # noqa: BLE001 - as above
            loading.set_exception(error)
            return
        loading.set_result(loaded)


async def arrived(coming: T | Future[T]) -> T:
    """Return what is there, or what a load gives; a caller that is cancelled here ends no load."""
    if not isinstance(coming, Future):
        return coming
    return await asyncio.shield(asyncio.wrap_future(cast("Future[T]", coming)))
