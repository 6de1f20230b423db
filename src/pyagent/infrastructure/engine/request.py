"""One generation request inside the engine, from its arrival to its last token.

The request owns its token log (append-only: prompt, then output tokens) and everything that makes its text depend on
nothing but itself: its sampler, grammar, detokenizer and stop strings. Its states and their transitions are a
table; it ends once, with one reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.messages import FinishReason, Origin, SamplingParams, TokenLogprob
from pyagent.core.runners.batch import PLAIN_KEY, Likelihood, PrefixKey
from pyagent.core.stop_strings import StopStrings
from pyagent.infrastructure.engine.sessions.sessions import NO_PROMPT, Prompt

if TYPE_CHECKING:
    from pyagent._rust import SamplerState
    from pyagent.infrastructure.engine.grammar import Grammar
    from pyagent.infrastructure.engine.sampling.beam_search import Search
    from pyagent.infrastructure.engine.sampling.parallel_sampling import Samples
    from pyagent.infrastructure.engine.tokens import Detokenizer, ModelTokenizer


NOBODY = Origin()


def without_tokens(mask: bytes | None, tokens: frozenset[int], vocab_size: int) -> bytes:
    """Return a mask of whole 32-bit words, or of the whole vocabulary, without these tokens."""
    changed = bytearray(mask or b"\xff" * (-(-vocab_size // 32) * 4))
    for token in tokens:
        if token < 8 * len(changed):
            changed[token // 8] &= ~(1 << token % 8) & 0xFF
    return bytes(changed)


class Status(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    """In a queue; holds no KV memory. New, or preempted to be recomputed."""
    FOLLOWING = "following"
    """Waits until another answer's request has computed the prompt they share, to be forked from it."""
    PREFILLING = "prefilling"
    """Runs; more than one token of its log is still to be computed."""
    DECODING = "decoding"
    """Runs; samples a token each step."""
    SWAPPED = "swapped"
    """In a queue, preempted; its KV is swapped out."""
    FINISHED = "finished"


_NEXT: dict[Status, frozenset[Status]] = {
    Status.WAITING: frozenset({Status.PREFILLING, Status.DECODING, Status.FINISHED}),
    Status.FOLLOWING: frozenset({Status.WAITING, Status.PREFILLING, Status.FINISHED}),
    Status.PREFILLING: frozenset({Status.DECODING, Status.WAITING, Status.SWAPPED, Status.FINISHED}),
    Status.DECODING: frozenset({Status.WAITING, Status.SWAPPED, Status.FINISHED}),
    Status.SWAPPED: frozenset({Status.PREFILLING, Status.WAITING, Status.FINISHED}),
    Status.FINISHED: frozenset(),
}


class TransitionError(RuntimeError):
    """A request was to make a transition that its state does not allow: our bug. It ends that request."""

    def __init__(self, request: Request, status: Status) -> None:
        super().__init__(f"request {request.id} cannot go from {request.status.value} to {status.value}")
        self.request = request


class TokenLog(msgspec.Struct, frozen=True):
    """What an earlier engine computed of a request, for another to go on from: its prompt and the tokens delivered.

    `prompt` has 32 bits a token. The request was asked `asked_seconds` ago, and had its first token
    `first_token_seconds` after that.
    """

    prompt: bytes
    tokens: tuple[int, ...] = ()
    asked_seconds: float = 0.0
    first_token_seconds: float | None = None


class PastTurn(msgspec.Struct, frozen=True):
    """The last turn of a request's conversation, as an earlier engine computed it.

    Its first `num_messages` messages, the answer included, are the turn's; `prompt` has 32 bits a token, those of the
    `assistant_prefix` that the answer began with included. `tokens` are those sampled for the rest of `answer`,
    after those of `answer_prefix`.
    """

    num_messages: int
    prompt: bytes
    tokens: tuple[int, ...]
    answer: str
    assistant_prefix: str = ""
    answer_prefix: str = ""


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output of a request: more text, and at its end the finish reason. `error` goes with finish reason "error".

    `tokens` are the ids sampled since the last output, in order: with the prompt, a client's own token log. `index`
    says which of several answers it belongs to, `is_last` that no output of any of them follows.
    """

    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
    tokens: tuple[int, ...] = ()
    index: int = 0
    is_last: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A request and its state. Only the engine's thread changes it after `Engine.submit`.

    Times are seconds of `time.perf_counter`. `deadline` is when the caller stops waiting; `key` says with whom its
    prefix may be shared. `followers` are to be forked from it when its prompt is computed, all but the last token.

    The scheduler's counts of tokens: `num_computed` handed to the runner while it prefills, `num_prefilled` of them
    done, `num_charged` told to the queue's policy, `num_reserved` with room in KV memory; in pages, `num_pages` it
    holds and `num_expected` it is expected to hold. Of the times of its steps, `forward_seconds` and
    `scheduler_seconds` are its shares.
    """

    id: int
    tokens: list[int]
    params: SamplingParams
    max_tokens: int
    sampler: SamplerState
    tokenizer: ModelTokenizer
    detokenizer: Detokenizer
    grammar: Grammar | None
    on_output: Callable[[Output], None]
    origin: Origin = NOBODY
    priority: int = 0
    request_class: str = "default"
    deadline: float | None = None
    key: PrefixKey = PLAIN_KEY
    index: int = 0
    prompt: Prompt = NO_PROMPT
    samples: Samples | None = None
    search: Search | None = None
    followers: list[Request] = field(default_factory=list["Request"])
    logprob: float = 0.0
    num_likelihoods: int = 0
    status: Status = Status.WAITING
    num_prompt_tokens: int = 0
    num_computed: int = 0
    num_prefilled: int = 0
    num_charged: int = 0
    num_reserved: int = 0
    num_pages: int = 0
    num_expected: int = 0
    num_cached: int | None = None
    num_preemptions: int = 0
    num_told: int = 0
    forward_seconds: float = 0.0
    scheduler_seconds: float = 0.0
    arrived: float = field(default_factory=time.perf_counter)
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    finish_reason: FinishReason | None = None
    stops: StopStrings = field(init=False)
    end_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_prompt_tokens or len(self.tokens)
        self.num_told = len(self.tokens)
        self.stops = StopStrings(self.params.stop)
        ends = frozenset[int]() if self.params.ignore_eos else self.tokenizer.end_ids
        self.end_ids = ends | frozenset(self.params.stop_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended."""
        return self.status is Status.FINISHED

    @property
    def num_left(self) -> int:
        """Tokens still to compute before the next token can be sampled."""
        return 1 if self.status is Status.DECODING else len(self.tokens) - self.num_computed

    @property
    def has_mask(self) -> bool:
        """Whether what may be drawn next depends on what was drawn."""
        return self.grammar is not None or self.params.min_tokens > 0

    def mask(self) -> bytes | None:
        """The tokens that may be drawn next, one bit each; None when all may."""
        allowed = None if self.grammar is None else self.grammar.mask()
        if self.num_output_tokens >= self.params.min_tokens or not self.end_ids:
            return allowed
        going_on = without_tokens(allowed, self.end_ids, self.tokenizer.vocab_size)
        return going_on if any(going_on) else allowed  # where the form is at its end, nothing else may follow

    def resume(self, log: TokenLog) -> Output:
        """Go on after tokens sampled and delivered elsewhere, in the state that sampling them here would have led to.

        Return what was delivered of them.
        """
        self.tokens += log.tokens
        self.num_told = len(self.tokens)
        self.sampler.observe(log.tokens)
        told = ""
        for token in log.tokens:
            if self.grammar is not None:
                self.grammar.accept(token)
            told += self.stops.push(self.detokenizer.push(token))[0]
        self.arrived -= log.asked_seconds
        if log.first_token_seconds is not None:
            self.scheduled = self.first_token = self.arrived + log.first_token_seconds
        return Output(told, tokens=log.tokens)

    def become(self, status: Status) -> None:
        """Change the status. Raises `TransitionError`, and changes nothing, when the present one does not allow it."""
        if status not in _NEXT[self.status]:
            raise TransitionError(self, status)
        self.status = status

    @property
    def answers(self) -> list[Request]:
        """The requests that answer the same prompt for the same caller, this one included."""
        return [self] if self.samples is None else self.samples.members

    @property
    def mean_logprob(self) -> float:
        """Mean log probability of the output tokens, the end token included. Known where likelihoods are asked for."""
        return self.logprob / max(1, self.num_likelihoods)

    def note(self, likelihood: Likelihood) -> None:
        """Count a sampled token's likelihood."""
        self.logprob += likelihood.logprob
        self.num_likelihoods += 1

    def accept(self, token: int, likelihood: Likelihood | None, now: float, num_after: int = 0) -> Output | None:
        """Take in a sampled token that is no end token; return an output for the client, None while there is none.

        The token is in the log already, with `num_after` further ones of its step, which go when it ends the answer.
        """
        self.last_token = now
        if self.first_token is None:
            self.first_token = now
        if self.grammar is not None:
            self.grammar.accept(token)
        text = self.detokenizer.push(token)
        is_stopped = False
        if self.params.stop:
            text, is_stopped = self.stops.push(text)
        logprobs = () if likelihood is None else self._logprobs(token, likelihood)
        if is_stopped or (self.grammar is not None and self.grammar.is_finished):
            if num_after:
                del self.tokens[-num_after:]
            tail = "" if is_stopped else self.stops.flush(self.detokenizer.flush())
            return self.finish("stop", text + tail, logprobs)
        if self.num_output_tokens - num_after >= self.max_tokens:
            return self.finish("length", text + self.stops.flush(self.detokenizer.flush()), logprobs)
        return self._output(text, logprobs, num_after=num_after) if text or logprobs else None

    def stop(self, now: float) -> Output:
        """Finish on an end-of-sequence token, which is no part of the log."""
        self.last_token = now
        self.first_token = self.first_token or now
        return self.finish("stop", self.stops.flush(self.detokenizer.flush()))

    def finish(
        self,
        reason: FinishReason,
        text: str = "",
        logprobs: tuple[TokenLogprob, ...] = (),
        error: str | None = None,
    ) -> Output:
        """Finish the request; return its last output. Raises `TransitionError` when it has ended."""
        self.become(Status.FINISHED)
        self.finish_reason = reason
        self.finished = time.perf_counter()
        return self._output(text, logprobs, reason, error)

    def _output(
        self,
        text: str,
        logprobs: tuple[TokenLogprob, ...],
        reason: FinishReason | None = None,
        error: str | None = None,
        num_after: int = 0,
    ) -> Output:
        end = len(self.tokens) - num_after
        tokens = tuple(self.tokens[self.num_told : end])
        self.num_told = end
        return Output(text, logprobs, reason, error, tokens, self.index, reason is not None)

    def _logprobs(self, token: int, likelihood: Likelihood) -> tuple[TokenLogprob, ...]:
        if self.params.top_logprobs is None:
            return ()
        name = self.tokenizer.token_text
        top = [(name(other), logprob) for other, logprob in likelihood.top[: self.params.top_logprobs]]
        return (TokenLogprob(name(token), likelihood.logprob, top),)
