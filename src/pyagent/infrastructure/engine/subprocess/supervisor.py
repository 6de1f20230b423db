"""Keeps an engine's process running: hands it requests, hears its news, notices its death, starts the next one.

One thread does it all; others post to it and are told through callbacks, in this thread. A process that ends, says
nothing for long, or is at one step for long, is replaced after a pause that doubles up to a bound; what it worked on is
asked again as `inflight` says. When no process can be started, the requests fail with the reason, and the next request
tries again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec
import zmq

from pyagent.core.errors import BackendError, PyAgentError
from pyagent.core.messages import ChatDelta
from pyagent.infrastructure.engine.sessions.replay import ReplayStore
from pyagent.infrastructure.engine.subprocess.child import Spawned, describe_exit
from pyagent.infrastructure.engine.subprocess.in_flight import MAX_TRIALS, Asked, InFlight
from pyagent.infrastructure.engine.subprocess.protocol import (
    Abort,
    Alive,
    Call,
    Done,
    Dropped,
    Failed,
    FromEngine,
    Outputs,
    Ping,
    Raised,
    Returned,
    Todo,
    encode,
)

logger = logging.getLogger(__name__)

_PING_SECONDS = 1.0
_SILENCE_SECONDS = 15.0
"""A process that has said nothing for so long hangs, and is killed."""
_START_SECONDS = 60.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
_QUICK_SECONDS = 10.0
"""A process that lived longer than this did not die of its start."""
_MAX_QUICK_DEATHS = 5
"""After so many in a row, with nothing to do, the next process waits for the next request."""
_MAX_FAILED_STARTS = 3
"""Processes in a row that may end without a word before the requests are failed."""
_LOOK_SECONDS = 0.2
"""How often to look for a dead process where the system does not tell."""


@dataclass(slots=True)
class Vitals:
    """What can be seen of the process from outside. `process_id` is None while there is none that answers."""

    process_id: int | None = None
    num_restarts: int = 0


class Supervisor:
    """The thread and its process. Both start with the first request."""

    def __init__(self, settings: bytes, on_change: Callable[[bool], None], hang_seconds: float | None) -> None:
        """`settings` is what the process gets (JSON); `on_change` hears whether there is a process that answers.

        A step that takes longer than `hang_seconds` is taken for one that never ends; with None, none is.
        """
        self.vitals = Vitals()
        self._settings = settings
        self._on_change = on_change
        self._hang_seconds = math.inf if hang_seconds is None else hang_seconds
        self._requests = InFlight()
        self._past = ReplayStore()
        self._calls: dict[int, tuple[Call, Future[msgspec.Raw]]] = {}
        self._call_ids = itertools.count(1)
        self._jobs: deque[Callable[[], None]] = deque()
        self._outbox: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bell: tuple[int, int] | None = None
        self._is_closing = False
        self._has_had_process = False
        self._num_quick_deaths = 0
        self._num_failed_starts = 0

    @property
    def is_started(self) -> bool:
        """Whether anything was asked yet."""
        return self._thread is not None

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    # -- from any thread ------------------------------------------------------------------------------------------

    def ask(self, asked: Asked) -> None:
        """Hand a request over."""
        self._post(lambda: self._requests.add(asked))

    def abort(self, asked: Asked) -> None:
        """Nobody waits for this request any more."""
        self._post(lambda: self._abort(asked))

    def call(self, what: Todo) -> Future[msgspec.Raw]:
        """Ask the process for something else; the result's bytes, or the error."""
        future: Future[msgspec.Raw] = Future()
        future.set_running_or_notify_cancel()  # whoever waits may leave; the result is then for nobody

        def begin() -> None:
            call = Call(next(self._call_ids), what)
            self._calls[call.id] = (call, future)
            if self.vitals.process_id is not None:
                self._outbox.append(encode(call))

        self._post(begin)
        return future

    def close(self) -> None:
        """End the process; what runs fails. Blocks until it has ended. Safe to call twice."""
        with self._lock:
            thread = self._thread
            self._is_closing = True
            self._ring()
        if thread is not None:
            thread.join()

    def _post(self, job: Callable[[], None]) -> None:
        with self._lock:
            if self._is_closing:
                raise BackendError("the engine stopped", backend="native", retryable=False)
            self._jobs.append(job)
            if self._thread is None:
                self._bell = os.pipe()
                for end in self._bell:
                    os.set_blocking(end, False)
                self._thread = threading.Thread(target=self._run, name="pyagent-supervisor", daemon=True)
                self._thread.start()
            self._ring()

    def _ring(self) -> None:
        if self._bell is not None:
            with contextlib.suppress(BlockingIOError):  # full: it will be heard
                os.write(self._bell[1], b"!")

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            while not self._is_closing:
                self._live(context)
        except Exception:
            logger.exception("the supervisor of the engine's process failed")
        finally:
            self._is_closing = True
            self._fail_all("the engine stopped")
            context.term()
            with self._lock:
                for end in self._bell or ():
                    os.close(end)
                self._bell = None

    def _live(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """One process from its start to its end, and the pause after it."""
        started = time.monotonic()
        process = Spawned(context, self._settings)
        reason = f"no word within {_START_SECONDS:.0f} s"
        try:
            self._num_failed_starts += 1
            if self._meet(process, started + _START_SECONDS):
                self._begin(process)
                reason = self._serve(process)
        finally:
            is_dead = process.is_dead
            self.vitals.process_id = None
            code = process.end(is_orderly=self._is_closing)
        if not self._is_closing:
            reason = describe_exit(code) if is_dead else reason
            logger.warning("the engine's process ended (%s); another is started", reason)
            self._on_change(False)
            self._mourn(reason)
            self._rest(reason, time.monotonic() - started)

    def _rest(self, reason: str, lived_seconds: float) -> None:
        """The pause before the next process."""
        self._num_quick_deaths = self._num_quick_deaths + 1 if lived_seconds < _QUICK_SECONDS else 0
        if self._num_failed_starts >= _MAX_FAILED_STARTS:
            self._fail_all(f"the engine's process does not start ({reason}); its messages on standard error say why")
        if self._num_quick_deaths >= _MAX_QUICK_DEATHS and not len(self._requests):
            self._wait(None)
        elif self._num_quick_deaths:
            self._pause(_FIRST_PAUSE_SECONDS * 2 ** min(self._num_quick_deaths - 1, 10))

    def _begin(self, process: Spawned) -> None:
        self._num_failed_starts = 0
        self.vitals.num_restarts += self._has_had_process
        self._has_had_process = True
        self.vitals.process_id = process.process.pid
        self._outbox.clear()
        self._outbox.extend(encode(call) for call, _ in self._calls.values())
        self._on_change(True)

    def _meet(self, process: Spawned, until: float) -> bool:
        """Wait for the process's first words; False when it ends before."""
        poller = zmq.Poller()
        process.register(poller)
        self._register_bell(poller)
        while not self._is_closing and not process.is_dead and time.monotonic() < until:
            poller.poll(_milliseconds(_LOOK_SECONDS))
            self._do_jobs()
            if any(isinstance(message, Alive) for message in process.receive()):
                process.met()
                return True
        return False

    def _serve(self, process: Spawned) -> str:
        """Pass requests and news on until the process ends; returns why it was given up, if it was."""
        poller = zmq.Poller()
        process.register(poller)
        self._register_bell(poller)
        heard = pinged = time.monotonic()
        while not self._is_closing:
            is_stuck = self._send(process)
            poller.modify(process.socket, zmq.POLLIN | (zmq.POLLOUT if is_stuck else 0))
            poller.poll(_milliseconds(_PING_SECONDS if process.is_watched else _LOOK_SECONDS))
            now = time.monotonic()
            self._do_jobs()
            for message in process.receive():
                heard = now
                if isinstance(message, Alive) and message.turn_seconds > self._hang_seconds:
                    return f"a step took longer than {self._hang_seconds:g} s (engine.hang_seconds)"
                self._hear(message)
            if process.is_dead:
                return ""
            if now - heard > _SILENCE_SECONDS:
                return f"it said nothing for {_SILENCE_SECONDS:.0f} s"
            if now - pinged >= _PING_SECONDS:
                self._outbox.append(encode(Ping()))
                pinged = now
        return ""

    def _send(self, process: Spawned) -> bool:
        """Send what there is; True when the process takes no more for now."""
        process_id = process.process.pid
        for asked in self._requests.next_to_send():
            self._outbox.append(encode(asked.ask(self._past.before(asked.request, process_id))))
        while self._outbox:
            if not process.send(self._outbox[0]):
                return True
            self._outbox.popleft()
        return False

    def _hear(self, message: FromEngine) -> None:
        match message:
            case Outputs(wire_id):
                asked = self._requests.sent(wire_id)
                if asked is not None and (unheard := asked.take(message)) is not None:
                    self._tell(asked, unheard)
                    if self._requests.told(asked):
                        self._outbox.append(encode(Abort(wire_id)))
            case Done(wire_id):
                self._end(wire_id, None)
            case Failed(wire_id, fault):
                self._end(wire_id, fault.error())
            case Dropped(wire_id):
                if asked := self._requests.sent(wire_id):
                    self._requests.dropped(asked)
            case Returned(call_id, result):
                self._calls.pop(call_id)[1].set_result(result)
            case Raised(call_id, fault):
                self._calls.pop(call_id)[1].set_exception(fault.error())
            case Alive():
                pass

    def _end(self, wire_id: int, error: PyAgentError | None) -> None:
        asked = self._requests.sent(wire_id)
        if asked is not None:
            self._requests.end(asked)
            if error is None and asked.is_single and self.vitals.process_id is not None:
                request, tokens = asked.request, tuple(asked.tokens)
                self._past.keep(request, asked.prompt, tokens, asked.text, self.vitals.process_id)
            self._tell(asked, error)

    def _abort(self, asked: Asked) -> None:
        wire_id = asked.wire_id
        if self._requests.end(asked) and self.vitals.process_id is not None:
            self._outbox.append(encode(Abort(wire_id)))

    def _tell(self, asked: Asked, news: ChatDelta | PyAgentError | None) -> None:
        try:
            asked.tell(news)
        except RuntimeError:  # its event loop is gone
            self._abort(asked)

    def _mourn(self, reason: str) -> None:
        for asked in self._requests.died():
            if asked.num_trials >= MAX_TRIALS:
                why = f"the engine's process ended {asked.num_trials} times while it worked on this request alone"
            else:
                why = f"the engine's process ended {asked.num_deaths} times while it worked on this request"
            self._tell(asked, _stopped(f"{why} ({reason}); it is not tried again"))
        calls, self._calls = self._calls, {}
        for _, future in calls.values():
            future.set_exception(_stopped(f"the engine's process ended ({reason})"))

    def _fail_all(self, reason: str) -> None:
        self._do_jobs()
        for asked in self._requests.give_up():
            with contextlib.suppress(RuntimeError):
                asked.tell(_stopped(reason))
        calls, self._calls = self._calls, {}
        for _, future in calls.values():
            future.set_exception(_stopped(reason))

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + min(seconds, _LONGEST_PAUSE_SECONDS)
        while not self._is_closing and (left := until - time.monotonic()) > 0:
            self._wait(left)

    def _wait(self, seconds: float | None) -> None:
        """Wait for something to do, or so long."""
        poller = zmq.Poller()
        self._register_bell(poller)
        poller.poll(None if seconds is None else _milliseconds(seconds))
        self._do_jobs()

    def _register_bell(self, poller: zmq.Poller) -> None:
        assert self._bell is not None
        poller.register(self._bell[0], zmq.POLLIN)

    def _do_jobs(self) -> None:
        assert self._bell is not None
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell[0], 4096)
        while self._jobs:
            self._jobs.popleft()()


def _milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _stopped(reason: str) -> PyAgentError:
    return BackendError(f"native: {reason}", backend="native", retryable=False)
