"""Names the agent that blocks the event loop: one that computes or sleeps without awaiting.

Nothing in an event loop can interrupt such code, neither a deadline nor Ctrl+C; its late result is refused
(`core.fleet.containment`), and until then a thread watches the loop and says who holds it, and where.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

BLOCKED_SECONDS = 2.0
_NUM_LOOKS = 8


@dataclass(slots=True)
class Watchdog:
    """Watches the loop while there is something to watch. `start` and `stop` are called in the loop's thread."""

    _num_users: int = 0
    _thread: threading.Thread | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Watch from now on; starts count."""
        self._num_users += 1
        if self._thread is None:
            self._stopped = threading.Event()
            arguments = (asyncio.get_running_loop(), threading.get_ident(), self._stopped)
            self._thread = threading.Thread(target=_watch, args=arguments, name="fleet watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """One user less; the last one ends the watch."""
        self._num_users -= 1
        if self._num_users == 0:
            self._stopped.set()
            self._thread = None


def _watch(loop: asyncio.AbstractEventLoop, loop_thread: int, stopped: threading.Event) -> None:
    """Knock at the loop; when it does not answer in time while the same task runs, say so, once a task."""
    pause = BLOCKED_SECONDS / _NUM_LOOKS
    named: set[str] = set()
    while not stopped.wait(pause):
        answered = threading.Event()
        try:
            loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # the loop is closed
            return
        tasks: set[str] = set()
        for _ in range(_NUM_LOOKS):
            if answered.wait(pause):
                break
            task = asyncio.current_task(loop)
            tasks.add(task.get_name() if task else "")
        if not answered.is_set() and len(tasks) == 1 and not tasks <= named:
            named |= tasks
            logger.warning(
                "%s has blocked the event loop for %g s (%s); nothing else goes on meanwhile, deadlines and Ctrl+C "
                "included: use `await asyncio.to_thread(...)` for what does not await",
                *(next(iter(tasks)) or "something", BLOCKED_SECONDS, _place(loop_thread)),
            )


def _place(thread: int) -> str:
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage] - documented
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "somewhere"
