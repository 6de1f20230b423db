"""The requests that decode: each draws one token each step, so that a step's work is their columns as they stand.

A lane is a request's place in the columns. Nothing is done for a lane that only goes on: what comes up once in a while
(another block of memory, the last draw) is filed under the tick, the count of steps, at which it comes up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pyagent.infrastructure.engine.runners.batch import BLOCK_TOKENS

if TYPE_CHECKING:
    from pyagent._rust import SamplerState
    from pyagent.infrastructure.engine.request import Request

T = TypeVar("T")


class DecodeBatch:
    """Decoding requests in columns; the order changes when one leaves."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.ids: list[int] = []
        self.logs: list[list[int]] = []
        self.samplers: list[SamplerState] = []
        self.steps: list[int] = []
        """The number of each lane's next draw, draws under way counted as made."""
        self._tick = 0
        self._places: dict[int, int] = {}
        self._stamps: dict[int, int] = {}
        self._next_stamp = 0
        self._due: list[list[tuple[int, Request]]] = [[] for _ in range(BLOCK_TOKENS)]
        self._last: dict[int, list[tuple[int, Request]]] = {}

    def __len__(self) -> int:
        return len(self.requests)

    def __contains__(self, request: Request) -> bool:
        return request.id in self._places

    def add(self, request: Request, step: int) -> None:
        """A request decodes from the next tick on; its next draw is its `step`-th."""
        self._places[request.id] = len(self.requests)
        self.requests.append(request)
        self.ids.append(request.id)
        self.logs.append(request.tokens)
        self.samplers.append(request.sampler)
        self.steps.append(step)
        stamp = self._stamps[request.id] = self._next_stamp
        self._next_stamp += 1
        room = request.num_reserved - (request.num_prompt_tokens + step) + 1
        self._due[(self._tick + max(0, room)) % BLOCK_TOKENS].append((stamp, request))
        self._last.setdefault(self._tick + request.max_tokens - step - 1, []).append((stamp, request))

    def remove(self, request: Request) -> None:
        """A request leaves; the last lane takes its place."""
        place = self._places.pop(request.id)
        del self._stamps[request.id]
        last = self.requests[-1]
        _fill_with_last(self.requests, place)
        _fill_with_last(self.ids, place)
        _fill_with_last(self.logs, place)
        _fill_with_last(self.samplers, place)
        _fill_with_last(self.steps, place)
        if last is not request:
            self._places[last.id] = place

    def need_memory(self) -> list[Request]:
        """The lanes whose next token goes past what is reserved for them. Stays the same until `advance`."""
        bucket = self._due[self._tick % BLOCK_TOKENS]
        if not bucket:
            return []
        bucket[:] = [entry for entry in bucket if self._stamps.get(entry[1].id) == entry[0]]
        return [request for _, request in bucket if request.num_reserved < self.num_tokens(request)]

    def num_tokens(self, request: Request) -> int:
        """Tokens of a lane's log, draws under way counted: what must be reserved for the next step."""
        return request.num_prompt_tokens + self.steps[self._places[request.id]]

    def advance(self) -> list[Request]:
        """All lanes draw in the step now planned; returns those for whom it is the last draw, who leave."""
        self.steps = [step + 1 for step in self.steps]
        ending = [request for stamp, request in self._last.pop(self._tick, ()) if self._stamps.get(request.id) == stamp]
        for request in ending:
            self.remove(request)
        self._tick += 1
        return ending


def _fill_with_last(column: list[T], place: int) -> None:
    last = column.pop()
    if place < len(column):
        column[place] = last
