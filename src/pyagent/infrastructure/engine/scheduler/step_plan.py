"""A step as the scheduler planned it: the runner's batch, and which request each part belongs to.

Plans nothing itself, and knows neither queues nor memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from pyagent.core.runners.batch import BLOCK_TOKENS, Batch
from pyagent.infrastructure.engine.request import Request

if TYPE_CHECKING:
    from pyagent._rust import LogitsRows


@dataclass(frozen=True, slots=True)
class Chunk:
    """A prefill chunk: the next `num_tokens` tokens of a request's log, up to `end`."""

    request: Request
    num_tokens: int
    end: int


@dataclass(slots=True)
class Plan:
    """A step: the batch, the requests that get a token (in the batch's order), and those for which it is the last.

    `unsampled` are those of the batch's further segments, in their order.
    """

    batch: Batch
    sampled: list[Request]
    logs: list[list[int]]
    num_decoding: int
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    ending: list[Request] = field(default_factory=list[Request])
    unsampled: list[Request] = field(default_factory=list[Request])
    has_ended: bool = False
    """Whether a request of the step ended while it was computed."""
    num_free: int = 0
    """Of a step with prompts, how many tokens it may have beside those planned."""

    @property
    def num_prompt(self) -> int:
        """Prefill tokens in the step, with drafts beside them, which take as long."""
        return self.num_tokens - self.num_decoding if self.chunks else 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return sum(self.batch.lengths)

    @property
    def draft_room(self) -> int:
        """Drafts for which a step with prompts has room, where tokens of its last chunk may wait for the next step.

        The chunk still ends in the block in which it was to end: of recurrent layers, only that one has a state.
        """
        if not self.unsampled:
            return self.num_free
        chunk = self.chunks[self._last_place]
        return self.num_free + min(chunk.num_tokens - 1, (chunk.end - 1) % BLOCK_TOKENS)

    @property
    def _last_place(self) -> int:
        """Where the chunk is that comes last in the batch."""
        return next(place for place, chunk in enumerate(self.chunks) if chunk.request is self.unsampled[-1])

    def add_chunks(self) -> None:
        """Put the prefill chunks into the batch; those that reach the end of their log get a token, and come first."""
        batch = self.batch
        for is_sampled in (True, False):
            for chunk in self.chunks:
                request = chunk.request
                if (chunk.end == len(request.tokens)) is not is_sampled:
                    continue
                if request.scores is not None and not request.scores.is_complete:
                    batch.scores[len(batch.sequence_ids)] = request.scores
                batch.sequence_ids.append(request.id)
                batch.lengths.append(chunk.num_tokens)
                batch.tokens += request.tokens[chunk.end - chunk.num_tokens : chunk.end]
                if is_sampled:
                    batch.samplers.append(request.sampler)
                    batch.steps.append(request.num_output_tokens)
                    self.sampled.append(request)
                    self.logs.append(request.tokens)
                else:
                    self.unsampled.append(request)

    def add_drafts(self, drafts: Mapping[int, Sequence[int]]) -> None:
        """Have the step verify tokens that may follow those of its decoding rows.

        Beside prompts, what it has no room for comes in place of as many prompt tokens.
        """
        if self.chunks:
            self._put_off(sum(map(len, drafts.values())) - self.num_free)
        batch, tokens = self.batch, list[int]()
        for row, token in enumerate(batch.tokens[: self.num_decoding]):
            proposed = drafts.get(row, ())
            tokens += (token, *proposed)
            if proposed:
                batch.lengths[row] += len(proposed)
                batch.num_drafts[row] = len(proposed)
        batch.tokens[: self.num_decoding] = tokens

    def _put_off(self, num_tokens: int) -> None:
        """Leave so many tokens of the last chunk, which does not end its prompt, to the next step."""
        if num_tokens <= 0:
            return
        place = self._last_place
        chunk = self.chunks[place]
        self.chunks[place] = replace(chunk, num_tokens=chunk.num_tokens - num_tokens, end=chunk.end - num_tokens)
        chunk.request.num_computed -= num_tokens
        self.batch.lengths[-1] -= num_tokens
        del self.batch.tokens[-num_tokens:]

    def fill(self, ended: Collection[Request]) -> None:
        """Give a step planned ahead its input, each request's newest token; drop the requests that have `ended`."""
        if ended:
            places = [place for place, request in enumerate(self.sampled) if request not in ended]
            batch = self.batch
            self.sampled = [self.sampled[place] for place in places]
            self.logs = [self.logs[place] for place in places]
            batch.sequence_ids = [batch.sequence_ids[place] for place in places]
            batch.samplers = [batch.samplers[place] for place in places]
            batch.steps = [batch.steps[place] for place in places]
            batch.lengths = [1] * len(places)
            self.num_decoding = batch.num_decoding = len(places)
        self.batch.tokens = [log[-1] for log in self.logs]

    def force_tokens(self) -> None:
        """Have the only tokens that may come next sampled whatever their requests exclude."""
        for row, request in enumerate(self.sampled):
            if request.thinking is not None and request.forced_token is not None:
                self.batch.samplers[row] = request.thinking.sampler

    def process_logits(self, process: Callable[[list[Request], LogitsRows], dict[int, str]]) -> None:
        """Have the logits of requests that have processors changed before they are sampled from."""
        processed = frozenset(
            row for row, request in enumerate(self.sampled) if request.processors and request.forced_token is None
        )
        if processed:
            self.batch.processed, self.batch.process = processed, partial(process, self.sampled)

    def probe_tokens(self) -> None:
        """Have the activations told of the tokens of requests that ask for them."""
        asking = ((row, request.activations) for row, request in enumerate(self.sampled))
        self.batch.probes = {row: activations.probe for row, activations in asking if activations is not None}

    def charge(self, forward_seconds: float, scheduler_seconds: float) -> None:
        """Add the step's times to its requests, a search's to its lead: forward pass by tokens, scheduling evenly."""
        per_token = forward_seconds / max(1, self.num_tokens)
        per_request = scheduler_seconds / max(1, len(self.batch.sequence_ids))
        decoding = zip(self.sampled[: self.num_decoding], self.batch.lengths, strict=False)
        for request, num_tokens in chain(decoding, ((chunk.request, chunk.num_tokens) for chunk in self.chunks)):
            charged = request if request.search is None else request.search.lead
            charged.forward_seconds += per_token * num_tokens
            charged.scheduler_seconds += per_request

    def requests(self) -> set[Request]:
        """Return every request that the step computes for."""
        return {*self.sampled, *(chunk.request for chunk in self.chunks)}
