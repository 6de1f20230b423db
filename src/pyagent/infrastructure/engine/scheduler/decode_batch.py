"""The running decode batch in columns: each request samples one token a step, and a step's work is the columns.

A request that merely goes on costs nothing here. What comes up once in a while (another block of KV memory, the last
token) is filed under the tick, the number of the step, at which it comes up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pyagent.core.runners.batch import BLOCK_TOKENS

if TYPE_CHECKING:
    from pyagent._rust import SamplerState
    from pyagent.infrastructure.engine.request import Request

T = TypeVar("T")


class DecodeBatch:
    """Keep decoding requests in columns; the order changes when one leaves."""

    def __init__(self, num_lookahead_tokens: int = 0) -> None:
        """Reserve for each step `num_lookahead_tokens` beyond a request's next token."""
        self._num_lookahead = num_lookahead_tokens
        self.requests: list[Request] = []
        self.ids: list[int] = []
        self.logs: list[list[int]] = []
        self.samplers: list[SamplerState] = []
        self.steps: list[int] = []
        """The number of each request's next output token, tokens in flight counted as sampled."""
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
        """Add a request that decodes from the next tick on; its next output token is its `step`-th."""
        self._places[request.id] = len(self.requests)
        self.requests.append(request)
        self.ids.append(request.id)
        self.logs.append(request.tokens)
        self.samplers.append(request.sampler)
        self.steps.append(step)
        self._file(request, step)

    def skip(self, request: Request, num_tokens: int) -> bool:
        """Move a request on by tokens that a step accepted beyond its next one; True when it has no more to sample."""
        place = self._places[request.id]
        self.steps[place] += num_tokens
        if self.steps[place] >= request.max_tokens:
            return True
        self._file(request, self.steps[place])
        return False

    def _file(self, request: Request, step: int) -> None:
        """File a request under the ticks at which it needs memory and samples its last token."""
        stamp = self._stamps[request.id] = self._next_stamp
        self._next_stamp += 1
        room = request.num_reserved - (request.num_prompt_tokens + step + self._num_lookahead) + 1
        self._due[(self._tick + max(0, room)) % BLOCK_TOKENS].append((stamp, request))
        self._last.setdefault(self._tick + request.max_tokens - step - 1, []).append((stamp, request))

    def remove(self, request: Request) -> None:
        """Remove a request; the last one of the batch takes its place in the columns."""
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
        """Return the requests whose next token exceeds their reservation. Stays the same until `advance`."""
        bucket = self._due[self._tick % BLOCK_TOKENS]
        if not bucket:
            return []
        bucket[:] = [entry for entry in bucket if self._stamps.get(entry[1].id) == entry[0]]
        return [request for _, request in bucket if request.num_reserved < self.num_tokens(request)]

    def num_tokens(self, request: Request) -> int:
        """Return the tokens of a request's log, those in flight counted: what the next step needs reserved."""
        return request.num_prompt_tokens + self.steps[self._places[request.id]] + self._num_lookahead

    def advance(self) -> list[Request]:
        """Advance the batch by the step now planned; return the requests for which it is the last, which leave."""
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
