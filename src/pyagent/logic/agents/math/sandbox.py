"""Runs the worker and bounds it: processor time for each question, memory for the process; past either it is killed.

A worker bounds its own processor time, since on a busy machine seconds pass without it; the time that passes is bounded
here, more loosely.

One worker serves one question at a time and stays for the next; questions side by side get workers of their own, up
to a bound. A worker that had to be killed is replaced at once, so that the next question does not wait for sympy to be
imported. Belongs to no event loop: waiting happens in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading

import msgspec

from pyagent.core.errors import AgentError, RequestError
from pyagent.logic.agents.math.actions import Action, Solved
from pyagent.logic.agents.math.arithmetic import solved_at_once
from pyagent.logic.agents.math.worker import Question, WorkerResult

_START_SECONDS = 60.0
_WAIT_FACTOR = 6
"""Of the processor's time: how long a worker may take on a machine that others keep busy."""


class Sandbox:
    """Workers that answer actions. `seconds` of the processor bound a question, `memory_bytes` a worker's memory."""

    def __init__(self, *, seconds: float = 5.0, memory_bytes: int = 1 << 30, max_workers: int = 4) -> None:
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(max_workers):
            self._idle.put(None)

    async def compute(self, action: Action) -> Solved:
        """Return the answer. Raises `RequestError` for a question without one, `AgentError` when a bound is hit.

        Plain arithmetic is answered here, without a worker.
        """
        if known := solved_at_once(action):
            return known
        left = threading.Event()
        try:
            return await asyncio.to_thread(self._compute, action, left)
        finally:
            left.set()

    def _compute(self, action: Action, left: threading.Event) -> Solved:
        worker = self._idle.get()
        try:
            if worker is None or not worker.is_alive:
                worker = _Worker(self._memory_bytes)
            worker.wait_until_ready(left)
            if left.is_set():
                raise RequestError("the caller of this calculation has left", param="text")
            reply = worker.ask(action, self._seconds, left)
            if reply is None or not worker.is_alive:
                worker.kill()
                worker = None if left.is_set() else _Worker(self._memory_bytes)
            if reply is None:
                message = f"math gave up after {self._seconds:g} s; ask for something smaller"
                raise AgentError(message, agent="math")
        finally:
            self._idle.put(worker)
        if reply.refused:
            raise RequestError(reply.refused, param="text")
        if reply.result is None:
            raise AgentError(f"math cannot compute this: {reply.failed}", agent="math")
        return reply.result

    async def close(self) -> None:
        """End the workers that are idle; a busy one ends with its question."""
        kept: list[None] = []
        while True:
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                break
            kept.append(None)
            if worker is not None:
                await asyncio.to_thread(worker.kill)
        for nothing in kept:
            self._idle.put(nothing)


class _Worker:
    def __init__(self, memory_bytes: int) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "pyagent.logic.agents.math.worker", str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True, name="math-worker")
        self._reader.start()
        self._is_ready = False

    def wait_until_ready(self, left: threading.Event) -> None:
        """Wait for the first sign of life, or until the caller left; raises `AgentError` when none comes."""
        if self._is_ready:
            return
        self._is_ready = self._wait(_START_SECONDS, left) == b"ready\n"
        if not self._is_ready and not left.is_set():
            self.kill()
            raise AgentError("the math worker does not start; is sympy installed?", agent="math")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, action: Action, seconds: float, left: threading.Event) -> WorkerResult | None:
        """Return the reply; None when time ran out, the caller left or the process died."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(Question(action, seconds)) + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None
        line = self._wait(_WAIT_FACTOR * seconds, left)
        if not line:
            is_out_of_memory = self._process.poll() not in {None, -signal.SIGPROF}
            return WorkerResult(failed="it needs more memory than a sum may use") if is_out_of_memory else None
        return msgspec.json.decode(line, type=WorkerResult)

    def _wait(self, seconds: float, left: threading.Event) -> bytes:
        waited = 0.0
        while waited < seconds and not left.is_set():
            with contextlib.suppress(queue.Empty):
                return self._lines.get(timeout=min(0.1, seconds))
            waited += 0.1
        return b""

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def kill(self) -> None:
        """End the process now and reap it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
