"""Run a command's event loop so that the command ends although a thread of an agent or a backend does not.

`asyncio.run` and the interpreter's exit both wait for every thread that `asyncio.to_thread` began, whatever the
deadline of the run it belonged to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Coroutine
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

    `watches_sockets` takes a loop that can do what ZMQ needs; on Windows such a loop can start no subprocess.
    """

    async def bounded() -> T:
        loop, executor = asyncio.get_running_loop(), ThreadPoolExecutor(thread_name_prefix=_PREFIX)
        loop.set_default_executor(executor)
        try:
            return await main
        finally:
            loop.set_default_executor(ThreadPoolExecutor(1))
            executor.shutdown(wait=False, cancel_futures=True)
            await _end_threads()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop if watches_sockets else None) as runner:
        return runner.run(bounded())


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
