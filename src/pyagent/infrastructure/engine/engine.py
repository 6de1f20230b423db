"""The engine's loop: schedule, execute, emit. One thread owns it; clients talk to it through `submit` and `abort`.

A request's fault ends that request alone. When a step cannot be computed, the requests in it end with the reason, and
the loop goes on. Should the loop itself fail, or the runner be lost, every request ends with the reason and later ones
are refused with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from itertools import zip_longest
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pyagent.core.errors import CapacityError, RunnerLostError
from pyagent.core.moving_average import moving_average
from pyagent.core.runners.batch import Likelihood, StepOutput
from pyagent.core.runners.runner import DeferringRunner, DraftingRunner, Runner, StepMemoryError
from pyagent.core.withdrawal import Withdrawal
from pyagent.infrastructure.engine.drafts.ahead import Ahead, add_masks
from pyagent.infrastructure.engine.drafts.drafter import Drafter
from pyagent.infrastructure.engine.drafts.mtp_head import MtpHead
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.drafts.speculation import Speculation
from pyagent.infrastructure.engine.grammar import GrammarError, told_briefly
from pyagent.infrastructure.engine.logits.step_logits import StepLogits
from pyagent.infrastructure.engine.request import Output, Request, Status
from pyagent.infrastructure.engine.sampling.beam_search import Search
from pyagent.infrastructure.engine.scheduler.queues import RequestQueues
from pyagent.infrastructure.engine.scheduler.scheduler import Scheduler, SchedulerLimits
from pyagent.infrastructure.engine.scheduler.step_plan import Plan
from pyagent.infrastructure.engine.scheduler.withdrawable import withdrawable
from pyagent.infrastructure.engine.stats import Counts, EngineStats
from pyagent.infrastructure.engine.step_executor import InFlightStep, StepThread, execute
from pyagent.infrastructure.engine.step_masks import StepMasks

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.memory.ledger import Reservation

logger = logging.getLogger(__name__)

_SHORTEST_RETRY, _LONGEST_RETRY = 0.5, 60.0
"""Bounds in seconds of the retry time given to a refused caller."""
_END_WEIGHT = 0.1
"""Weight of the newest time between two finished requests in its moving average."""


class Engine:
    """Run requests through a runner by continuous batching."""

    def __init__(  # noqa: PLR0913 - each is a part of its own
        self,
        runner: Runner,
        limits: SchedulerLimits | None = None,
        queues: RequestQueues | None = None,
        clock: Callable[[], float] = time.perf_counter,
        *,
        is_async: bool = False,
        logits: StepLogits | None = None,
        drafts: DraftOptions | None = None,
        draft_memory: Reservation | None = None,
        draft_model: Drafter | None = None,
    ) -> None:
        """With `is_async`, compute steps in a thread of their own, and plan the next one meanwhile.

        `logits` takes the rows of requests through their logits processors. With `drafts`, steps verify some, whose
        texts are reserved in `draft_memory`, and which a `draft_model` makes too,
        or the model's own head.
        """
        self.runner = runner
        self.scheduler = Scheduler(runner, limits, queues, clock)
        self.counts = Counts()
        self._masks = StepMasks(runner.vocab_size)
        self._inbox: deque[Request] = deque()
        self._aborts: deque[Request] = deque()
        self._withdrawals: deque[tuple[Withdrawal, Future[int]]] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._fault: str | None = None
        self._thread: threading.Thread | None = None
        self._busy_since: float | None = None  # when the loop's present turn began
        self._steps = StepThread(runner) if is_async else None
        self._logits = logits
        self.speculation = None if drafts is None else self._speculation(drafts, draft_memory, draft_model)
        self._in_flight: InFlightStep | None = None  # the step being computed
        self._has_waited = False  # the next step, for the sake of drafts
        self._unreleased: list[int] = []  # sequences that ended during it
        self._clock = clock
        self._last_step_end = 0.0
        self._seconds_per_end = 0.0
        self._last_end: float | None = None

    def _speculation(self, drafts: DraftOptions, memory: Reservation | None, model: Drafter | None) -> Speculation:
        limits = self.scheduler.limits
        most_rows = drafts.most_rows(limits.most_running, limits.max_num_batched_tokens)
        runner, reserve = self.runner, self.scheduler.reserve_drafts
        if model is None and drafts.uses_mtp and isinstance(runner, DraftingRunner) and runner.has_mtp:
            model = MtpHead(runner, limits.most_running, reserve)
        if isinstance(model, MtpHead) and model.reserve is None:
            model.reserve = reserve
        return Speculation(drafts, most_rows, reserve, memory, model)

    def submit(self, request: Request) -> None:
        """Enqueue a request, from any thread. Raises `CapacityError` when too many wait already."""
        with self._wake:
            if self._fault is not None:
                text = f"the engine stopped: {self._fault}; the model is loaded again by the next request"
                raise CapacityError(text, retry_after_seconds=_SHORTEST_RETRY)
            if self._is_closing:
                raise CapacityError("the engine is stopping; send the request elsewhere")
            num_waiting = len(self._inbox) + self.scheduler.queues.num_waiting
            if num_waiting >= self.scheduler.limits.max_num_waiting:
                seconds = self._retry_seconds(num_waiting)
                most = "as many as may (engine.max_num_waiting)"
                text = f"{num_waiting} requests wait already, {most}; try again in {seconds:.1f} s"
                raise CapacityError(text, retry_after_seconds=seconds)
            self._inbox.append(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="pyagent-engine", daemon=True)
                self._thread.start()
            self._wake.notify()

    def _retry_seconds(self, num_waiting: int) -> float:
        """Return the seconds until a tenth of the waiting requests are served, at the present rate."""
        return min(_LONGEST_RETRY, max(_SHORTEST_RETRY, self._seconds_per_end * num_waiting / 10))

    def abort(self, request: Request) -> None:
        """End a request early, from any thread; does nothing when it has ended."""
        with self._wake:
            self._aborts.append(request)
            self._wake.notify()

    def withdraw(self, wanted: Withdrawal) -> Future[int]:
        """Give requests back that have not begun, from any thread; the future has how many. Their clients are told."""
        future: Future[int] = Future()
        with self._wake:
            is_empty = not self._inbox and self.scheduler.queues.num_waiting == 0
            if is_empty or self._thread is None or self._is_closing or self._fault is not None:
                future.set_result(0)
            else:
                self._withdrawals.append((wanted, future))
                self._wake.notify()
        return future

    def close(self) -> None:
        """Abort everything and stop the loop. Safe to call twice."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        elif thread is None and self._steps is not None:
            self._steps.close()

    @property
    def fault(self) -> str | None:
        """Why the loop ended by itself; None while it can run."""
        return self._fault

    @property
    def turn_seconds(self) -> float:
        """Seconds that the loop has spent in its present turn, at most one step; 0 while it waits for requests."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def stats(self) -> EngineStats:
        """Return the engine's statistics now, from any thread."""
        scheduler = self.scheduler
        return self.counts.snapshot(
            num_running=scheduler.num_running,
            num_prompt_tokens_left=scheduler.num_prompt_tokens_left,
            max_num_running=scheduler.limits.most_running,
            waiting=scheduler.queues.depths(),
            preemptions=scheduler.num_preemptions,
            prefill_tokens_per_second=scheduler.costs.prefill_tokens_per_second,
            pool=self.runner.stats(),
            drafts=None if self.speculation is None else self.speculation.counts,
        )

    def end(self, request: Request) -> None:
        """Abort a request and its parallel samples, from the engine's thread; ended ones stay as they are."""
        for answer in request.answers:
            if answer.status is not Status.FINISHED:
                self._end(answer, answer.finish("abort"))

    def _withdraw(self, wanted: Withdrawal) -> int:
        taken = withdrawable(self.scheduler.queues, wanted, time.perf_counter())
        for request in taken:
            for answer in request.answers:
                self._end(answer, replace(answer.finish("abort"), moved_to=wanted.to))
        return len(taken)

    def step(self) -> bool:
        """Run one iteration: plan a batch, compute it, emit its outputs. Return False when there was no work.

        With a thread for steps, the next one is planned while this one is computed, and started before its emitted are
        told; `step` returns while that one is on its way. Where the runner launches ahead, it is started at once.
        """
        self._end_overdue()
        if self._in_flight is None:
            has_failed = self._launch()
            if self._in_flight is None:
                return has_failed
        in_flight = self._in_flight
        has_drafts = bool(in_flight.plan.batch.num_drafts)  # how many tokens come is not known
        self._has_waited = has_drafts and self._launches_ahead
        ahead = self._plan_ahead() if in_flight.future is not None and not has_drafts else None
        launched = self._launch_ahead(ahead) if ahead is not None else None
        output = self._compute(in_flight)
        over = in_flight.plan.requests() if output is None else self._apply_output(in_flight, output)
        if output is None and launched is not None:  # it goes on from tokens that are not there
            launched.wait()
            launched = ahead = None
        self._in_flight = launched
        self._release_later()
        self._count(in_flight, output)
        if launched is not None:
            launched.plan.has_ended |= bool(over)
        elif ahead is not None:
            self._launch_planned(ahead, over)
        if output is not None:
            self._emit_outputs(in_flight.plan, output)
        return True

    def _launch(self) -> bool:
        """Plan a step and launch it; return whether requests were found that cannot go on."""
        start = time.perf_counter()
        plan = self.scheduler.plan()
        planning = time.perf_counter() - start
        has_failed = self._end_failed()
        if plan is not None:
            self._start(plan, planning, self._add_drafts(plan))
        return has_failed

    def _plan_ahead(self) -> InFlightStep | None:
        """Plan the step after the one in flight, when it does not depend on the tokens being sampled."""
        start = time.perf_counter()
        plan = self.scheduler.plan_ahead()
        return None if plan is None else InFlightStep(plan, time.perf_counter() - start, {}, None, start)

    def _launch_ahead(self, ahead: InFlightStep) -> InFlightStep | None:
        """Launch a step whose input tokens only the device knows, if the runner can and nothing else must know them."""
        if self._steps is None or not self._launches_ahead or self.scheduler.needs.has_processors:
            return None
        self._has_waited = self.speculation is not None and self.speculation.awaits(ahead.plan)
        if self._has_waited:
            return None
        ahead.started, ahead.future = time.perf_counter(), self._steps.start(ahead.plan.batch)
        return ahead

    @property
    def _launches_ahead(self) -> bool:
        return self._steps is not None and self._steps.launches_ahead

    def _launch_planned(self, ahead: InFlightStep, over: set[Request]) -> None:
        """Launch the step planned ahead with the tokens now sampled, without the requests that are over."""
        start = time.perf_counter()
        ahead.plan.fill(over)
        if ahead.plan.sampled:
            planning = ahead.planning + time.perf_counter() - start
            self._start(ahead.plan, planning, self._add_drafts(ahead.plan))

    def _start(self, plan: Plan, planning: float, faults: dict[int, str]) -> None:
        if self._logits is not None and self.scheduler.needs.has_processors:
            plan.process_logits(self._logits.process)
        if self.scheduler.needs.has_probes:
            plan.probe_tokens()
        started = time.perf_counter()  # before its thread has it
        future = None if self._steps is None else self._steps.start(plan.batch)
        self._in_flight = InFlightStep(plan, planning, faults, future, started, has_waited=self._has_waited)
        self._has_waited = False

    def _add_drafts(self, plan: Plan) -> dict[int, str]:
        """Give the batch its drafts and masks; return the reasons of grammars that failed, by row."""
        drafts = {} if self.speculation is None else self.speculation.choose(plan)
        faults = self._add_masks(plan, drafts) if self.scheduler.needs.has_masks else {}
        plan.add_drafts({row: ahead.tokens for row, ahead in drafts.items()})
        return faults

    def _add_masks(self, plan: Plan, drafts: dict[int, Ahead]) -> dict[int, str]:
        failed = add_masks(plan, drafts, self._masks)
        plan.force_tokens()
        return {row: _grammar_fault(plan.sampled[row], error) for row, error in failed.items()}

    def _compute(self, in_flight: InFlightStep) -> StepOutput | None:
        plan = in_flight.plan
        try:
            if in_flight.future is None:
                output = execute(self.runner, plan.batch)
            else:
                output = in_flight.future.result().result()
                # A runner that launches does not know when its step began to be computed.
                since = max(in_flight.started, self._last_step_end)
                output.seconds = output.seconds or time.perf_counter() - since
            if len(output.tokens) != len(plan.sampled):
                text = f"the runner sampled {len(output.tokens)} tokens, expected {len(plan.sampled)}"
                raise RuntimeError(text)  # noqa: TRY301
        except RunnerLostError:
            raise  # no sequence has its KV any more, also of those that were not in this step
        except BaseException as error:  # a runner that raises SystemExit would end the loop's thread in silence
            if isinstance(error, StepMemoryError) and self.scheduler.take_back(plan):
                logger.warning("a step of %d tokens is taken back: %s", plan.num_tokens, error)
                return None
            requests = [request for request in plan.requests() if request.status is not Status.FINISHED]
            logger.exception("a step of %d requests failed", len(requests))
            for request in requests:
                if request.status is not Status.FINISHED:  # the end of one beam is the end of all
                    self._end(request, request.finish("error", error=f"the step failed: {_told(error)}"))
            return None
        return output

    def _apply_output(self, in_flight: InFlightStep, output: StepOutput) -> set[Request]:
        """End the requests that the step failed for, and append the sampled tokens of the others to their logs.

        Return the requests that are over, though some of their last outputs are yet to be emitted.
        """
        plan = in_flight.plan
        for row, reason in {**output.errors, **in_flight.faults}.items():
            num_sampled = len(plan.sampled)
            request = plan.sampled[row] if row < num_sampled else plan.unsampled[row - num_sampled]
            if request.status is not Status.FINISHED:
                self._end(request, request.finish("error", error=reason))
        start = time.perf_counter()
        over = self.scheduler.apply_output(plan, output)
        in_flight.num_more = sum(map(len, output.more.values()))
        in_flight.planning += time.perf_counter() - start
        return over

    def _emit_outputs(self, plan: Plan, output: StepOutput) -> None:
        """Emit each request's output to its client."""
        now = time.perf_counter()
        likelihoods = output.likelihoods
        for row, (request, token) in enumerate(zip(plan.sampled, output.tokens, strict=True)):
            if request.status is Status.FINISHED:
                continue
            likelihood = likelihoods.get(row) if likelihoods else None
            if request.search is not None:
                self._search(request, request.search, likelihood, now)
                continue
            if request.activations is not None:
                request.activations.push(output.probed.get(row, ()))
            after = output.more.get(row, ()) if output.more else ()
            self._take(request, token, likelihood, now, len(after))
            if after:
                self._take_more(request, after, output.more_likelihoods.get(row, ()), now)

    def _take_more(
        self, request: Request, tokens: Sequence[int], likelihoods: Sequence[Likelihood], now: float
    ) -> None:
        """Emit what a step's further tokens give a client, up to one that ends its answer."""
        for place, (token, likelihood) in enumerate(zip_longest(tokens, likelihoods[: len(tokens)])):
            if request.is_finished:
                return
            self._take(request, token, likelihood, now, len(tokens) - place - 1)

    def _take(self, request: Request, token: int, likelihood: Likelihood | None, now: float, num_after: int) -> None:
        """Emit what a sampled token gives its client; `num_after` further ones of the step come after it."""
        try:
            if likelihood is not None:
                request.note(likelihood)
            if request.params.max_tokens == 0:
                emitted: Output | None = request.end_prompt(now)
            elif token in request.end_ids:
                emitted = request.stop(now, token)
            else:
                emitted = request.accept(token, likelihood, now, num_after)
        except GrammarError as error:
            emitted = request.finish("error", error=_grammar_fault(request, error))
        except BaseException as error:  # a native grammar that panics is no `Exception`
            logger.exception("request %d failed", request.id)
            emitted = request.finish("error", error=_told(error).partition("<state>")[0])
        if emitted is not None:
            self._deliver(request, emitted)

    def _search(self, request: Request, search: Search, likelihood: Likelihood | None, now: float) -> None:
        """Take a beam's candidates; when all beams of its search have them, go on by a token or end the search."""
        lead = search.lead
        lead.last_token = now
        lead.first_token = lead.first_token or now
        self.scheduler.park(request)
        if likelihood is None or not search.offer(request, likelihood):
            return
        try:
            step = search.step()
        except BaseException as error:  # noqa: BLE001 - a native grammar that panics is no `Exception`
            self._end(request, request.finish("error", error=_grammar_fault(request, error)))
            return
        for parent, child in step.forks:
            self.scheduler.fork_beam(parent, child)
        for other in step.ended:
            self._drop(other)
        for other, token in step.going_on:
            self.scheduler.go_on(other, token)
        if search.rules.is_done:
            self._emit_answers(search)

    def _emit_answers(self, search: Search) -> None:
        lead, answers = search.lead, search.answers
        lead.tokens[lead.num_prompt_tokens :] = answers[0].tokens  # its statistics are those of the best answer
        lead.finish(answers[0].reason)
        self.counts.note_end(lead)
        lead.text.num_reasoning_tokens = sum(map(search.num_reasoning_tokens, answers))
        for index, answer in enumerate(answers):
            is_last = index == len(answers) - 1
            text = search.text(answer)
            parsed = search.parsed(answer, text)
            reason = "tool_calls" if parsed.tool_calls and answer.reason == "stop" else answer.reason
            output = Output(parsed.content, (), reason, None, answer.tokens, index, is_last, parsed.reasoning)
            written = text if lead.text.is_parsed else None
            self._emit(lead, replace(output, tool_calls=parsed.tool_calls, written=written))

    def _end_search(self, search: Search, request: Request, output: Output) -> Request:
        """End the search of a beam that was ended from outside; return the request that stands for the search."""
        for other in {*search.live, search.lead} - {request}:
            self._drop(other)
            if other.status is not Status.FINISHED:
                other.finish(output.finish_reason or "abort")
        return search.lead

    def _drop(self, request: Request) -> None:
        """Forget a request, and release its KV memory once no step computes with it."""
        if self.scheduler.remove(request):
            self._unreleased.append(request.id)
            if self._in_flight is None:
                self._release_later()
            else:
                self._in_flight.plan.has_ended = True

    def _deliver(self, request: Request, emitted: Output) -> None:
        if request.status is Status.FINISHED:
            self._end(request, emitted)
        elif not self._emit(request, emitted):
            self._end(request, request.finish("abort"))

    def _count(self, in_flight: InFlightStep, output: StepOutput | None) -> None:
        plan, now = in_flight.plan, time.perf_counter()
        seconds = now - max(in_flight.started - in_flight.planning, self._last_step_end)
        self._last_step_end = now
        num_prompt, num_decoding = plan.num_prompt, plan.num_decoding
        usual = self.scheduler.costs.expected_seconds(num_prompt, num_decoding)
        self.counts.note_step_time(seconds, usual, plan.num_tokens, len(plan.batch.sequence_ids))
        self.scheduler.costs.note(seconds, num_prompt, num_decoding)
        num_output = len(plan.sampled) + in_flight.num_more
        self.counts.note_step(in_flight.planning, plan.num_tokens, num_output)
        drafting = 0.0 if self.speculation is None else self.speculation.draft_seconds
        plan.charge(drafting + (0.0 if output is None else output.seconds), in_flight.planning)
        if self.speculation is not None and output is not None:
            self.speculation.note(plan, output, seconds, has_waited=in_flight.has_waited)

    def _end_overdue(self) -> None:
        """End the requests whose deadline has passed."""
        for request in self.scheduler.overdue():
            where = "in the queue" if request.scheduled is None else f"after {request.num_output_tokens} output tokens"
            self._end(request, request.finish("abort", error=f"its deadline passed {where}"))

    def _end_failed(self) -> bool:
        """End the requests that the scheduler found cannot go on; False when there are none."""
        failed, self.scheduler.failed = self.scheduler.failed, []
        for request, reason in failed:
            if request.status is not Status.FINISHED:
                self._end(request, request.finish("error", error=reason))
        return bool(failed)

    def _end(self, request: Request, output: Output) -> None:
        """Close a finished request: forget it, release its memory, emit its last output."""
        try:
            self._drop(request)
            if request.search is not None:
                request = self._end_search(request.search, request, output)
        except BaseException:  # ends the loop, which has no further output for what is finished
            self._emit(request, output)
            raise
        if request.scheduled is not None:  # what leaves the queue unbegun says nothing of how quick requests are
            self._note_pace(self._clock())
        self.counts.note_end(request)
        if self.speculation is not None:
            self.speculation.end(request)
        self._emit(request, output)

    def _release_later(self) -> None:
        """Release the sequences with which a step in flight was still computing, and none is now."""
        held: Collection[int] = () if self._in_flight is None else self._in_flight.sequence_ids
        unreleased, self._unreleased = self._unreleased, [one for one in self._unreleased if one in held]
        for sequence_id in unreleased:
            if sequence_id not in held:
                self.runner.release(sequence_id)

    def _note_pace(self, now: float) -> None:
        if self._last_end is not None:
            self._seconds_per_end = moving_average(self._seconds_per_end, now - self._last_end, _END_WEIGHT)
        self._last_end = now

    def _emit(self, request: Request, output: Output) -> bool:
        """Pass emitted on; False when the client cannot be reached (its event loop is gone, say)."""
        try:
            request.on_output(output)
        except Exception as error:  # noqa: BLE001 - a client's fault is its own
            logger.warning("the client of request %d cannot be reached: %s", request.id, error)
            return False
        return True

    def _loop(self) -> None:
        try:
            while self._turn():
                pass  # a turn says whether another one follows
        except BaseException as error:
            logger.exception("the engine's loop failed")
            with self._wake:
                self._fault = _told(error)
                left = [*self._inbox, *self.scheduler.requests()]
                self._inbox.clear()
            for request in left:
                if request.status is not Status.FINISHED:
                    self._emit(request, request.finish("error", error=f"the engine failed: {self._fault}"))
        finally:
            self._busy_since = None
            with self._wake:
                unanswered = list(self._withdrawals)
                self._withdrawals.clear()
            for _, future in unanswered:
                if future.set_running_or_notify_cancel():
                    future.set_result(0)
            if self._steps is not None:
                self._steps.close()
            if self._logits is not None:
                self._logits.close()

    def _turn(self) -> bool:
        """Take in arrivals and aborts, then run one step. False when the loop must end."""
        self._use_idle_moment()
        with self._wake:
            while not self._is_called:
                self._busy_since = None
                self._wake.wait()
            self._busy_since = time.monotonic()
            arrivals, aborts = list(self._inbox), list(self._aborts)
            withdrawals = list(self._withdrawals)
            self._inbox.clear()
            self._aborts.clear()
            self._withdrawals.clear()
            is_closing = self._is_closing
        for request in arrivals:
            self.scheduler.add(request)
        for wanted, future in withdrawals:
            if future.set_running_or_notify_cancel():  # else who asked waits no more, as a step took long
                future.set_result(self._withdraw(wanted))
        if is_closing:
            aborts = self.scheduler.requests()
        for request in aborts:
            self.end(request)
        if is_closing and self._in_flight is None:
            return False
        if not self.step() and self.scheduler.has_work:
            raise RuntimeError("requests wait, and none of them can run")
        return True

    def _use_idle_moment(self) -> None:
        """Let the runner do what it puts off, a piece at a time."""
        runner = self.runner
        while not self._is_called and isinstance(runner, DeferringRunner) and runner.when_idle():
            pass  # more may be left

    @property
    def _is_called(self) -> bool:
        """Whether the loop has anything to do."""
        return bool(self._inbox or self._aborts or self._withdrawals or self._is_closing or self._has_work)

    @property
    def _has_work(self) -> bool:
        return self._in_flight is not None or self.scheduler.has_work


def _grammar_fault(request: Request, error: BaseException) -> str:
    """Log why a request's grammar cannot go on, without its text; return it for the client."""
    if isinstance(error, GrammarError):
        logger.warning("the grammar of request %d failed: %s", request.id, error.kind)
        return str(error)
    logger.error("the mask of request %d failed", request.id, exc_info=error)
    return told_briefly(error)


def _told(error: BaseException) -> str:
    """Return an error as a text, its type where the text says nothing."""
    text = str(error)
    return text if text and isinstance(error, Exception) else f"{type(error).__name__} {text}".rstrip()
