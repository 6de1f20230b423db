"""Jobs that other threads post to the supervisor's: a queue, and a pipe that wakes who waits for it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable

import zmq

from pyagent.core.errors import BackendError


class JobQueue:
    """The jobs of one thread, which starts with the first of them."""

    def __init__(self, run: Callable[[], None]) -> None:
        """`run` is what the thread does; it calls `do_all` until `is_closing`, then `close`."""
        self.is_closing = False
        self._run = run
        self._jobs: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pipe: tuple[int, int] | None = None

    @property
    def is_started(self) -> bool:
        """Whether there was a job yet."""
        return self._thread is not None

    def post(self, job: Callable[[], None]) -> None:
        """Have the thread do a job, from any thread. Raises `BackendError` once it ends."""
        with self._lock:
            if self.is_closing:
                raise BackendError("the engine stopped", backend="native", retryable=False)
            self._jobs.append(job)
            if self._thread is None:
                self._pipe = os.pipe()
                for end in self._pipe:
                    os.set_blocking(end, False)
                self._thread = threading.Thread(target=self._run, name="pyagent-supervisor", daemon=True)
                self._thread.start()
            self._wake()

    def end(self) -> None:
        """Have the thread end, and block until it has. Safe to call twice."""
        with self._lock:
            thread = self._thread
            self.is_closing = True
            self._wake()
        if thread is not None:
            thread.join()

    def _wake(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):  # full: it wakes as it is
                os.write(self._pipe[1], b"!")

    # -- in the thread --------------------------------------------------------------------------------------------

    def register(self, poller: zmq.Poller) -> None:
        """Wake a poller at jobs."""
        assert self._pipe is not None
        poller.register(self._pipe[0], zmq.POLLIN)

    def do_all(self) -> None:
        """Do what was posted."""
        assert self._pipe is not None
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipe[0], 4096)
        while self._jobs:
            self._jobs.popleft()()

    def close(self) -> None:
        """Close the pipe: the thread ends."""
        with self._lock:
            for end in self._pipe or ():
                os.close(end)
            self._pipe = None
