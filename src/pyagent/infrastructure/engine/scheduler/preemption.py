"""Choose which running requests waiting ones preempt, where a queue's policy asks for it. Changes nothing.

A request preempts within its own request class only. No request is preempted unless the one that takes its place in the
batch, and its KV memory, can then start as far as can be foreseen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import NamedTuple

from pyagent.infrastructure.engine.request import Request
from pyagent.infrastructure.engine.scheduler.queues import ClassQueue, RequestQueues

_MAX_LOOKED_AT = 64
"""Waiting requests of a class considered in a step."""


class Preemption(NamedTuple):
    """A waiting request, and the running ones that make room for it."""

    preemptor: Request
    victims: list[Request]


def choose_preemptions(
    queues: RequestQueues,
    open_to: Collection[Request],
    now: float,
    *,
    can_start: Callable[[Request], bool],
    pages_short: Callable[[Request], int] | None,
) -> Iterable[Preemption]:
    """Yield this step's preemptions, among the running requests `open_to` it and the waiting ones that `can_start`.

    When KV memory is short, `pages_short` returns how many pages a waiting request lacks, and at most one request
    preempts in a step; otherwise as many do as there are running requests to preempt.
    """
    for queue in queues.preempting():
        candidates = [request for request in open_to if request.id in queue.running]
        for preemptor in [request for request in islice(queue.ordered(now), _MAX_LOOKED_AT) if can_start(request)]:
            victims = _victims(queue, preemptor, candidates, now, 0 if pages_short is None else pages_short(preemptor))
            if not victims:
                break
            yield Preemption(preemptor, victims)
            if pages_short is not None:
                return


def _victims(
    queue: ClassQueue, preemptor: Request, candidates: list[Request], now: float, num_pages: int
) -> list[Request]:
    """Take the requests to preempt out of `candidates`, to free a place and `num_pages`; empty when that cannot be."""
    victims: list[Request] = []
    while candidates and (not victims or num_pages > 0):
        victim = queue.victim_for(preemptor, candidates, now)
        if victim is None:
            return []
        candidates.remove(victim)
        victims.append(victim)
        num_pages -= victim.num_expected
    return victims if num_pages <= 0 else []
