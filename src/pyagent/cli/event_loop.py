"""Run a command's event loop so that the command ends although a thread of an agent or a backend does not.

`asyncio.run` and the interpreter's exit both wait for every thread that `asyncio.to_thread` began, whatever the
deadline of the run it belonged to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Never, TypeVar

T = TypeVar("T")

THREAD_SECONDS = 2.0
"""How long threads may go on after the command's work is done."""
_PREFIX = "pyagent-work"
_LEFT_BEHIND = "pyagent-left-behind"

logger = logging.getLogger(__name__)


def run_to_end(main: Coroutine[Any, Any, T], *, watches_sockets: bool = False) -> T:
    """Run it as `asyncio.run` does; threads that go on after it for more than a moment are named and not waited for.

    `watches_sockets` takes a loop that can do what ZMQ needs; on Windows such a loop can start no subprocess. SIGTERM
    cancels the work, as Ctrl+C does, so that what it opened is closed; the command then ends with code 143.
    """
    sigterm = _Sigterm()

    async def bounded() -> T:
        loop, executor = asyncio.get_running_loop(), ThreadPoolExecutor(thread_name_prefix=_PREFIX)
        loop.set_default_executor(executor)
        try:
            with sigterm.cancelling(asyncio.current_task()):
                return await main
        finally:
            loop.set_default_executor(ThreadPoolExecutor(1))
            executor.shutdown(wait=False, cancel_futures=True)
            await _end_threads()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop if watches_sockets else None) as runner:
        try:
            return runner.run(bounded())
        except asyncio.CancelledError:
            if sigterm.came:
                raise SystemExit(128 + signal.SIGTERM) from None
            raise


class _Sigterm:
    """SIGTERM while a command works: a server takes the signal for itself, and elsewhere it would end the process."""

    def __init__(self) -> None:
        self.came = False

    @contextlib.contextmanager
    def cancelling(self, task: asyncio.Task[Any] | None) -> Generator[None]:
        """Have the signal cancel a task."""
        is_ours = threading.current_thread() is threading.main_thread()
        if task is None or not is_ours or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            yield
            return
        loop = task.get_loop()

        def cancel(_number: int, _frame: object) -> None:
            self.came = True
            loop.call_soon_threadsafe(task.cancel)

        signal.signal(signal.SIGTERM, cancel)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


async def _end_threads() -> None:
    left = [thread for thread in threading.enumerate() if thread.name.startswith(_PREFIX)]
    until = time.monotonic() + THREAD_SECONDS
    while any(map(threading.Thread.is_alive, left)) and time.monotonic() < until:  # noqa: ASYNC110 - no event to await
        await asyncio.sleep(0.005)
    for thread in left:
        if thread.is_alive():
            logger.warning("a thread that an agent or a backend began does not end, and is left behind")
            thread.name = _LEFT_BEHIND


def leave(code: int) -> Never:
    """End the program with this exit code, at once where a thread was left behind."""
    if any(thread.name == _LEFT_BEHIND for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)
