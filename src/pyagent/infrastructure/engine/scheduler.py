"""Decides which tokens the next step computes. Pure bookkeeping: it never computes, draws or waits.

One token budget holds for a step. Running requests come first, one token each when they decode and a chunk when they
still prefill, in order of arrival; then waiting requests are admitted while there is budget, a place and KV memory.
When memory runs out the newest running request is put back to wait: its token log is kept and computed again later, so
that its text does not change.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pyagent.infrastructure.engine.batch import Runner
from pyagent.infrastructure.engine.request import Request, Status

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

    def __init__(self, runner: Runner, limits: SchedulerLimits | None = None) -> None:
        self.runner = runner
        self.limits = limits or SchedulerLimits()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Let a request wait its turn."""
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Forget a request, wherever it is, and give its memory back."""
        if request in self.running:
            self.running.remove(request)
            self.runner.release(request.id)
        elif request in self.waiting:
            self.waiting.remove(request)

    def schedule(self) -> list[Work]:
        """The next step's work; empty when nothing can run."""
        works: list[Work] = []
        budget = self.limits.token_budget
        for request in list(self.running):
            if request.status is not Status.RUNNING or budget == 0:
                continue
            num_tokens = min(len(request.tokens) - request.num_computed, budget)
            if self._make_room(request, request.num_computed + num_tokens):
                works.append(Work(request, num_tokens))
                budget -= num_tokens
        works = [work for work in works if work.request.status is Status.RUNNING]
        while budget > 0 and self.waiting and len(self.running) < self.limits.max_num_seqs:
            work = self._admit(budget)
            if work is None:
                break
            works.append(work)
            budget -= work.num_tokens
        return works

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Room for a running request, at the cost of newer ones; False when it had to yield itself."""
        while not self.runner.reserve(request.id, num_tokens):
            newest = self.running[-1]
            self._preempt(newest)
            if newest is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.runner.release(request.id)
        request.status = Status.WAITING
        request.num_computed = 0
        request.num_preemptions += 1
        self.waiting.appendleft(request)

    def _admit(self, budget: int) -> Work | None:
        """Start the request that waits longest among those not about to find their prefix computed."""
        request = next((request for request in self.waiting if not self._is_prefix_coming(request)), None)
        if request is None:
            return None
        num_cached = self.runner.add(request.id, request.tokens)
        num_tokens = min(len(request.tokens) - num_cached, budget)
        # Room for the whole log and one block more, so that nobody is admitted only to be preempted at once.
        whole = len(request.tokens) + (BLOCK_TOKENS if self.running else 1)
        if not self.runner.reserve(request.id, whole):
            self.runner.release(request.id)
            return None
        self.waiting.remove(request)
        self.running.append(request)
        request.status = Status.RUNNING
        request.num_computed = num_cached
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
            if other.tokens[:BLOCK_TOKENS] == first
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
