"""How a rank is: its steps' times on the device, and a thread beside them that says so again and again.

A process that is stopped says nothing, one that waits for others says that, so that of a step that never ends it can be
told whose fault it is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import zmq

from pyagent.infrastructure.engine.memory.process import resident_bytes
from pyagent.infrastructure.engine.runners.torch.parallel.messages import RankReport, reports
from pyagent.infrastructure.engine.stats import Window

PULSE_SECONDS = 0.25


class _LaunchedStep(NamedTuple):
    """A step on its way on a GPU."""

    since: float
    begin: torch.cuda.Event
    end: torch.cuda.Event


class StepClock:
    """What a rank's steps take. One thread computes them, any may ask."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._seconds = Window()
        self._num_steps = 0
        self._since: float | None = None
        self._launched: deque[_LaunchedStep] = deque()
        self._asking = threading.Lock()

    @contextmanager
    def step(self) -> Generator[None]:
        """Time what is computed; on a GPU what is launched, whose end is only known when it is asked for."""
        self._since = since = time.monotonic()
        if self.device.type != "cuda":
            yield
            self._note(time.monotonic() - since)
        else:
            stream = torch.cuda.current_stream(self.device)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(stream)
            yield
            end.record(stream)
            self._launched.append(_LaunchedStep(since, begin, end))
        self._since = None

    def _note(self, seconds: float) -> None:
        self._seconds.add(seconds)
        self._num_steps += 1

    def report(self, rank: int, *, is_waiting: bool) -> RankReport:
        """Return how the rank is."""
        with self._asking:
            while self._launched and self._launched[0].end.query():
                step = self._launched.popleft()
                self._note(step.begin.elapsed_time(step.end) / 1000)
            launched = next(iter(self._launched), None)
        since = self._since if launched is None else launched.since
        return RankReport(
            rank=rank,
            num_steps=self._num_steps,
            step_seconds=self._seconds.median(),
            busy_seconds=0.0 if since is None else time.monotonic() - since,
            is_waiting=is_waiting,
            memory_bytes=_memory_bytes(self.device),
        )


def _memory_bytes(device: torch.device) -> int:
    """Return what this process holds of the device's memory, or of this machine's."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else resident_bytes()


def start_pulse(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, report: Callable[[], RankReport]) -> None:
    """Send a rank's reports from now on, from a thread that ends with the process."""

    def beat() -> None:
        socket = context.socket(zmq.PUSH)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        while True:
            socket.send(reports.encode(report()))
            time.sleep(PULSE_SECONDS)

    threading.Thread(target=beat, name="pyagent-pulse", daemon=True).start()
