"""Fair shares between clients, runs or agents: the Virtual Token Counter (Sheng et al. 2024, arXiv 2401.00588).

Each client has a counter of the tokens it was served, prompt and output tokens weighted; the client with the lowest is
next. A client that comes back after a pause is lifted to the lowest of those waiting, so that a pause earns no credit.
While two clients both have requests waiting, what they were served differs by at most
2 * max(prompt_weight * longest prompt, output_weight * tokens that fit in KV memory).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from pyagent.core.scheduling import Queued, QueuePolicy
from pyagent.infrastructure.engine.scheduler.policies.options import checked
from pyagent.infrastructure.engine.scheduler.policies.sorted_queue import SortedQueue

_MAX_IDLE_CLIENTS = 4096
Positive = Annotated[float, msgspec.Meta(gt=0)]


class FairOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Between whom it is fair, and the weights of prompt and output tokens (the paper's 1 and 2).

    `shares` gives some names more (2.0: twice) or less than the 1.0 that everybody has.
    """

    per: Literal["client", "run", "agent"] = "client"
    prompt_weight: Positive = 1.0
    output_weight: Positive = 2.0
    shares: dict[str, Positive] = {}


class Fair:
    """Take the oldest request of the owner that was served least."""

    def __init__(self, options: FairOptions) -> None:
        self._options = options
        self._counters: dict[str, float] = {}
        self._waiting: dict[str, SortedQueue] = {}
        self._order: list[tuple[float, int, str]] = []  # of those who have requests waiting; ties by who waits longer
        self._since: dict[str, int] = {}
        self._num_come = 0
        self._last_left = ""

    def add(self, request: Queued, now: float) -> None:
        """Enqueue a waiting request; lift its client when it had none waiting."""
        name = self._name(request)
        if name not in self._waiting:
            self._lift(name)
            self._waiting[name] = SortedQueue()
            self._num_come += 1
            self._since[name] = self._num_come
            insort(self._order, self._place(name))
        self._waiting[name].add((request.arrived,), request)

    def remove(self, request: Queued) -> None:
        """Remove a waiting request that starts, or is aborted."""
        name = self._name(request)
        self._waiting[name].remove(request)
        if not self._waiting[name]:
            del self._order[bisect_left(self._order, self._place(name))]
            del self._waiting[name], self._since[name]
            self._last_left = name
            self._forget_idle()

    def ordered(self, now: float) -> Iterator[Queued]:
        """Waiting requests: all of the client served least, then of the next."""
        for _, _, name in self._order:
            yield from self._waiting[name]

    def served(self, request: Queued, num_prompt: int, num_output_tokens: int, now: float) -> None:
        """Add to the client's counter."""
        name = self._name(request)
        options = self._options
        cost = num_prompt * options.prompt_weight + num_output_tokens * options.output_weight
        is_waiting = name in self._waiting
        if is_waiting:
            del self._order[bisect_left(self._order, self._place(name))]
        self._counters[name] = self._counters.get(name, 0.0) + cost / options.shares.get(name, 1.0)
        if is_waiting:
            insort(self._order, self._place(name))

    def finished(self, request: Queued, now: float) -> None:
        """Changes nothing: what was served stays served."""

    def victim(self, running: Sequence[Queued], now: float) -> Queued:
        """Return the newest request of the client that was served most."""
        return max(running, key=lambda request: (self.counter(request), request.arrived, request.id))

    def counter(self, request: Queued) -> float:
        """Return what the request's client was served, in weighted tokens."""
        return self._counters.get(self._name(request), 0.0)

    def _place(self, name: str) -> tuple[float, int, str]:
        return self._counters[name], self._since[name], name

    def _name(self, request: Queued) -> str:
        origin = request.origin
        return {"client": origin.client, "run": origin.run, "agent": origin.agent}[self._options.per]

    def _lift(self, name: str) -> None:
        lowest = self._order[0][0] if self._order else self._counters.get(self._last_left, 0.0)
        self._counters[name] = max(self._counters.get(name, 0.0), lowest)

    def _forget_idle(self) -> None:
        """Names come from outside; a client forgotten is one that never came."""
        if len(self._counters) > len(self._waiting) + 2 * _MAX_IDLE_CLIENTS:
            idle = [name for name in self._counters if name not in self._waiting and name != self._last_left]
            for name in idle[:_MAX_IDLE_CLIENTS]:
                del self._counters[name]


def make_fair(options: Mapping[str, object]) -> QueuePolicy:
    """Fair shares between clients, runs or agents."""
    return Fair(checked(FairOptions, "fair", options))
