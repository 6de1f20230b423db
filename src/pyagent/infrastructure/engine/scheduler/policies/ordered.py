"""Policies that are an order by one fixed number: first come, priority with ageing, earliest deadline.

The number of a request never changes, and of later requests it grows without bound, so that no request starves.
The last in the order yields first. With `preempts` a waiting request also preempts a running one that it outranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from pyagent.core.scheduling import Queued, QueuePolicy
from pyagent.infrastructure.engine.scheduler.policies.options import checked
from pyagent.infrastructure.engine.scheduler.policies.sorted_queue import SortedQueue

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Ordered:
    """Takes requests by `rank`, lowest first."""

    def __init__(self, rank: Callable[[Queued], float]) -> None:
        self._rank = rank
        self._waiting = SortedQueue()

    def add(self, request: Queued, now: float) -> None:
        """Enqueue a waiting request."""
        self._waiting.add(self._key(request), request)

    def remove(self, request: Queued) -> None:
        """Remove a waiting request that starts, or is aborted."""
        self._waiting.remove(request)

    def ordered(self, now: float) -> Iterator[Queued]:
        """Waiting requests by rank, then by arrival."""
        return iter(self._waiting)

    def served(self, request: Queued, num_prompt: int, num_output_tokens: int, now: float) -> None:
        """Changes nothing: a rank does not depend on service."""

    def finished(self, request: Queued, now: float) -> None:
        """Changes nothing."""

    def victim(self, running: Sequence[Queued], now: float) -> Queued:
        """Return the last by rank."""
        return max(running, key=lambda request: (self._key(request), request.id))

    def _key(self, request: Queued) -> tuple[float, float]:
        return self._rank(request), request.arrived


class Urgent(Ordered):
    """Let a waiting request preempt the last by rank of those it outranks."""

    def __init__(self, rank: Callable[[Queued], float], outranks: Callable[[Queued, Queued], bool]) -> None:
        """`outranks` says it of a waiting request and a running one, whose rank must be behind."""
        super().__init__(rank)
        self._outranks = outranks

    def victim_for(self, waiting: Queued, running: Sequence[Queued], now: float) -> Queued | None:
        """Return the last by rank of those outranked."""
        behind = [request for request in running if self._outranks(waiting, request)]
        return self.victim(behind, now) if behind else None


class NoOptions(msgspec.Struct, forbid_unknown_fields=True):
    """First come, first served, has nothing to choose."""


class PriorityOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`ageing_seconds` of waiting make up for one step of priority. `preempts`: of lower ones that have not."""

    ageing_seconds: Positive = 30.0
    preempts: bool = False


class DeadlineOptions(msgspec.Struct, forbid_unknown_fields=True):
    """A request without a deadline is due `default_seconds` after its arrival. `preempts`: of those due later."""

    default_seconds: Positive = 60.0
    preempts: bool = False


def make_fcfs(options: Mapping[str, object]) -> QueuePolicy:
    """First come, first served."""
    checked(NoOptions, "fcfs", options)
    return Ordered(lambda request: request.arrived)


def make_priority(options: Mapping[str, object]) -> QueuePolicy:
    """Lowest priority number first; waiting counts too, so that a flood of urgent requests starves none."""
    wanted = checked(PriorityOptions, "priority", options)
    ageing = wanted.ageing_seconds

    def rank(request: Queued) -> float:
        return request.arrived + request.priority * ageing

    def outranks(waiting: Queued, running: Queued) -> bool:
        return waiting.priority < running.priority and rank(waiting) < rank(running)

    return Urgent(rank, outranks) if wanted.preempts else Ordered(rank)


def make_deadline(options: Mapping[str, object]) -> QueuePolicy:
    """Earliest deadline first."""
    wanted = checked(DeadlineOptions, "deadline", options)

    def due(request: Queued) -> float:
        return request.arrived + wanted.default_seconds if request.deadline is None else request.deadline

    def outranks(waiting: Queued, running: Queued) -> bool:
        return due(waiting) < due(running)

    return Urgent(due, outranks) if wanted.preempts else Ordered(due)
