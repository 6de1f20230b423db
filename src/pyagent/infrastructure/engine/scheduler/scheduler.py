"""Plan the next step. Pure bookkeeping: it never computes, samples or waits.

A step takes `max_num_batched_tokens` at most. Decoding requests come first, one token each. What is left, or what the
wanted decode latency allows, is the prefill budget: half of it goes to waiting requests short enough to finish their
prefill in this step, so that a long prompt delays no short one; the rest to prompts in progress, then to other waiting
requests in queue order. When KV memory runs out, a running request chosen by its queue's policy is preempted: its token
log is kept and recomputed (or swapped in) later, so that its text does not change. A policy may also preempt a running
request for a waiting one (see `preemption`).

Invariants: no step exceeds its budget; a request is in one place (waiting, prefilling, decoding or in its last step);
it holds KV memory only while it runs.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import chain, islice

from pyagent.core.runners.batch import BLOCK_TOKENS, Batch, StepOutput
from pyagent.core.runners.runner import Runner
from pyagent.infrastructure.engine.options import SchedulerLimits
from pyagent.infrastructure.engine.request import Request, Status, TransitionError
from pyagent.infrastructure.engine.scheduler.admission import KvAdmission
from pyagent.infrastructure.engine.scheduler.decode_batch import DecodeBatch
from pyagent.infrastructure.engine.scheduler.preemption import choose_preemptions
from pyagent.infrastructure.engine.scheduler.prefill_budget import StepCosts
from pyagent.infrastructure.engine.scheduler.queues import RequestQueues, make_queues
from pyagent.infrastructure.engine.scheduler.shared_prefill import PendingPrefixes
from pyagent.infrastructure.engine.scheduler.step_needs import StepNeeds
from pyagent.infrastructure.engine.scheduler.step_plan import Chunk, Plan
from pyagent.infrastructure.engine.scheduler.step_size import StepSize

logger = logging.getLogger(__name__)

_MAX_LOOKED_AT = 64
"""Waiting requests considered when looking for one that need not wait for a shared prefix."""
_MAX_PREEMPTIONS = 4
"""A request preempted this often is preempted no more while others can be."""


class Scheduler:
    """Hold the waiting and running requests, and choose among them."""

    def __init__(
        self,
        runner: Runner,
        limits: SchedulerLimits | None = None,
        queues: RequestQueues | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner = runner
        self._clock = clock
        self.limits = limits or SchedulerLimits()
        self.queues = make_queues({}) if queues is None else queues
        self.admission = KvAdmission(runner)
        self.costs = StepCosts(self.limits.decode_latency)
        self.decode_batch = DecodeBatch(runner.num_lookahead_tokens)
        self.prefilling: dict[int, Request] = {}
        self.ending: dict[int, Request] = {}
        self.parked: dict[int, Request] = {}
        """Beams that wait, holding their KV memory, for the others of their search."""
        self.failed: list[tuple[Request, str]] = []
        """Requests that cannot go on, with the reason; the engine ends them and clears the list."""
        self._pending_prefixes = PendingPrefixes()
        self._most = StepSize(self.limits)
        self.num_preemptions = Counter[str]()
        self._deadlines: list[tuple[float, int, Request]] = []  # a heap; ended requests stay until their deadline
        self._swapped: set[int] = set()
        self._preemptors: list[Request] = []
        """Waiting requests for which others were preempted in this step."""
        self.needs = StepNeeds()
        self.end_ids: frozenset[int] = frozenset()
        """End-of-sequence tokens of any request so far."""
        self._long: tuple[Request | None, int] = (None, 0)  # one not short enough last time, and its tokens
        self._shut_at: int | None = None  # spare pages when admission failed for memory; None: it may succeed

    @property
    def num_running(self) -> int:
        """Number of requests that hold a place in the batch."""
        return len(self.decode_batch) + len(self.prefilling) + len(self.ending) + len(self.parked)

    @property
    def num_prompt_tokens_left(self) -> int:
        """Number of prompt tokens to compute, were nothing of what waits cached; may be asked from any thread."""
        return sum(request.num_left for request in [*self.queues.waiting, *list(self.prefilling.values())])

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return self.num_running > 0 or self.queues.num_waiting > 0

    def requests(self) -> list[Request]:
        """Return all waiting and running requests."""
        return [*self.queues.waiting, *self.running()]

    def running(self) -> list[Request]:
        """Return all running requests."""
        others = (self.prefilling, self.ending, self.parked)
        return [*self.decode_batch.requests, *(request for place in others for request in place.values())]

    def add(self, request: Request) -> None:
        """Enqueue a waiting request."""
        self._shut_at = None
        if request.deadline is not None:
            for answer in (request, *request.followers):
                heappush(self._deadlines, (request.deadline, answer.id, answer))
        self.queues.add(request, self._clock())

    def overdue(self) -> list[Request]:
        """Return the requests whose deadline has passed since the last call."""
        overdue: list[Request] = []
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            request = heappop(self._deadlines)[2]
            if request.status is not Status.FINISHED:
                overdue.append(request)
        return overdue

    def remove(self, request: Request) -> bool:
        """Forget a request that ended, wherever it is; True when it holds blocks, which the caller must release."""
        was_running = self._stop_running(request)
        self._let_wait(request)
        self._forget_swapped(request)
        if request.finish_reason in {"stop", "length", "tool_calls"}:
            self.admission.lengths.note(request)
        self.queues.remove(request, self._clock())
        self._shut_at = None
        return was_running

    def plan(self) -> Plan | None:
        """Return the next step; None when nothing can run."""
        plan = self._plan()
        if plan is None and self.parked:
            self._put_parked_back()
            plan = self._plan()
        return plan

    def _plan(self) -> Plan | None:
        now = self._clock()
        self._preemptors = self._preempt_for_waiting(now)
        self._reserve_for_decode(now)
        plan = self._plan_decode([log[-1] for log in self.decode_batch.logs])
        if self.prefilling or self.queues.num_waiting:
            self._plan_prompts(plan, now)
        return plan if plan.batch.sequence_ids else None

    def plan_ahead(self) -> Plan | None:
        """Return the step after the one in flight if it is the same batch whatever is sampled; `fill` it later.

        None when a request waits or prefills, when what is sampled decides what comes next, or when memory is short.
        """
        others = self.prefilling or self.parked or self.queues.num_waiting or self.runner.num_lookahead_tokens
        if others or not self.decode_batch.requests or self.needs.has_masks or self.needs.has_beams:
            return None
        for request in self.decode_batch.need_memory():
            if not self.admission.reserve(request, self.decode_batch.num_tokens(request)):
                return None
        return self._plan_decode([])

    def _plan_decode(self, tokens: list[int]) -> Plan:
        """Plan one token for every decoding request, after these input tokens."""
        batch = Batch(
            sequence_ids=self.decode_batch.ids.copy(),
            lengths=[1] * len(self.decode_batch),
            tokens=tokens,
            samplers=self.decode_batch.samplers.copy(),
            steps=self.decode_batch.steps.copy(),
            num_decoding=len(self.decode_batch),
        )
        plan = Plan(batch, self.decode_batch.requests.copy(), self.decode_batch.logs.copy(), len(self.decode_batch))
        plan.ending = self.decode_batch.advance()
        for request in plan.ending:
            self.ending[request.id] = request
        return plan

    def apply_output(self, plan: Plan, output: StepOutput) -> set[Request]:
        """Apply a computed step: append the sampled tokens to the logs, and open what was prefilled to sharing.

        Drop from `output.more` what comes after an end-of-sequence token or exceeds `max_tokens`. Return the requests
        that are over: ended meanwhile, by an end-of-sequence token, or by the last of several tokens.
        """
        self._most.note_step()
        for chunk in plan.chunks:
            request = chunk.request
            request.num_prefilled = chunk.end
            if request.id not in self.prefilling:
                self._pending_prefixes.discard(request)
        tokens = output.tokens
        if not (plan.has_ended or self.needs.has_beams or output.more) and self.end_ids.isdisjoint(tokens):
            for log, token in zip(plan.logs, tokens, strict=True):
                log.append(token)
            return set()
        over: set[Request] = set()
        for request, token in zip(plan.sampled, tokens, strict=True):
            if request.status is Status.FINISHED or token in request.end_ids:
                over.add(request)
            elif request.search is None:
                request.tokens.append(token)
        accepted = {row: self._accept(plan.sampled[row], more, over) for row, more in output.more.items()}
        output.more = {row: more for row, more in accepted.items() if more}
        return over

    def take_back(self, plan: Plan) -> bool:
        """Have the requests of a step for which memory was short wait again, and plan smaller steps, which grow later.

        False, and nothing changed, where no step can be smaller.
        """
        if plan.num_tokens == 1:
            return False
        self._most.shrink(plan.num_tokens)
        now = self._clock()
        for request in plan.requests():
            if request.status is not Status.FINISHED:
                self._preempt(request, now, is_memory_short=False)
        return True

    def _accept(self, request: Request, more: list[int], over: set[Request]) -> list[int]:
        """Append further tokens to a request's log; return those that count, an end-of-sequence token as the last."""
        if request in over or request.search is not None:
            return []
        end = next((place for place, token in enumerate(more) if token in request.end_ids), None)
        kept = more[: max(0, request.max_tokens - request.num_output_tokens)]
        kept = kept if end is None else kept[: end + 1]
        accepted = kept if end is None or len(kept) <= end else kept[:end]
        request.tokens += accepted
        if len(accepted) < len(kept) or request.num_output_tokens >= request.max_tokens:
            over.add(request)
        if request in self.decode_batch and self.decode_batch.skip(request, len(accepted)):
            self.decode_batch.remove(request)
            self.ending[request.id] = request
        return kept

    def reserve_drafts(self, request: Request, num_drafts: int) -> int:
        """Make room for the drafts of a decoding request, where there is memory; return for how many there is room."""
        self.admission.reserve(request, len(request.tokens) + num_drafts)
        return max(0, min(num_drafts, request.num_reserved - len(request.tokens)))

    # -- decoding -----------------------------------------------------------------------------------------------------

    def _reserve_for_decode(self, now: float) -> None:
        for request in self.decode_batch.need_memory():
            while request in self.decode_batch and not self.admission.reserve(
                request, self.decode_batch.num_tokens(request)
            ):
                self._yield_memory(request, now)

    def _yield_memory(self, request: Request, now: float) -> None:
        """Preempt a running request so that `request` can go on; it may be `request` itself."""
        running = [*self.decode_batch.requests, *self.prefilling.values()]
        if self.parked and len(running) == 1:
            self._put_parked_back()
            return
        if len(running) == 1:
            text = f"{len(request.tokens)} tokens need more KV memory than the engine has"
            self._fail(request, f"{text}; raise {' or '.join(self.limits.kv_settings)}")
            return
        open_to = [other for other in running if other.num_preemptions < _MAX_PREEMPTIONS]
        # When all were preempted often, all but the oldest yield, so that one always finishes.
        victim = self.queues.victim(open_to, now) if open_to else max(running, key=_age)
        self._preempt(victim, now)

    def _preempt_for_waiting(self, now: float) -> list[Request]:
        """Preempt running requests for waiting ones where a queue's policy asks for it; return those waiting ones."""
        if self.queues.num_waiting == 0 or self._may_admit() or not self.queues.preempting():
            return []
        is_full = self.num_running >= self._most.num_running
        running = [*self.decode_batch.requests, *self.prefilling.values()]
        found = choose_preemptions(
            self.queues,
            [one for one in running if one.num_preemptions < _MAX_PREEMPTIONS and one.search is None],
            now,
            can_start=lambda request: not self._pending_prefixes.has_more_for(request),
            pages_short=None if is_full else self.admission.pages_short,
        )
        for change in (changes := list(found)):
            for victim in change.victims:
                self._preempt(victim, now, is_memory_short=not is_full)
        return [change.preemptor for change in changes]

    def _preempt(self, request: Request, now: float, *, is_memory_short: bool = True) -> None:
        """Preempt a request: swap its KV out, or recompute it later when that is quicker.

        While memory is not short, its blocks stay cached, to be found again as a prefix.
        """
        self.queues.settle(request, now)
        if request.status is Status.DECODING:
            request.num_computed = len(request.tokens) - 1
        self._stop_running(request)
        is_swapped = is_memory_short and self._is_swap_quicker(request) and self.runner.swap_out(request.id)
        if is_swapped:
            self._swapped.add(request.id)
        else:
            self.runner.release(request.id)
            request.num_computed = request.num_prefilled = 0
        if self._become(request, Status.SWAPPED if is_swapped else Status.WAITING):
            request.num_preemptions += 1
            self.num_preemptions["swap" if is_swapped else "recompute"] += 1
            self.queues.add(request, now)

    def _is_swap_quicker(self, request: Request) -> bool:
        per_token = self.costs.prompt_token_seconds
        num_tokens = request.num_computed
        return per_token is not None and self.runner.swap_seconds(num_tokens) < num_tokens * per_token

    def _admit_swapped(self, request: Request) -> bool:
        """Swap a request in and go on; False when it has to wait. One whose swap file is lost is recomputed."""
        if self.num_running > 0 and not self.admission.has_room(request):
            self._shut_at = self.admission.spare_pages
            return False
        try:
            is_in = self.runner.swap_in(request.id, request.key)
        except OSError as error:
            logger.warning("request %d is computed again: %s", request.id, error)
            self._compute_again(request)
            return False
        if is_in:
            self._swapped.discard(request.id)
            return self._become(request, Status.PREFILLING)
        if self.num_running == 0:
            self._compute_again(request)
        else:
            self._shut_at = self.admission.spare_pages
        return False

    def _compute_again(self, request: Request) -> None:
        """Drop the swapped KV of a waiting request, to recompute it."""
        self._forget_swapped(request)
        request.num_computed = request.num_prefilled = 0
        self._become(request, Status.WAITING)

    def _forget_swapped(self, request: Request) -> None:
        if request.id in self._swapped:
            self._swapped.discard(request.id)
            self.runner.drop_swapped(request.id)

    # -- beams --------------------------------------------------------------------------------------------------------

    def park(self, request: Request) -> None:
        """Park a beam until the others of its search have their tokens; it keeps its KV memory."""
        if request in self.decode_batch:
            self.decode_batch.remove(request)
        else:
            del self.ending[request.id]
        self.parked[request.id] = request

    def fork_beam(self, parent: Request, child: Request) -> None:
        """Fork a beam from another; when that cannot be, the child is recomputed."""
        now = self._clock()
        can_run = parent.id in self.parked and self.num_running < self._most.num_running
        if not can_run or not self.runner.fork(parent.id, child.id):
            return
        self.queues.add(child, now)
        self.queues.start(child, now)
        child.num_reserved = -(-len(parent.tokens) // BLOCK_TOKENS) * BLOCK_TOKENS
        child.num_charged = len(parent.tokens)
        child.num_cached = len(parent.tokens)
        child.scheduled = now
        self._hold(child)
        del self.prefilling[child.id]
        self.parked[child.id] = child
        self._become(child, Status.DECODING)

    def go_on(self, request: Request, token: int) -> None:
        """Continue a beam with a token: it decodes on, or is enqueued to be recomputed when it was preempted."""
        request.tokens.append(token)
        if self.parked.pop(request.id, None) is not None:
            self.decode_batch.add(request, request.num_output_tokens)
        else:
            self.queues.add(request, self._clock())
            self._shut_at = None

    def _put_parked_back(self) -> None:
        """Preempt parked beams: they hold the memory that another request needs to go on."""
        now = self._clock()
        for request in list(self.parked.values()):
            self.queues.remove(request, now)
            self._stop_running(request)
            self.runner.release(request.id)
            self._become(request, Status.WAITING)
            request.num_computed = request.num_prefilled = 0
        self._shut_at = None

    # -- prompts ------------------------------------------------------------------------------------------------------

    def _plan_prompts(self, plan: Plan, now: float) -> None:
        budget = self.costs.prefill_budget(self._most.num_tokens - plan.num_decoding, plan.num_decoding)
        self._fork_followers(now)
        under_way = list(self.prefilling.values())
        if under_way:
            budget -= self._admit_some(plan, budget // 2, now, is_short=True)
        for request in under_way:
            budget -= self._take_chunk(plan, request, budget)
        self._admit_some(plan, budget, now, is_short=False)
        while not plan.num_decoding and not plan.chunks and self.prefilling:
            self._fork_followers(now)
            request = next(iter(self.prefilling.values()))
            if not self._take_chunk(plan, request, budget):
                self._yield_memory(request, now)
        for chunk in plan.chunks:
            if chunk.request.num_left == 0:
                self._start_decoding(plan, chunk.request)
        plan.add_chunks()
        plan.num_free = max(0, self._most.num_tokens - plan.num_tokens)

    def _fork_followers(self, now: float) -> None:
        """Fork parallel samples from prompts prefilled up to the last token, which each computes itself."""
        for request in list(self.prefilling.values()):
            if request.followers and request.num_prefilled >= request.num_prompt_tokens - 1:
                followers, request.followers = request.followers, []
                for follower in followers:
                    if follower.status is Status.FOLLOWING:
                        self._fork(request, follower, now)

    def _fork(self, request: Request, follower: Request, now: float) -> None:
        """Fork a parallel sample from the request that computed the prompt; enqueue it when there is no room."""
        is_first = request.num_prefilled == request.num_prompt_tokens - 1 > 0
        if not is_first or self.num_running >= self._most.num_running or not self.runner.fork(request.id, follower.id):
            self._wait(follower, now)
            return
        self.queues.add(follower, now)
        self.queues.start(follower, now)
        follower.num_computed = follower.num_prefilled = follower.num_charged = request.num_prefilled
        follower.num_reserved = -(-request.num_prefilled // BLOCK_TOKENS) * BLOCK_TOKENS
        follower.num_cached = request.num_prefilled
        follower.scheduled = now
        self._hold(follower)
        self._become(follower, Status.PREFILLING)

    def _let_wait(self, request: Request) -> None:
        """Enqueue the followers of a request that ended before its prompt was computed."""
        followers, request.followers = request.followers, []
        for follower in followers:
            if follower.status is Status.FOLLOWING:
                self._wait(follower, self._clock())

    def _wait(self, follower: Request, now: float) -> None:
        if self._become(follower, Status.WAITING):
            self.queues.add(follower, now)

    def _take_chunk(self, plan: Plan, request: Request, budget: int) -> int:
        """Add a prefill chunk, as many tokens as budget and memory allow; return how many."""
        wanted = min(request.num_left, budget)
        if request.followers:
            wanted = min(wanted, request.num_prompt_tokens - 1 - request.num_computed)
        num_tokens = self.admission.reserve_most(request, request.num_computed, wanted) if wanted > 0 else 0
        if num_tokens:
            request.num_computed += num_tokens
            plan.chunks.append(Chunk(request, num_tokens, request.num_computed))
        return num_tokens

    def _start_decoding(self, plan: Plan, request: Request) -> None:
        """Move a request whose prefill ends in this step to the decode batch."""
        if not self._become(request, Status.DECODING):
            plan.chunks = [chunk for chunk in plan.chunks if chunk.request is not request]
            return
        del self.prefilling[request.id]
        if request.num_output_tokens + 1 < request.max_tokens:
            self.decode_batch.add(request, request.num_output_tokens + 1)
        else:
            plan.ending.append(request)
            self.ending[request.id] = request

    def _admit_some(self, plan: Plan, budget: int, now: float, *, is_short: bool) -> int:
        """Admit waiting requests within the budget; with `is_short` only those whose prefill ends in this step."""
        used = 0
        while used < budget and self._may_admit():
            preemptors = (one for one in self._preemptors if one.status in {Status.WAITING, Status.SWAPPED})
            candidates = islice(chain(preemptors, self.queues.ordered(now)), _MAX_LOOKED_AT)
            request = next((one for one in candidates if not self._pending_prefixes.has_more_for(one)), None)
            if request is None or (is_short and request is self._long[0] and self._long[1] > budget - used):
                break
            num_tokens = self._admit(plan, request, budget - used, now, is_short=is_short)
            if num_tokens is None:
                break
            used += num_tokens
        return used

    def _may_admit(self) -> bool:
        """Return whether a request waits, a place is free, and memory has grown since admission last failed for it."""
        if self.queues.num_waiting == 0 or self.num_running >= self._most.num_running:
            return False
        return self._shut_at is None or self.num_running == 0 or self.admission.spare_pages > self._shut_at

    def _admit(self, plan: Plan, request: Request, budget: int, now: float, *, is_short: bool) -> int | None:
        """Admit a request if it fits; return its tokens in this step, None when it and those behind it have to wait."""
        if request.status is Status.SWAPPED:
            if self._admit_swapped(request):
                request.num_reserved = -(-request.num_computed // BLOCK_TOKENS) * BLOCK_TOKENS
                self._start(request, request.num_computed, now)
                return self._take_chunk(plan, request, budget)
            if request.status is Status.SWAPPED:
                return None
        try:
            if not self._fits(request, budget, is_short=is_short):
                return None
            is_resumed = request.num_preemptions > 0
            num_cached = self.runner.add(
                request.id, request.tokens, request.key, is_resumed=is_resumed, most_cached=request.most_cached
            )
        except Exception as error:
            logger.exception("request %d cannot be started", request.id)
            self.failed.append((request, str(error)))
            return None
        if not self._become(request, Status.PREFILLING):
            self.runner.release(request.id)
            return None
        request.num_reserved = -(-num_cached // BLOCK_TOKENS) * BLOCK_TOKENS
        self._start(request, num_cached, now)
        return self._take_chunk(plan, request, budget)

    def _fits(self, request: Request, budget: int, *, is_short: bool) -> bool:
        """Return whether a waiting request fits. A lookup only: it does not count as use for the eviction policy."""
        most_cached = request.most_cached
        usable = request.tokens if most_cached is None else request.tokens[: most_cached + 1]
        num_cached, num_taken = self.runner.lookup(usable, request.key)
        num_left = len(request.tokens) - num_cached
        if is_short and num_left > budget:
            self._long = (request, num_left)
            return False
        if self.num_running > 0 and not self.admission.has_room(request, num_cached, num_taken):
            self._shut_at = self.admission.spare_pages
            return False
        return True

    def _start(self, request: Request, num_cached: int, now: float) -> None:
        self._shut_at = None
        self.queues.start(request, now)
        self._hold(request)
        request.num_computed = request.num_prefilled = num_cached
        request.num_charged = max(request.num_charged, num_cached)
        if request.num_cached is None:
            request.num_cached = min(num_cached, request.num_prompt_tokens)
        if request.scheduled is None:
            request.scheduled = now
        self._pending_prefixes.add(request)

    def _hold(self, request: Request) -> None:
        """Give a request a place and KV memory, and let it prefill."""
        self.admission.hold(request)
        self.end_ids |= request.end_ids
        self.needs.add(request)
        self.prefilling[request.id] = request

    # -- leaving ------------------------------------------------------------------------------------------------------

    def _stop_running(self, request: Request) -> bool:
        """Take a request out of the running ones; False when it does not run. The caller releases its blocks."""
        if request in self.decode_batch:
            self.decode_batch.remove(request)
        elif not any(place.pop(request.id, None) for place in (self.prefilling, self.ending, self.parked)):
            return False
        self._pending_prefixes.discard(request)
        self.admission.drop(request)
        self.needs.remove(request)
        return True

    def _fail(self, request: Request, reason: str) -> None:
        self._stop_running(request)
        self.runner.release(request.id)
        self.failed.append((request, reason))

    def _become(self, request: Request, status: Status) -> bool:
        """Change a request's status; a wrong transition is our bug, and fails that request alone."""
        try:
            request.become(status)
        except TransitionError as error:
            logger.exception("a request is in the wrong state")
            self.failed.append((request, str(error)))
            return False
        return True


def _age(request: Request) -> tuple[float, int]:
    return request.arrived, request.id
