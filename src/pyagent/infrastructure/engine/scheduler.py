"""Decides which tokens the next step computes. Pure bookkeeping: it never computes, draws or waits.

One token budget holds for a step. Running requests come first, one token each when they decode and a chunk when they
still prefill, in order of admission; then waiting requests are admitted, in the order of their queues, while there is
budget, a place and KV memory. When memory runs out a running request, chosen by its queue's policy, is put back to
wait: its token log is kept and computed again later, so that its text does not change.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from pyagent.infrastructure.engine.batch import Runner
from pyagent.infrastructure.engine.queues import RequestQueues, make_queues
from pyagent.infrastructure.engine.request import RUNNING, Request, Status

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Work:
    """The next `num_tokens` tokens of a request."""

    request: Request
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Requests that run at once, tokens computed in a step, and requests that may wait."""

    max_num_seqs: int = 64
    token_budget: int = 1024
    max_num_waiting: int = 4096


class Scheduler:
    """Requests that wait and run, and the choice among them."""

    def __init__(
        self, runner: Runner, limits: SchedulerLimits | None = None, queues: RequestQueues | None = None
    ) -> None:
        self.runner = runner
        self.limits = limits or SchedulerLimits()
        self.queues = make_queues({}) if queues is None else queues
        self.running: list[Request] = []

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self.running) or self.queues.num_waiting > 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return self.queues.num_waiting

    def requests(self) -> list[Request]:
        """All that wait and run."""
        return [*self.queues.waiting, *self.running]

    def add(self, request: Request) -> None:
        """Let a request wait its turn."""
        self.queues.add(request, time.perf_counter())

    def remove(self, request: Request) -> None:
        """Forget a request, wherever it is, and give its memory back."""
        self.queues.remove(request, time.perf_counter())
        if request in self.running:
            self.running.remove(request)
            self.runner.release(request.id)

    def schedule(self) -> list[Work]:
        """The next step's work; empty when nothing can run."""
        now = time.perf_counter()
        works: list[Work] = []
        budget = self.limits.token_budget
        for request in list(self.running):
            if request.status not in RUNNING or budget == 0:
                continue
            num_tokens = min(request.num_left, budget)
            if self._make_room(request, request.num_computed + num_tokens, now):
                works.append(Work(request, num_tokens))
                budget -= num_tokens
        works = [work for work in works if work.request.status in RUNNING]
        while budget > 0 and self.queues.num_waiting and len(self.running) < self.limits.max_num_seqs:
            work = self._admit(budget, now)
            if work is None:
                break
            works.append(work)
            budget -= work.num_tokens
        return works

    def _make_room(self, request: Request, num_tokens: int, now: float) -> bool:
        """Room for a running request, at the cost of others; False when it had to yield itself."""
        while not self.runner.reserve(request.id, num_tokens):
            victim = self.queues.victim(self.running, now)
            self._preempt(victim, now)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request, now: float) -> None:
        self.running.remove(request)
        self.runner.release(request.id)
        self.queues.settle(request, now)
        request.become(Status.WAITING)
        request.num_computed = 0
        request.num_preemptions += 1
        self.queues.add(request, now)

    def _admit(self, budget: int, now: float) -> Work | None:
        """Start the first in line of those not about to find their prefix computed."""
        request = next((request for request in self.queues.ordered(now) if not self._is_prefix_coming(request)), None)
        if request is None:
            return None
        num_cached = self.runner.add(request.id, request.tokens, request.key)
        num_tokens = min(len(request.tokens) - num_cached, budget)
        # Room for the whole log and one block more, so that nobody is admitted only to be preempted at once.
        whole = len(request.tokens) + (BLOCK_TOKENS if self.running else 1)
        if not self.runner.reserve(request.id, whole):
            self.runner.release(request.id)
            return None
        request.become(Status.PREFILLING)
        self.queues.start(request, now)
        self.running.append(request)
        request.num_computed = num_cached
        request.num_charged = max(request.num_charged, num_cached)
        if request.num_cached is None:
            request.num_cached = num_cached
        return Work(request, num_tokens)

    def _is_prefix_coming(self, request: Request) -> bool:
        """Whether a running request is computing a block this one will need too: waiting a step is cheaper."""
        first = request.tokens[:BLOCK_TOKENS]
        if len(request.tokens) <= BLOCK_TOKENS:
            return False
        return any(
            other.num_computed < len(other.tokens) - 1
            and other.num_computed < _common_blocks(request.tokens, other.tokens)
            for other in self.running
            if other.tokens[:BLOCK_TOKENS] == first and other.key == request.key
        )


def _common_blocks(left: list[int], right: list[int]) -> int:
    """Tokens in the whole blocks both begin with, leaving at least one token of `left`."""
    limit = min(len(left) - 1, len(right))
    common = 0
    while common + BLOCK_TOKENS <= limit:
        block = slice(common, common + BLOCK_TOKENS)
        if left[block] != right[block]:
            break
        common += BLOCK_TOKENS
    return common
