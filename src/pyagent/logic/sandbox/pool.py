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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from pyagent.core.errors import AgentError, RequestError
from pyagent.logic.sandbox.serving import READY, Question, Reply

R = TypeVar("R")

_START_SECONDS = 60.0
_END = b""
"""In place of a line, when there are no more."""
_END_SECONDS = 2.0
"""How long a process may take to end after its output has."""
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


@dataclass(slots=True)
class _Crew:
    """The threads that wait for workers, one for each worker there may be, and the workers that are idle."""

    threads: ThreadPoolExecutor
    idle: queue.SimpleQueue[_Worker]
    is_closed: bool = False

    def take(self) -> _Worker | None:
        """Return an idle worker that still runs, if there is one."""
        with contextlib.suppress(queue.Empty):
            while True:
                worker = self.idle.get_nowait()
                if worker.is_alive:
                    return worker
                worker.kill()
        return None

    def give(self, worker: _Worker) -> None:
        """Have a worker wait for the next question, or end where the crew was closed meanwhile."""
        self.idle.put(worker)
        if self.is_closed:
            self.end_idle()

    def end_idle(self) -> None:
        """End the workers that are idle."""
        while (worker := self.take()) is not None:
            worker.kill()


class WorkerPool(Generic[R]):
    """Workers that answer questions."""

    def __init__(self, work: Work[R], *, max_workers: int = 4) -> None:
        self.work = work
        self._max_workers = max_workers
        self._crew = self._new_crew()

    def _new_crew(self) -> _Crew:
        return _Crew(ThreadPoolExecutor(self._max_workers, f"{self.work.agent}-worker"), queue.SimpleQueue())

    async def ask(self, asked: msgspec.Struct) -> R:
        """Return the answer. Raises `RequestError` for a question without one, `AgentError` when a bound is hit.

        Waits in a thread of its own: those that all of the program shares are not kept from it by slow questions.
        """
        left, crew = threading.Event(), self._crew
        try:
            return await asyncio.wrap_future(crew.threads.submit(self._ask, crew, asked, left))
        finally:
            left.set()

    def _ask(self, crew: _Crew, asked: msgspec.Struct, left: threading.Event) -> R:
        work = self.work
        worker = crew.take() or _Worker(work.module, work.memory_bytes)
        try:
            self._await_ready(worker, left)
            reply = worker.ask(asked, work.seconds, left)
        except BaseException:
            worker.kill()
            raise
        self._replaced_or_kept(crew, worker, is_fit=reply is not None, is_wanted=not left.is_set())
        if reply is None:
            raise AgentError(f"{work.agent} gave up after {work.seconds:g} s; ask for {work.smaller}", agent=work.agent)
        if reply.refused:
            raise RequestError(reply.refused, param="text")
        if reply.failed:
            raise AgentError(f"{work.agent} cannot do this: {reply.failed}", agent=work.agent)
        return msgspec.json.decode(reply.result, type=work.result)

    def _replaced_or_kept(self, crew: _Crew, worker: _Worker, *, is_fit: bool, is_wanted: bool) -> None:
        if is_fit and worker.is_alive:
            crew.give(worker)
            return
        worker.kill()
        if is_wanted:
            crew.give(_Worker(self.work.module, self.work.memory_bytes))

    def _await_ready(self, worker: _Worker, left: threading.Event) -> None:
        if not worker.wait_until_ready(left):
            if not left.is_set():
                message = f"the worker of {self.work.agent} does not start; is {self.work.needs} installed?"
                raise AgentError(message, agent=self.work.agent)
            raise RequestError("the caller has left", param="text")

    async def close(self) -> None:
        """End the workers that are idle; a busy one ends with its question. What is asked later gets new ones."""
        crew, self._crew = self._crew, self._new_crew()
        crew.is_closed = True
        crew.threads.shutdown(wait=False)
        await asyncio.to_thread(crew.end_idle)


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
        """Return the reply; None when time ran out or the caller left."""
        assert self._process.stdin is not None
        question = Question(msgspec.Raw(msgspec.json.encode(asked)), seconds)
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
        except OSError:
            return self._ended()
        line = self._wait(_WAIT_FACTOR * seconds, left)
        if line == _END:
            return self._ended()
        return None if line is None else msgspec.json.decode(line, type=Reply)

    def _ended(self) -> Reply | None:
        """Return why a process that is not to end has ended; None for time that ran out."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        code = self._process.poll()
        if code == -signal.SIGPROF:
            return None
        how = f"signal {-code}" if code is not None and code < 0 else f"code {code}"
        return Reply(failed=f"its process ended with {how}, as it does where it needs more memory than it may use")

    def _wait(self, seconds: float, left: threading.Event) -> bytes | None:
        """Return the next line, `_END` when the process ended, None when time ran out or the caller left."""
        waited = 0.0
        while waited < seconds and not left.is_set():
            with contextlib.suppress(queue.Empty):
                return self._lines.get(timeout=min(0.1, seconds))
            waited += 0.1
        return None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(_END)

    def kill(self) -> None:
        """End the process now and reap it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
