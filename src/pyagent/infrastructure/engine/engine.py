"""The engine's loop: schedule, run, hand out. One thread owns it; clients talk to it through `submit` and `abort`.

A request's fault ends that request alone. When a step cannot be computed at all, the requests in it end with the
reason, and the loop goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass

from pyagent.core.errors import CapacityError
from pyagent.infrastructure.engine.batch import Batch, Draw, Drawn, Runner, Segment
from pyagent.infrastructure.engine.request import Output, Request, Status
from pyagent.infrastructure.engine.scheduler import Scheduler, SchedulerLimits, Work

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class EngineCounts:
    """What the engine has done since it started."""

    num_steps: int = 0
    num_finished: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    drawn_tokens: int = 0
    busy_seconds: float = 0.0


class Engine:
    """Runs requests through a runner, many at a time."""

    def __init__(self, runner: Runner, limits: SchedulerLimits | None = None) -> None:
        self.runner = runner
        self.scheduler = Scheduler(runner, limits)
        self.counts = EngineCounts()
        self._inbox: deque[Request] = deque()
        self._aborts: deque[Request] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def submit(self, request: Request) -> None:
        """Hand a request over, from any thread. Raises `CapacityError` when too many wait already."""
        with self._wake:
            if self._is_closing:
                raise CapacityError("the engine is stopping; send the request elsewhere")
            num_waiting = len(self._inbox) + len(self.scheduler.waiting)
            if num_waiting >= self.scheduler.limits.max_num_waiting:
                raise CapacityError(f"{num_waiting} requests wait already; try again later", retry_after_seconds=1.0)
            self._inbox.append(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="pyagent-engine", daemon=True)
                self._thread.start()
            self._wake.notify()

    def abort(self, request: Request) -> None:
        """End a request early, from any thread; does nothing when it has ended."""
        with self._wake:
            self._aborts.append(request)
            self._wake.notify()

    def close(self) -> None:
        """Abort everything and stop the loop. Safe to call twice."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def step(self) -> bool:
        """One iteration: choose a batch, compute it, hand out what was drawn. False when there was nothing to do."""
        works = self.scheduler.schedule()
        if not works:
            return False
        start = time.perf_counter()
        drawing = [work for work in works if _is_drawing(work)]
        drawn = self._compute(works)
        if drawn is not None:
            for work in works:
                self._count(work)
            for work, result in zip(drawing, drawn, strict=True):
                self._hand_out(work.request, result)
        self.counts.num_steps += 1
        self.counts.busy_seconds += time.perf_counter() - start
        return True

    def _compute(self, works: list[Work]) -> list[Drawn] | None:
        segments = [self._segment(work) for work in works]
        try:
            return self.runner.execute(Batch(segments)).drawn
        except Exception as error:  # noqa: BLE001 - a fault of a step must not end the loop
            logger.exception("a step of %d requests failed", len(works))
            for work in works:
                self._end(work.request, work.request.finish("error", error=f"the step failed: {error}"))
            return None

    def _segment(self, work: Work) -> Segment:
        request = work.request
        end = request.num_computed + work.num_tokens
        tokens = request.tokens[request.num_computed : end]
        draw = None
        if end == len(request.tokens):
            mask = request.grammar.mask() if request.grammar is not None else None
            draw = Draw(request.sampler, mask, request.num_drawn)
        return Segment(request.id, tokens, draw)

    def _count(self, work: Work) -> None:
        request = work.request
        if request.scheduled is None:
            request.scheduled = time.perf_counter()
            self.counts.prompt_tokens += request.num_prompt_tokens
            self.counts.cached_tokens += request.num_cached or 0
        request.num_computed += work.num_tokens

    def _hand_out(self, request: Request, drawn: Drawn) -> None:
        try:
            output = request.accept(drawn)
        except Exception as error:  # noqa: BLE001 - one request's fault is its own
            logger.exception("request %d failed", request.id)
            output = request.finish("error", error=str(error))
        self.counts.drawn_tokens += 1
        if output is None:
            return
        if request.status is Status.FINISHED:
            self._end(request, output)
        else:
            request.on_output(output)

    def _end(self, request: Request, output: Output) -> None:
        self.scheduler.remove(request)
        self.counts.num_finished += 1
        self.counts.num_preemptions += request.num_preemptions
        request.on_output(output)

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._inbox or self._aborts or self._is_closing or self.scheduler.has_work):
                    self._wake.wait()
                arrivals, aborts = list(self._inbox), list(self._aborts)
                self._inbox.clear()
                self._aborts.clear()
                if self._is_closing:
                    aborts = [*arrivals, *self.scheduler.waiting, *self.scheduler.running]
            for request in arrivals:
                self.scheduler.add(request)
            for request in aborts:
                if request.status is not Status.FINISHED:
                    self._end(request, request.finish("abort"))
            if self._is_closing:
                return
            if not self.step() and self.scheduler.has_work:
                self._refuse_first()

    def _refuse_first(self) -> None:
        """Nothing runs, yet the first in line does not fit: it never will."""
        request = self.scheduler.waiting[0]
        text = f"{len(request.tokens)} tokens need more KV memory than the engine has; raise engine.memory"
        self._end(request, request.finish("error", error=text))


def _is_drawing(work: Work) -> bool:
    return work.request.num_computed + work.num_tokens == len(work.request.tokens)
