"""A thread that runs other people's code, one piece after another, and is left behind when a piece takes too long.

Nothing ends a thread that is stuck in C; one that runs Python is ended by an exception. What a piece does after its
time must not matter: it may only write to what is its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue


class LeftBehind(BaseException):
    """Raised in a thread that was left behind, wherever it is. Code that catches everything lets it pass."""


_DONE = -1
"""The place past the last piece."""


class _Worker:
    """One thread, and where it is in its present pieces."""

    def __init__(self) -> None:
        self.pieces: SimpleQueue[Sequence[Callable[[], None]] | None] = SimpleQueue()
        self.is_done: SimpleQueue[None] = SimpleQueue()
        self.present = (0, time.monotonic())  # which piece, and when it began
        self._is_left = False
        self._claiming = threading.Lock()
        self.thread = threading.Thread(target=self._run, name="pyagent-logits", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with contextlib.suppress(LeftBehind):
            self._work()

    def _work(self) -> None:
        while (pieces := self.pieces.get()) is not None:
            for index, piece in enumerate(pieces):
                if not self._claim(index):
                    return
                piece()
            self._claim(_DONE)

    def _claim(self, index: int) -> bool:
        """Go on to a piece, or end; False when what is left is another thread's."""
        with self._claiming:
            if self._is_left:
                return False
            if index == _DONE:
                self.is_done.put(None)
            self.present = (index, time.monotonic())
            return True

    def wait(self, seconds: float) -> int | None:
        """Wait for the pieces; return the one that took longer than this, None when all are done."""
        while True:
            index, began = self.present
            left = began + seconds - time.monotonic()
            if left <= 0 and index != _DONE:
                return index
            try:
                self.is_done.get(timeout=max(left, 0))
            except Empty:
                continue
            return None

    def leave(self, index: int) -> bool:
        """Have the thread end as soon as it can; False when it has ended this piece by now, and goes on."""
        with self._claiming:
            if self.present[0] != index:
                return False
            self._is_left = True
            ident = ctypes.c_ulong(self.thread.ident or 0)  # its own as long as it cannot claim, and end
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(LeftBehind))
            return True


class BoundedThread:
    """Runs pieces of code in order. The pieces raise nothing. One caller at a time."""

    def __init__(self, limit_seconds: float) -> None:
        """A piece may take `limit_seconds`."""
        self._limit = limit_seconds
        self._worker: _Worker | None = None

    def run(self, pieces: Sequence[Callable[[], None]]) -> dict[int, threading.Thread]:
        """Run the pieces; return which took too long, with the threads that may still be at them."""
        overdue: dict[int, threading.Thread] = {}
        start = 0
        while start < len(pieces):
            worker = self._worker = self._worker or _Worker()
            worker.present = (0, time.monotonic())
            worker.pieces.put(pieces[start:])
            while (stuck := worker.wait(self._limit)) is not None and not worker.leave(stuck):
                pass
            if stuck is None:
                break
            self._worker = None
            overdue[start + stuck] = worker.thread
            start += stuck + 1
        return overdue

    def close(self) -> None:
        """End the thread, when it has nothing to do any more."""
        if self._worker is not None:
            self._worker.pieces.put(None)
            self._worker = None
