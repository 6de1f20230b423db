"""How urgent work is: what the engine's queues are told, and who is first where more want to go on than may."""

from __future__ import annotations

import msgspec

from pyagent.core.resilience.deadline import Deadline

Rank = tuple[float, float]
"""The lower goes first: by priority, then by deadline."""
FIRST_COME: Rank = (0.0, float("inf"))


class Urgency(msgspec.Struct, frozen=True):
    """A priority, lower first, and the request class (a queue of the engine's settings) of requests to models."""

    priority: int = 0
    request_class: str = ""

    def within(self, priority: int | None, request_class: str | None) -> Urgency:
        """Return this, but for what is given."""
        return Urgency(
            self.priority if priority is None else priority,
            self.request_class if request_class is None else request_class,
        )

    def rank(self, deadline: Deadline) -> Rank:
        """Return the place in a queue."""
        return (self.priority, deadline.at)


NOT_URGENT = Urgency()
