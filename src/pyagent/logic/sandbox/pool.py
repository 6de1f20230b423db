"""Runs workers and bounds them: processor time for each question, memory for the process; past either it is killed.

A worker bounds its own processor time, since on a busy machine seconds pass without it; the time that passes is bounded
here, more loosely.

One worker serves one question at a time and stays for the next; questions side by side get workers of their own, up
to a bound. A worker that had to be killed is replaced at once, so that the next question does not wait for its
libraries to be imported. Belongs to no event loop: waiting happens in threads.
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
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from pyagent.core.errors import AgentError, RequestError
from pyagent.logic.sandbox.serving import READY, Question, Reply

R = TypeVar("R")

_START_SECONDS = 60.0
_WAIT_FACTOR = 6
"""Of the processor's time: how long a worker may take on a machine that others keep busy."""


@dataclass(frozen=True, slots=True)
class Work(Generic[R]):
    """What workers do: `module` serves, `result` is the type of its answers; the rest words errors.

    `seconds` of the processor bound a question, `memory_bytes` a worker's memory.
    """

    agent: str
    module: str
    result: type[R]
    smaller: str
    needs: str
    seconds: float = 5.0
    memory_bytes: int = 1 << 30


class WorkerPool(Generic[R]):
    """Workers that answer questions."""

    def __init__(self, work: Work[R], *, max_workers: int = 4) -> None:
        self.work = work
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(max_workers):
            self._idle.put(None)

    async def ask(self, asked: msgspec.Struct) -> R:
        """Return the answer. Raises `RequestError` for a question without one, `AgentError` when a bound is hit."""
        left = threading.Event()
        try:
            return await asyncio.to_thread(self._ask, asked, left)
        finally:
            left.set()

    def _ask(self, asked: msgspec.Struct, left: threading.Event) -> R:
        worker, work = self._idle.get(), self.work
        try:
            if worker is None or not worker.is_alive:
                worker = _Worker(work.module, work.memory_bytes)
            self._await_ready(worker, left)
            reply = worker.ask(asked, work.seconds, left)
            if reply is None or not worker.is_alive:
                worker.kill()
                worker = None if left.is_set() else _Worker(work.module, work.memory_bytes)
            if reply is None:
                message = f"{work.agent} gave up after {work.seconds:g} s; ask for {work.smaller}"
                raise AgentError(message, agent=work.agent)
        finally:
            self._idle.put(worker)
        if reply.refused:
            raise RequestError(reply.refused, param="text")
        if reply.failed:
            raise AgentError(f"{work.agent} cannot do this: {reply.failed}", agent=work.agent)
        return msgspec.json.decode(reply.result, type=work.result)

    def _await_ready(self, worker: _Worker, left: threading.Event) -> None:
        if not worker.wait_until_ready(left):
            if not left.is_set():
                worker.kill()
                message = f"the worker of {self.work.agent} does not start; is {self.work.needs} installed?"
                raise AgentError(message, agent=self.work.agent)
            raise RequestError("the caller has left", param="text")

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
    def __init__(self, module: str, memory_bytes: int) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", module, str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True, name=module.rpartition(".")[0])
        self._reader.start()
        self._is_ready = False

    def wait_until_ready(self, left: threading.Event) -> bool:
        """Wait for the first sign of life, or until the caller left; return whether it came and is still wanted."""
        if not self._is_ready:
            self._is_ready = self._wait(_START_SECONDS, left) == READY
        return self._is_ready and not left.is_set()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, asked: msgspec.Struct, seconds: float, left: threading.Event) -> Reply | None:
        """Return the reply; None when time ran out, the caller left or the process died."""
        assert self._process.stdin is not None
        question = Question(msgspec.Raw(msgspec.json.encode(asked)), seconds)
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None
        line = self._wait(_WAIT_FACTOR * seconds, left)
        if not line:
            is_out_of_memory = self._process.poll() not in {None, -signal.SIGPROF}
            return Reply(failed="it needs more memory than it may use") if is_out_of_memory else None
        return msgspec.json.decode(line, type=Reply)

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
