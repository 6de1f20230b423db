"""The requests of an engine's process, and which of them killed it.

Decides what to send and what to fail; neither sends nor waits. While no process has died, requests are sent as they
arrive. When one dies, every request that was sent is a suspect: the next process gets it alone, for a trial that ends
after a number of new outputs; then all go on together. A request that kills its process alone is tried twice, then
failed. One that kills after its trial is caught by its next trial, which is longer. Invariants: until it ends, a
request is in exactly one of three tables (sent, suspect, waiting); a request on trial is the only one sent.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from pyagent.core.errors import PyAgentError
from pyagent.core.messages import ChatDelta, ChatRequest, ToolCallDelta
from pyagent.infrastructure.engine.request import PastTurn, TokenLog
from pyagent.infrastructure.engine.subprocess.protocol import Outputs, Submit

MAX_TRIALS = 2
"""Processes that may die with the same request alone."""
MAX_DEATHS = 5
"""Processes that may die with a request among others."""
TRIAL_OUTPUTS = 8
"""Outputs of a request that end its first trial; each later one lasts four times as long."""


@dataclass(slots=True)
class _Amount:
    """How much of an answer: characters of content, reasoning and arguments, calls, log probabilities, ids."""

    content: int = 0
    reasoning: int = 0
    calls: int = 0
    arguments: int = 0
    logprobs: int = 0
    activations: int = 0
    prompt_logprobs: int = 0
    token_ids: int = 0
    prompt_token_ids: int = 0

    def add(self, delta: ChatDelta) -> None:
        """Count a delta."""
        self.content += len(delta.content)
        self.reasoning += len(delta.reasoning)
        self.calls += sum(bool(piece.id) for piece in delta.tool_calls)
        self.arguments += sum(len(piece.arguments) for piece in delta.tool_calls)
        self.logprobs += len(delta.logprobs)
        self.activations += len(delta.activations)
        self.prompt_logprobs += len(delta.prompt_logprobs)
        self.token_ids += len(delta.token_ids)
        self.prompt_token_ids += len(delta.prompt_token_ids)

    def rest_of(self, delta: ChatDelta) -> ChatDelta:
        """Take a delta off; return what goes beyond the amount."""
        pieces = [self._rest_of_piece(piece) for piece in delta.tool_calls]
        return msgspec.structs.replace(
            delta,
            content=delta.content[self._taken("content", len(delta.content)) :],
            reasoning=delta.reasoning[self._taken("reasoning", len(delta.reasoning)) :],
            tool_calls=[piece for piece in pieces if piece.id or piece.arguments],
            logprobs=delta.logprobs[self._taken("logprobs", len(delta.logprobs)) :],
            activations=delta.activations[self._taken("activations", len(delta.activations)) :],
            prompt_logprobs=delta.prompt_logprobs[self._taken("prompt_logprobs", len(delta.prompt_logprobs)) :],
            token_ids=delta.token_ids[self._taken("token_ids", len(delta.token_ids)) :],
            prompt_token_ids=delta.prompt_token_ids[self._taken("prompt_token_ids", len(delta.prompt_token_ids)) :],
        )

    def _rest_of_piece(self, piece: ToolCallDelta) -> ToolCallDelta:
        arguments = piece.arguments[self._taken("arguments", len(piece.arguments)) :]
        if piece.id and self._taken("calls", 1):
            return ToolCallDelta(index=piece.index, arguments=arguments)
        return msgspec.structs.replace(piece, arguments=arguments)

    def _taken(self, name: str, num_there: int) -> int:
        taken = min(num_there, getattr(self, name))
        setattr(self, name, getattr(self, name) - taken)
        return taken


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """A request, with all that it takes to submit it again and to deliver no output twice.

    A single answer goes on from its token log. Several answers (and beam search) are computed anew, which gives the
    same text, and what was delivered of each is skipped. `emit` gets the deltas, then None or the error at the end.
    `wire_id` is its id in the process it was sent to last, a process of `copy`. `is_over` when its reader has left.
    """

    id: int
    request: ChatRequest
    emit: Callable[[ChatDelta | PyAgentError | None], None]
    arrived_at: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None
    prompt: bytes = b""
    tokens: list[int] = field(default_factory=list[int])
    wire_id: int = 0
    copy: int | None = None
    num_tokens_left: int = 0
    is_over: bool = False
    num_trials: int = 0
    num_deaths: int = 0
    _pieces: list[str] = field(default_factory=list[str])
    _ended: set[int] = field(default_factory=set[int])
    _delivered: defaultdict[int, _Amount] = field(default_factory=lambda: defaultdict(_Amount))
    _to_skip: defaultdict[int, _Amount] = field(default_factory=lambda: defaultdict(_Amount))

    @property
    def is_single(self) -> bool:
        """Whether it has one answer, which can go on from its token log."""
        return self.request.n == 1 and self.request.best_of in {None, 1} and self.request.beam is None

    def submission(self, past: PastTurn | None = None) -> Submit:
        """Return the message that asks for the rest of the answer.

        `past` is the conversation's last turn, when another process computed it.
        """
        now, request = time.monotonic(), self.request
        if request.timeout_seconds is not None:
            left = max(0.0, request.timeout_seconds - (now - self.arrived_at))
            request = msgspec.structs.replace(request, timeout_seconds=left)
        self._to_skip.clear()
        self._to_skip.update({index: replace(amount) for index, amount in self._delivered.items()})
        if not self.prompt:
            return Submit(self.wire_id, request, past=past)
        first = None if self.first_token_at is None else self.first_token_at - self.arrived_at
        return Submit(self.wire_id, request, TokenLog(self.prompt, tuple(self.tokens), now - self.arrived_at, first))

    def apply(self, outputs: Outputs) -> ChatDelta | None:
        """Record outputs; return what of them was not delivered before."""
        self.first_token_at = self.first_token_at or time.monotonic()
        self.prompt = self.prompt or outputs.prompt
        delta = outputs.delta
        if self.is_single:
            self.tokens += outputs.tokens
            self._pieces.append(delta.content)
        else:
            delta = self._undelivered(delta)
        self._delivered[delta.index].add(delta)
        has_news = delta.content or delta.reasoning or delta.tool_calls or delta.logprobs or delta.prompt_logprobs
        return delta if has_news or delta.token_ids or delta.finish_reason or delta.usage else None

    @property
    def text(self) -> str:
        """The text delivered of a single answer."""
        return "".join(self._pieces)

    def _undelivered(self, delta: ChatDelta) -> ChatDelta:
        index = delta.index
        rest = self._to_skip[index].rest_of(delta)
        reason = None if index in self._ended else delta.finish_reason
        if delta.finish_reason:
            self._ended.add(index)
        return msgspec.structs.replace(rest, finish_reason=reason)


class InFlight:
    """The requests of one engine, whatever becomes of its processes."""

    def __init__(self) -> None:
        self._sent: dict[int, InFlightRequest] = {}  # by wire_id
        self._suspects: dict[int, InFlightRequest] = {}
        self._waiting: dict[int, InFlightRequest] = {}
        self._on_trial: InFlightRequest | None = None
        self._num_trial_outputs = 0
        self._wire_ids = itertools.count(1)

    def __len__(self) -> int:
        return len(self._sent) + len(self._suspects) + len(self._waiting)

    def add(self, request: InFlightRequest) -> None:
        """Add a new request; `next_to_send` returns it in its turn."""
        self._waiting[request.id] = request

    def sent(self, wire_id: int) -> InFlightRequest | None:
        """Return the request that the process knows by this id."""
        return self._sent.get(wire_id)

    def next_to_send(self) -> list[InFlightRequest]:
        """Return what to send now: one suspect while there are any, and none during its trial; else everything."""
        if self._on_trial is not None:
            return []
        if self._suspects:
            self._on_trial = chosen = self._suspects.pop(next(iter(self._suspects)))
            self._num_trial_outputs = 0
            return [self._send(chosen)]
        everything, self._waiting = self._waiting, {}
        return [self._send(request) for request in everything.values()]

    def _send(self, request: InFlightRequest) -> InFlightRequest:
        # A new id each time: outputs of the request's earlier submission may still be on their way.
        request.wire_id = next(self._wire_ids)
        self._sent[request.wire_id] = request
        return request

    def count_outputs(self, request: InFlightRequest) -> bool:
        """Count outputs of a request; return True when they end its trial: then the process is to abort it."""
        if request is not self._on_trial:
            return False
        self._num_trial_outputs += 1
        return self._num_trial_outputs == TRIAL_OUTPUTS * 4 ** max(0, request.num_deaths - 1)

    def end_trial(self, request: InFlightRequest) -> None:
        """Note that the process aborted the request: its trial is passed, a death from now on is another's."""
        if request is self._on_trial:
            self._on_trial = None
            request.num_trials = 0
            del self._sent[request.wire_id]
            self._waiting[request.id] = request

    def remove(self, request: InFlightRequest) -> bool:
        """Remove a request that is complete, failed or aborted; return whether the process had it."""
        self._suspects.pop(request.id, None)
        self._waiting.pop(request.id, None)
        if request is self._on_trial:
            self._on_trial = None
        if self._sent.get(request.wire_id) is not request:  # it went on elsewhere
            return False
        del self._sent[request.wire_id]
        return True

    def take_movable(self) -> list[InFlightRequest]:
        """Remove and return what may go on at another engine: what waits, or was in the death of one process only."""
        suspects = [one for one in self._suspects.values() if one.num_deaths == 1 and not one.num_trials]
        movable = [*suspects, *self._waiting.values()]
        self._waiting = {}
        for request in suspects:
            del self._suspects[request.id]
        return movable

    def put_back(self, request: InFlightRequest) -> None:
        """Take a request again that cannot go elsewhere."""
        (self._suspects if request.num_deaths else self._waiting)[request.id] = request

    def process_died(self) -> list[InFlightRequest]:
        """Make suspects of what was sent; return the requests to fail."""
        sent, self._sent = self._sent, {}
        if self._on_trial is not None:
            self._on_trial.num_trials += 1
            self._on_trial = None
        else:
            for request in sent.values():
                request.num_deaths += 1
        failed = [one for one in sent.values() if one.num_trials >= MAX_TRIALS or one.num_deaths >= MAX_DEATHS]
        self._suspects |= {request.id: request for request in sent.values() if request not in failed}
        return failed

    def remove_all(self) -> list[InFlightRequest]:
        """Remove and return all requests: there is no process for them."""
        everything = [*self._sent.values(), *self._suspects.values(), *self._waiting.values()]
        for table in (self._sent, self._suspects, self._waiting):
            table.clear()
        self._on_trial = None
        return everything
