"""Keep an engine's process running: send it requests, deliver their outputs, notice its death, start the next one.

One thread does it all; other threads post jobs to it, and their callbacks are called in it. A process that ends, is
silent or at one step for too long, or sends what is no message, is replaced after a pause that doubles up to a bound;
what it worked on is submitted again as `in_flight` decides. When no process can be started, the requests fail with the
reason, and the next request tries again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import msgspec
import zmq

from pyagent.core.cluster.coordinator import CopyLoad
from pyagent.core.errors import BackendError, PyAgentError, RequestError, WireError
from pyagent.core.load_progress import LoadProgress
from pyagent.core.messages import ChatDelta
from pyagent.infrastructure.engine.sessions.replay import ReplayStore
from pyagent.infrastructure.engine.subprocess.child import ChildProcess
from pyagent.infrastructure.engine.subprocess.in_flight import MAX_TRIALS, InFlight, InFlightRequest
from pyagent.infrastructure.engine.subprocess.jobs import JobQueue
from pyagent.infrastructure.engine.subprocess.pending_calls import PendingCalls, stopped
from pyagent.infrastructure.engine.subprocess.protocol import (
    ENGINE,
    HELLO,
    Abort,
    Aborted,
    Busyness,
    Command,
    Done,
    Failed,
    FromEngine,
    Loading,
    Outputs,
    Ping,
    Pong,
    Raised,
    Returned,
    Start,
    encode_for_caller,
    to_engine,
)
from pyagent.infrastructure.processes import describe_exit
from pyagent.infrastructure.wire.hello import Hello

logger = logging.getLogger(__name__)

_PING_SECONDS = 1.0
_SILENCE_SECONDS = 15.0
"""A process that sends nothing for this time hangs, and is killed."""
_START_SECONDS = 60.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
_QUICK_SECONDS = 10.0
"""A process that lived longer than this did not die of its start."""
_MAX_QUICK_DEATHS = 5
"""After this many in a row, with no request left, the next process starts with the next request, or where others
answer meanwhile after `_RETRY_SECONDS`."""
_RETRY_SECONDS = 60.0
_MAX_FAILED_STARTS = 3
"""Processes in a row that may end before their hello; then the requests are failed."""
_POLL_SECONDS = 0.2
"""How often to check for a dead process where the system does not report it."""


@dataclass(slots=True)
class ProcessStatus:
    """The process as seen from outside. `process_id` is None while there is none that answers."""

    process_id: int | None = None
    num_restarts: int = 0


class Owner(Protocol):
    """What supervisors tell, each with its number, from their threads."""

    def started(self, copy: int) -> None:
        """Take a process that answers."""
        ...

    def died(self, copy: int) -> None:
        """Note that a process is gone."""
        ...

    def sent(self, copy: int, wire_id: int) -> None:
        """Note that a process is sent a request."""
        ...

    def ended(self, copy: int, wire_id: int) -> None:
        """Note that a process said the end of a request."""
        ...

    def computed(self, request: InFlightRequest) -> None:
        """Note that a request's first output came: its prompt is computed."""
        ...

    def told(self, copy: int, load: CopyLoad) -> None:
        """Take what a process tells of itself."""
        ...

    def loading(self, copy: int, load: LoadProgress) -> None:
        """Take how far a process is with loading a model."""
        ...

    def move(self, request: InFlightRequest) -> bool:
        """Have another go on with a request; return False where there is none."""
        ...


class Supervisor:
    """The thread and its process. Both start with the first request."""

    def __init__(  # noqa: PLR0913 - each is a part of its own
        self,
        copy: int,
        start: Start,
        owner: Owner,
        turns: ReplayStore,
        hang_seconds: float | None,
        *,
        is_alone: bool,
    ) -> None:
        """`copy` is its number among those of `owner`; `start` is what its processes are told, `turns` are of all.

        A process at one step for longer than `hang_seconds` is replaced; with None, no step is too long.
        """
        self.status = ProcessStatus()
        self._copy = copy
        self._is_alone = is_alone
        self._name = "the engine's process" if is_alone else f"the process of engine {copy}"
        self._start = start
        self._owner = owner
        self._hang_seconds = math.inf if hang_seconds is None else hang_seconds
        self._requests = InFlight()
        self._turns = turns
        self._calls = PendingCalls()
        self._jobs = JobQueue(self._run)
        self._outbox: deque[bytes] = deque()
        self._is_down = False  # from the end of a process until the next one answers
        self._has_had_process = False
        self._num_quick_deaths = 0
        self._num_failed_starts = 0

    @property
    def is_started(self) -> bool:
        """Whether there was a request or a call yet."""
        return self._jobs.is_started

    @property
    def num_requests(self) -> int:
        """Return how many requests have not ended."""
        return len(self._requests)

    # -- from any thread ------------------------------------------------------------------------------------------

    def submit(self, request: InFlightRequest) -> None:
        """Submit a request; its `emit` gets the outputs."""
        self._jobs.post(lambda: self._add(request))

    def _add(self, request: InFlightRequest) -> None:
        if request.is_over:  # its reader left while it was on its way here
            return
        if not self._is_down or not self._goes_elsewhere(request):
            self._requests.add(request)

    def abort(self, request: InFlightRequest) -> None:
        """Abort a request; no output of it is delivered any more. Raises nothing: at `close` all of them end."""
        with contextlib.suppress(BackendError):
            self._jobs.post(lambda: self._abort(request))

    def call(self, command: Command) -> Future[msgspec.Raw]:
        """Send a command; return the future of its result's bytes, or of its error.

        Raises `RequestError` for a command that cannot be sent.
        """
        call = self._calls.make(command)

        def begin() -> None:
            self._calls.add(call)
            if self.status.process_id is not None:
                self._outbox.append(call.frame)

        self._jobs.post(begin)
        return call.future

    def begin_with(self, adapters: Mapping[str, str]) -> None:
        """Tell a process that starts from now on that these are the adapters."""
        self._start = msgspec.structs.replace(self._start, adapters=adapters)

    def close(self) -> None:
        """End the process; what runs fails. Block until it has ended. Safe to call twice."""
        self._jobs.end()

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            while not self._jobs.is_closing:
                self._run_process(context)
        except Exception:
            logger.exception("the supervisor of the engine's process failed")
        finally:
            self._jobs.is_closing = True
            self._fail_all("the engine stopped")
            context.term()
            self._jobs.close()

    def _run_process(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Start one process, serve until its end, and pause before the next."""
        started = time.monotonic()
        try:
            process = ChildProcess(context, self._start)
        except OSError as error:  # no memory, descriptors or room for its folder are left
            self._num_failed_starts += 1
            self._ended(f"it could not be started: {error}", started)
            return
        reason = f"no hello within {_START_SECONDS:.0f} s"
        try:
            self._num_failed_starts += 1
            if self._await_hello(process, started + _START_SECONDS):
                self._begin(process)
                reason = self._serve(process)
        except WireError as error:
            reason = str(error)
        finally:
            is_dead = process.is_dead
            self.status.process_id = None
            code = process.end(is_orderly=self._jobs.is_closing)
        if not self._jobs.is_closing:
            self._ended(describe_exit(code) if is_dead else reason, started)

    def _ended(self, reason: str, started: float) -> None:
        """Let others go on with what the process had, and pause before the next."""
        logger.warning("%s ended (%s); another is started", self._name, reason)
        self._is_down = True
        self._owner.died(self._copy)
        self._process_died(reason)
        self._pause_after(reason, time.monotonic() - started)

    def _pause_after(self, reason: str, lived_seconds: float) -> None:
        """Pause before the next process, the longer the more of them ended soon."""
        self._num_quick_deaths = self._num_quick_deaths + 1 if lived_seconds < _QUICK_SECONDS else 0
        if self._num_failed_starts >= _MAX_FAILED_STARTS:
            self._fail_all(f"{self._name} does not start ({reason}); its messages on standard error say why")
        if self._num_quick_deaths >= _MAX_QUICK_DEATHS and not len(self._requests):
            self._wait(None if self._is_alone else _RETRY_SECONDS)
        elif self._num_quick_deaths:
            self._pause(_FIRST_PAUSE_SECONDS * 2 ** min(self._num_quick_deaths - 1, 10))

    def _begin(self, process: ChildProcess) -> None:
        self._num_failed_starts = 0
        self.status.num_restarts += self._has_had_process
        self._has_had_process = True
        self.status.process_id = process.process.pid
        self._is_down = False
        self._outbox.clear()
        self._outbox.extend(self._calls.frames())
        self._owner.started(self._copy)

    def _await_hello(self, process: ChildProcess, until: float) -> bool:
        """Wait for the process's hello; return False when it ends before. Raises `WireError` for another version."""
        poller = zmq.Poller()
        process.register(poller)
        self._jobs.register(poller)
        while not self._jobs.is_closing and not process.is_dead and time.monotonic() < until:
            poller.poll(_milliseconds(_POLL_SECONDS))
            self._jobs.do_all()
            for message in process.receive():
                if isinstance(message, Hello):
                    HELLO.check(message, ENGINE)
                    process.remove_folder()
                    return True
        return False

    def _serve(self, process: ChildProcess) -> str:
        """Exchange messages until the process ends; return why it is to be replaced, where it has not ended."""
        poller = zmq.Poller()
        process.register(poller)
        self._jobs.register(poller)
        received = pinged = time.monotonic()
        while not self._jobs.is_closing:
            is_stuck = self._send(process)
            poller.modify(process.socket, zmq.POLLIN | (zmq.POLLOUT if is_stuck else 0))
            poller.poll(_milliseconds(_PING_SECONDS if process.is_watched else _POLL_SECONDS))
            now = time.monotonic()
            self._jobs.do_all()
            for message in process.receive():
                received = now
                if isinstance(message, Pong) and message.step_seconds > self._hang_seconds:
                    return f"a step took longer than {self._hang_seconds:g} s (engine.hang_seconds)"
                self._handle(message)
            if process.is_dead:
                return ""
            if now - received > _SILENCE_SECONDS:
                return f"it sent nothing for {_SILENCE_SECONDS:.0f} s"
            if now - pinged >= _PING_SECONDS:
                self._outbox.append(to_engine.encode(Ping()))
                pinged = now
        return ""

    def _send(self, process: ChildProcess) -> bool:
        """Send what is due; return True when the socket's queue is full."""
        process_id = process.process.pid
        for request in self._requests.next_to_send():
            try:
                frame = encode_for_caller(request.submission(self._turns.before(request.request, process_id)))
                self._owner.sent(self._copy, request.wire_id)
                self._outbox.append(frame)
            except RequestError as error:  # with its token log it is too long
                self._requests.remove(request)
                self._emit(request, error)
        while self._outbox:
            if not process.send(self._outbox[0]):
                return True
            self._outbox.popleft()
        return False

    def _handle(self, message: FromEngine) -> None:
        match message:
            case Outputs(wire_id):
                request = self._requests.sent(wire_id)
                if request is not None and request.num_tokens_left:
                    self._owner.computed(request)
                if request is not None and (delta := request.apply(message)) is not None:
                    self._emit(request, delta)
                    if self._requests.count_outputs(request):
                        self._outbox.append(to_engine.encode(Abort(wire_id)))
            case Busyness() | Loading():
                self._told(message)
            case Done(wire_id):
                self._owner.ended(self._copy, wire_id)
                self._end(wire_id, None)
            case Failed(wire_id, fault):
                self._owner.ended(self._copy, wire_id)
                self._end(wire_id, fault.error("native"))
            case Aborted(wire_id):
                self._owner.ended(self._copy, wire_id)
                if request := self._requests.sent(wire_id):
                    self._requests.end_trial(request)
            case Returned() | Raised():
                self._calls.end(message)
            case Hello() | Pong():
                pass

    def _told(self, message: Busyness | Loading) -> None:
        if isinstance(message, Busyness):
            self._owner.told(self._copy, message.load)
        else:
            self._owner.loading(self._copy, message.load)

    def _end(self, wire_id: int, error: PyAgentError | None) -> None:
        request = self._requests.sent(wire_id)
        if request is not None:
            self._requests.remove(request)
            if error is None and request.is_single and self.status.process_id is not None:
                tokens, process_id = tuple(request.tokens), self.status.process_id
                self._turns.put(request.request, request.prompt, tokens, request.text, process_id)
            self._emit(request, error)

    def _abort(self, request: InFlightRequest) -> None:
        wire_id = request.wire_id
        if self._requests.remove(request) and self.status.process_id is not None:
            self._outbox.append(to_engine.encode(Abort(wire_id)))

    def _emit(self, request: InFlightRequest, output: ChatDelta | PyAgentError | None) -> None:
        try:
            request.emit(output)
        except RuntimeError:  # its event loop is closed
            self._abort(request)

    def _process_died(self, reason: str) -> None:
        """Fail the calls, and the requests that are not submitted again; have other copies go on with the rest."""
        for request in self._requests.process_died():
            if request.num_trials >= MAX_TRIALS:
                why = f"{self._name} ended {request.num_trials} times while it worked on this request alone"
            else:
                why = f"{self._name} ended {request.num_deaths} times while it worked on this request"
            self._emit(request, stopped(f"{why} ({reason}); it is not tried again"))
        for request in self._requests.take_movable():
            if not self._goes_elsewhere(request):
                self._requests.put_back(request)
        self._calls.fail_all(f"{self._name} ended ({reason})")

    def _goes_elsewhere(self, request: InFlightRequest) -> bool:
        """Have another go on with a request; return False where there is none."""
        try:
            return self._owner.move(request)
        except PyAgentError as error:  # the other one is being closed
            self._emit(request, error)
            return True

    def _fail_all(self, reason: str) -> None:
        self._jobs.do_all()
        for request in self._requests.remove_all():
            with contextlib.suppress(RuntimeError):
                request.emit(stopped(reason))
        self._calls.fail_all(reason)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + min(seconds, _LONGEST_PAUSE_SECONDS)
        while not self._jobs.is_closing and (left := until - time.monotonic()) > 0:
            self._wait(left)

    def _wait(self, seconds: float | None) -> None:
        """Wait for a job, at most `seconds`."""
        poller = zmq.Poller()
        self._jobs.register(poller)
        poller.poll(None if seconds is None else _milliseconds(seconds))
        self._jobs.do_all()


def _milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)
