"""How many of a node's waiting requests idle nodes take: a pure function of what the nodes measured.

The waiting requests are divided so that all nodes would be done at the same time, each peer later by what a move to it
costs: the way, a prompt that is not computed there, and an answer that takes longer there. A peer gets no more at once
than it can begin before its next load: what is moved too early would have to move again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

_USUAL_RATE = 1.0
"""Requests a second of nodes that have not answered any."""
_HEARD_SECONDS = 0.5
"""After so long a peer's next load is there."""
_MOST = 256
_LEAST_SECONDS = 0.02
"""What a move costs at least: two hops and the work for them."""
_NEVER_SECONDS = 1e9


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """A model's waiting requests here, how many of them are answered a second, and how long their prompts are.

    `answer_seconds` is how long an answer takes once it has begun.
    """

    num_waiting: int
    requests_per_second: float = 0.0
    answer_seconds: float = 0.0
    mean_prompt_tokens: float = 0.0


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has the model and no queue: `num_free` requests would begin at once."""

    id: str
    num_free: int
    requests_per_second: float = 0.0
    answer_seconds: float = 0.0
    prefill_tokens_per_second: float = 0.0
    round_trip_seconds: float = 0.0


def shares(backlog: Backlog, idle: Sequence[Idle]) -> dict[str, int]:
    """Return how many requests to give to each idle node, the nearest first; those that get none are left out."""
    own = _sane(backlog.requests_per_second or _usual(idle))
    costs = {node.id: move_seconds(backlog, node) + _slower_seconds(backlog, node) for node in idle}
    idle = sorted(idle, key=lambda node: costs[node.id])
    rates = {node.id: _sane(node.requests_per_second or own) for node in idle}
    horizon = _seconds_until_done(backlog.num_waiting, own, [(rates[node.id], costs[node.id]) for node in idle])
    left, given = backlog.num_waiting, dict[str, int]()
    for node in idle:
        rate = rates[node.id]
        fair = math.ceil(max(0.0, rate * (horizon - costs[node.id])))  # up: what waits here waits for a place
        soon = node.num_free + int(rate * _HEARD_SECONDS)
        if (count := min(fair, soon, left, _MOST)) > 0 and node.num_free > 0:
            given[node.id] = count
            left -= count
    return given


def move_seconds(backlog: Backlog, node: Idle) -> float:
    """Return what moving a request costs: the way there and back, and a prompt that may be warm here and not there."""
    rate = node.prefill_tokens_per_second
    cold = backlog.mean_prompt_tokens / rate if rate else 0.0
    return min(max(_LEAST_SECONDS, 2 * node.round_trip_seconds) + cold, _NEVER_SECONDS)


def _slower_seconds(backlog: Backlog, node: Idle) -> float:
    """Return by how much an answer ends later because the node is slower than this one."""
    is_known = backlog.answer_seconds and node.answer_seconds
    return max(0.0, node.answer_seconds - backlog.answer_seconds) if is_known else 0.0


def _seconds_until_done(num_requests: int, own: float, others: Sequence[tuple[float, float]]) -> float:
    """Return when all would be done that share so many requests: rates, and the seconds by which each begins late.

    `others` come in the order of their delays; one whose delay is past the end takes no part.
    """
    rate, head_start = own, 0.0
    end = num_requests / own
    for other, delay in others:
        if delay >= end:
            break
        rate += other
        head_start += other * delay
        end = (num_requests + head_start) / rate
    return end


def _usual(idle: Sequence[Idle]) -> float:
    measured = [node.requests_per_second for node in idle if node.requests_per_second]
    return sum(measured) / len(measured) if measured else _USUAL_RATE


def _sane(rate: float) -> float:
    """Return a rate to reckon with: what nodes tell of themselves may be next to nothing, or without end."""
    return min(max(rate, 1e-3), 1e6)
