"""Which waiting requests take the seats of running ones, where a queue's policy wants that: a choice, nothing is done.

A seat is a place in the steps, and the memory that goes with it. Requests of one class compete; what one class has
running another does not take. Nobody loses a seat unless whoever takes it can then start, as far as can be foreseen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import NamedTuple

from pyagent.infrastructure.engine.request import Request
from pyagent.infrastructure.engine.scheduler.queues import ClassQueue, RequestQueues

_MAX_LOOKED_AT = 64
"""Waiting requests of a class looked at in a step."""


class Preemption(NamedTuple):
    """A waiting request, and those that make room for it."""

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
    """The changes of this step, among the running requests `open_to` it and the waiting ones that `can_start`.

    Where memory is what lacks, `pages_short` says how much of it a waiting request lacks, and one takes seats in a
    step; else as many do as there are seats of others to take.
    """
    for queue in queues.preempting():
        seats = [request for request in open_to if request.id in queue.running]
        for preemptor in [request for request in islice(queue.ordered(now), _MAX_LOOKED_AT) if can_start(request)]:
            victims = _victims(queue, preemptor, seats, now, 0 if pages_short is None else pages_short(preemptor))
            if not victims:
                break
            yield Preemption(preemptor, victims)
            if pages_short is not None:
                return


def _victims(queue: ClassQueue, preemptor: Request, seats: list[Request], now: float, num_pages: int) -> list[Request]:
    """Who of `seats` goes, so that a seat and so many pages are free, taken out of `seats`; nobody when too few can."""
    victims: list[Request] = []
    while seats and (not victims or num_pages > 0):
        victim = queue.victim_for(preemptor, seats, now)
        if victim is None:
            return []
        seats.remove(victim)
        victims.append(victim)
        num_pages -= victim.num_expected
    return victims if num_pages <= 0 else []
