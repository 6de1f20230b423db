"""Several levels with feedback: short requests first without knowing which are short (FastServe, arXiv 2305.05920).

A level has a quantum of service, each `ratio` times the one before. A request joins at the first level whose quantum
covers its prompt (skip-join); one that used up its quantum goes down a level, exactly then. Every `boost_seconds` all
go to the first level, so that no request starves. Nothing of a level is taken while a higher one has something
waiting, and a running request is preempted by one waiting at a higher level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

import msgspec

from pyagent.core.scheduling import Queued, QueuePolicy
from pyagent.infrastructure.engine.scheduler.policies.options import checked
from pyagent.infrastructure.engine.scheduler.policies.sorted_queue import SortedQueue

Positive = Annotated[float, msgspec.Meta(gt=0)]


class MlfqOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Levels, the first one's quantum in output tokens, the factor to the next, a prompt token's weight, the boost."""

    levels: Annotated[int, msgspec.Meta(ge=1, le=64)] = 6
    quantum: Positive = 32.0
    ratio: Annotated[float, msgspec.Meta(gt=1)] = 2.0
    prompt_weight: Positive = 0.1
    boost_seconds: Positive = 10.0


@dataclass(slots=True)
class _LevelState:
    """A request's level, what it used of the quantum there, and when it came to the level."""

    level: int
    used: float
    since: float
    is_waiting: bool = True


class Mlfq:
    """Take from the highest level with waiting requests; within a level, first come, first served."""

    def __init__(self, options: MlfqOptions) -> None:
        self._options = options
        self._quanta = [options.quantum * options.ratio**level for level in range(options.levels)]
        self._levels = [SortedQueue() for _ in self._quanta]
        self._states: dict[int, _LevelState] = {}
        self._requests: dict[int, Queued] = {}
        self._next_boost: float | None = None

    def add(self, request: Queued, now: float) -> None:
        """Enqueue a waiting request; a preempted one keeps its level and its place there."""
        state = self._states.get(request.id)
        if state is None:
            state = self._states[request.id] = _LevelState(self._join_level(request), 0.0, now)
            self._requests[request.id] = request
        state.is_waiting = True
        self._levels[state.level].add((state.since,), request)
        self._next_boost = self._next_boost or now + self._options.boost_seconds

    def remove(self, request: Queued) -> None:
        """Remove a waiting request that starts, or is aborted."""
        state = self._states[request.id]
        self._levels[state.level].remove(request)
        state.is_waiting = False

    def ordered(self, now: float) -> Iterator[Queued]:
        """Waiting requests, higher levels first."""
        self._boost(now)
        return chain.from_iterable(self._levels)

    def served(self, request: Queued, num_prompt: int, num_output_tokens: int, now: float) -> None:
        """Count the service against the quantum; what exceeds it counts at the next level."""
        state = self._states[request.id]
        state.used += num_prompt * self._options.prompt_weight + num_output_tokens
        while state.level < len(self._quanta) - 1 and state.used >= self._quanta[state.level]:
            state.used -= self._quanta[state.level]
            state.level += 1
            state.since = now

    def finished(self, request: Queued, now: float) -> None:
        """Forget a request."""
        del self._states[request.id]
        del self._requests[request.id]

    def victim(self, running: Sequence[Queued], now: float) -> Queued:
        """Return the one at the lowest level; of several the last that came to it."""
        return max(running, key=lambda request: (self.level(request), self._states[request.id].since, request.id))

    def victim_for(self, waiting: Queued, running: Sequence[Queued], now: float) -> Queued | None:
        """Return the victim of these, if its level is lower."""
        victim = self.victim(running, now) if running else None
        return victim if victim is not None and self.level(victim) > self.level(waiting) else None

    def level(self, request: Queued) -> int:
        """Return the request's level, 0 the highest."""
        return self._states[request.id].level

    def _join_level(self, request: Queued) -> int:
        prefill = request.num_prompt_tokens * self._options.prompt_weight
        return next((level for level, quantum in enumerate(self._quanta) if quantum >= prefill), len(self._quanta) - 1)

    def _boost(self, now: float) -> None:
        """Move all to the first level, the longest waiting in front, when the boost is due."""
        if self._next_boost is None or now < self._next_boost:
            return
        self._next_boost = now + self._options.boost_seconds
        self._levels = [SortedQueue() for _ in self._quanta]
        for request_id, state in self._states.items():
            request = self._requests[request_id]
            state.level, state.used, state.since = 0, 0.0, request.arrived
            if state.is_waiting:
                self._levels[0].add((state.since,), request)


def make_mlfq(options: Mapping[str, object]) -> QueuePolicy:
    """Several levels with feedback and ageing."""
    return Mlfq(checked(MlfqOptions, "mlfq", options))
