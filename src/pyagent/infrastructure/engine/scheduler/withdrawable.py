"""Which requests of the queues may be given back: none that has begun, and none whose caller cannot ask elsewhere."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from pyagent.core.withdrawal import Withdrawal
from pyagent.infrastructure.engine.request import Status

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.request import Request
    from pyagent.infrastructure.engine.scheduler.queues import RequestQueues


def withdrawable(queues: RequestQueues, wanted: Withdrawal, now: float) -> list[Request]:
    """Return the waiting requests to give back, in the order in which they would begin."""
    found = (request for request in queues.ordered(now) if _may_go(request, wanted, now))
    return list(dict.fromkeys(islice(found, max(0, wanted.at_most))))  # some come twice where a policy fails midway


def _may_go(request: Request, wanted: Withdrawal, now: float) -> bool:
    if not request.is_movable or request.search is not None or not all(map(_is_untouched, request.answers)):
        return False
    has_waited = now - request.arrived >= wanted.waited_seconds
    return has_waited and (bool(request.origin.node) or not wanted.of_peers)


def _is_untouched(request: Request) -> bool:
    """Whether nothing of an answer was computed, by this engine or by one whose token log it goes on from."""
    is_waiting = request.status in {Status.WAITING, Status.FOLLOWING}
    return is_waiting and request.scheduled is None and request.num_output_tokens == 0
