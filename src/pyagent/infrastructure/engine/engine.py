"""The engine's loop: schedule, run, hand out. One thread owns it; clients talk to it through `submit` and `abort`.

A request's fault ends that request alone. When a step cannot be computed at all, the requests in it end with the
reason, and the loop goes on. Should the loop itself fail, every request ends with the reason and the engine says so to
those who come later: nobody waits for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass

from pyagent.core.errors import CapacityError
from pyagent.infrastructure.engine.batch import Batch, Draw, Drawn, Runner, Segment
from pyagent.infrastructure.engine.queues import RequestQueues
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

    def __init__(
        self, runner: Runner, limits: SchedulerLimits | None = None, queues: RequestQueues | None = None
    ) -> None:
        self.runner = runner
        self.scheduler = Scheduler(runner, limits, queues)
        self.counts = EngineCounts()
        self._inbox: deque[Request] = deque()
        self._aborts: deque[Request] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._fault: str | None = None
        self._thread: threading.Thread | None = None

    def submit(self, request: Request) -> None:
        """Hand a request over, from any thread. Raises `CapacityError` when too many wait already."""
        with self._wake:
            if self._fault is not None:
                raise CapacityError(f"the engine stopped: {self._fault}; load the model again")
            if self._is_closing:
                raise CapacityError("the engine is stopping; send the request elsewhere")
            num_waiting = len(self._inbox) + self.scheduler.num_waiting
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
        start = time.perf_counter()
        works = self.scheduler.schedule()
        if not works:
            return False
        segments = [(work, segment) for work in works if (segment := self._segment(work, start)) is not None]
        drawn = self._compute(segments) if segments else None
        if drawn is not None:
            for work, _ in segments:
                self._note_computed(work)
            drawing = [work.request for work, segment in segments if segment.draw is not None]
            for request, result in zip(drawing, drawn, strict=True):
                self._hand_out(request, result)
        self.counts.num_steps += 1
        self.counts.busy_seconds += time.perf_counter() - start
        return True

    def _segment(self, work: Work, now: float) -> Segment | None:
        """A request's part of the batch; None when its grammar fails, which ends it."""
        request = work.request
        self._note_start(request, now)
        end = request.num_computed + work.num_tokens
        draw = None
        if end == len(request.tokens):
            try:
                mask = request.grammar.mask() if request.grammar is not None else None
            except Exception as error:
                logger.exception("the grammar of request %d failed", request.id)
                self._end(request, request.finish("error", error=f"its grammar failed: {error}"))
                return None
            draw = Draw(request.sampler, mask, request.num_drawn)
        return Segment(request.id, request.tokens[request.num_computed : end], draw)

    def _compute(self, segments: list[tuple[Work, Segment]]) -> list[Drawn] | None:
        num_draws = sum(segment.draw is not None for _, segment in segments)
        try:
            drawn = self.runner.execute(Batch([segment for _, segment in segments])).drawn
            if len(drawn) != num_draws:
                raise RuntimeError(f"the runner drew {len(drawn)} tokens, asked for were {num_draws}")  # noqa: TRY301
        except Exception as error:
            logger.exception("a step of %d requests failed", len(segments))
            for work, _ in segments:
                self._end(work.request, work.request.finish("error", error=f"the step failed: {error}"))
            return None
        return drawn

    def _note_computed(self, work: Work) -> None:
        request = work.request
        request.num_computed += work.num_tokens
        if request.status is Status.PREFILLING and request.num_left == 0:
            request.become(Status.DECODING)

    def _note_start(self, request: Request, now: float) -> None:
        if request.scheduled is None:
            request.scheduled = now
            self.counts.prompt_tokens += request.num_prompt_tokens
            self.counts.cached_tokens += request.num_cached or 0

    def _hand_out(self, request: Request, drawn: Drawn) -> None:
        try:
            output = request.accept(drawn)
        except Exception as error:
            logger.exception("request %d failed", request.id)
            output = request.finish("error", error=str(error))
        self.counts.drawn_tokens += 1
        if output is None:
            return
        if request.status is Status.FINISHED:
            self._end(request, output)
        elif not self._tell(request, output):
            self._end(request, request.finish("abort"))

    def _end(self, request: Request, output: Output) -> None:
        self.scheduler.remove(request)
        self.counts.num_finished += 1
        self.counts.num_preemptions += request.num_preemptions
        self._tell(request, output)

    def _tell(self, request: Request, output: Output) -> bool:
        """Pass news on; False when the client cannot be reached (its event loop is gone, say)."""
        try:
            request.on_output(output)
        except Exception as error:  # noqa: BLE001 - a client's fault is its own
            logger.warning("request %d has nobody to answer to: %s", request.id, error)
            return False
        return True

    def _loop(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:
            logger.exception("the engine's loop failed")
            with self._wake:
                self._fault = str(error) or type(error).__name__
                left = [*self._inbox, *self.scheduler.requests()]
                self._inbox.clear()
            for request in left:
                if request.status is not Status.FINISHED:
                    self._tell(request, request.finish("error", error=f"the engine failed: {self._fault}"))

    def _turn(self) -> bool:
        """Take arrivals and aborts in, then one step. False when the loop is to end."""
        with self._wake:
            while not (self._inbox or self._aborts or self._is_closing or self.scheduler.has_work):
                self._wake.wait()
            arrivals, aborts = list(self._inbox), list(self._aborts)
            self._inbox.clear()
            self._aborts.clear()
            is_closing = self._is_closing
        for request in arrivals:
            self.scheduler.add(request)
        if is_closing:
            aborts = self.scheduler.requests()
        for request in aborts:
            if request.status is not Status.FINISHED:
                self._end(request, request.finish("abort"))
        if not is_closing and not self.step() and self.scheduler.has_work:
            self._refuse_first()
        return not is_closing

    def _refuse_first(self) -> None:
        """Nothing runs, yet the first in line does not fit: it never will."""
        request = next(self.scheduler.queues.ordered(time.perf_counter()))
        text = f"{len(request.tokens)} tokens need more KV memory than the engine has; raise engine.memory"
        self._end(request, request.finish("error", error=text))
