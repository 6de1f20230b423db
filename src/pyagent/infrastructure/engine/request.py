"""One generation request inside the engine, from its arrival to its last token.

The request owns its token log (append-only: prompt, then output tokens) and everything that makes its text depend on
nothing but itself: its sampler, grammar and answer text. Its states and their transitions are a
table; it ends once, with one reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from pyagent.core.dialects.output import Parsed
from pyagent.core.flat_logprobs import pack
from pyagent.core.messages import FinishReason, Origin, SamplingParams, TokenLogprob, ToolCallDelta
from pyagent.core.runners.batch import PLAIN_KEY, Likelihood, PrefixKey
from pyagent.infrastructure.engine.answer_text import AnswerText, joined
from pyagent.infrastructure.engine.prompt_logprobs import token_by_id
from pyagent.infrastructure.engine.sessions.sessions import NO_PROMPT, Prompt

if TYPE_CHECKING:
    from pyagent._rust import PromptScores, SamplerState
    from pyagent.core.activations import TokenActivations
    from pyagent.infrastructure.engine.activations import ActivationLog
    from pyagent.infrastructure.engine.drafts.proposals import RequestDrafts
    from pyagent.infrastructure.engine.grammar import Grammar
    from pyagent.infrastructure.engine.logits.row_processors import RowProcessor
    from pyagent.infrastructure.engine.sampling.beam_search import Search
    from pyagent.infrastructure.engine.sampling.parallel_sampling import Samples
    from pyagent.infrastructure.engine.thinking_budget import ThinkingBudget
    from pyagent.infrastructure.engine.tokens import ModelTokenizer


NOBODY = Origin()
NOTHING = Parsed()


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
    says which of several answers it belongs to, `is_last` that no output of any of them follows. Of an answer that is
    parsed, `text` is the content; the last output has all of it as the model wrote it in `written`. `scores` are
    those of the prompt, with an answer's first output where they were asked for; `activations` are those behind
    `tokens`, likewise. `moved_to` is set where the request was withdrawn.
    """

    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
    tokens: tuple[int, ...] = ()
    index: int = 0
    is_last: bool = False
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    written: str | None = None
    scores: PromptScores | None = None
    activations: tuple[TokenActivations, ...] = ()
    moved_to: str | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A request and its state. Only the engine's thread changes it after `Engine.submit`.

    Times are seconds of `time.perf_counter`. `deadline` is when the caller stops waiting; `key` says with whom its
    prefix may be shared. `opener_ids` are tokens that end reasoning by beginning a call; where the grammar
    `spans_reasoning`, it holds from the first token on. `followers` are to be forked from it when its prompt is
    computed, all but the last token.
    `scores` takes the log probabilities of the prompt's tokens, where they are asked for, `activations` what is behind
    the answer's; `processors` change the logits that it is sampled from. `predicted` are tokens that the answer may be
    like; `drafts` is what is proposed for it. The text of `stream_interval` tokens goes out together; `unsent` is what
    waits for the others. The answer begins with `num_echoed` characters of the prompt.

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
    text: AnswerText
    grammar: Grammar | None
    reasoning_ids: frozenset[int] = frozenset()
    opener_ids: frozenset[int] = frozenset()
    spans_reasoning: bool = False
    thinking: ThinkingBudget | None = None
    on_output: Callable[[Output], None]
    origin: Origin = NOBODY
    priority: int = 0
    request_class: str = "default"
    is_movable: bool = False
    deadline: float | None = None
    key: PrefixKey = PLAIN_KEY
    index: int = 0
    prompt: Prompt = NO_PROMPT
    scores: PromptScores | None = None
    activations: ActivationLog | None = None
    samples: Samples | None = None
    search: Search | None = None
    processors: tuple[RowProcessor, ...] = ()
    predicted: tuple[int, ...] = ()
    drafts: RequestDrafts | None = None
    followers: list[Request] = field(default_factory=list["Request"])
    stream_interval: int = 1
    unsent: Parsed = NOTHING
    unsent_logprobs: tuple[TokenLogprob, ...] = ()
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
    num_echoed: int = 0
    forward_seconds: float = 0.0
    scheduler_seconds: float = 0.0
    arrived: float = field(default_factory=time.perf_counter)
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    finish_reason: FinishReason | None = None
    end_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_prompt_tokens or len(self.tokens)
        self.num_told = len(self.tokens)
        ends = frozenset[int]() if self.params.ignore_eos else self.tokenizer.end_ids
        self.end_ids = ends | frozenset(self.params.stop_token_ids)
        if self.thinking is not None:
            self.thinking.begin(self.text)

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
    def most_cached(self) -> int | None:
        """How many tokens may be taken from the prefix cache; None for all.

        A token computed by another request has no score: while scores are asked for, what is not scored is computed.
        """
        return None if self.scores is None or self.scores.is_complete else len(self.scores)

    @property
    def has_mask(self) -> bool:
        """Whether the tokens allowed next depend on those sampled."""
        return self.grammar is not None or self.params.min_tokens > 0 or self.thinking is not None

    @property
    def forced_token(self) -> int | None:
        """The only token that may come next, where thinking is being ended."""
        return None if self.thinking is None else self.thinking.forced_token

    @property
    def is_masked(self) -> bool:
        """Whether some token may not come next."""
        is_held = self.grammar is not None or self.forced_token is not None
        return is_held or self.num_output_tokens < self.params.min_tokens

    @property
    def is_outside_grammar(self) -> bool:
        """Whether no grammar holds the next token: there is none, or it begins where the model has stopped thinking."""
        return self.grammar is None or (self.text.is_reasoning and not self.spans_reasoning)

    def _read(self, token: int) -> tuple[Parsed, bool]:
        """Take a token into the text, and into the grammar unless the model thinks, begins to, or ends it by a tag."""
        was_reasoning = self.text.is_reasoning
        parsed, is_stopped = self.text.push(token)
        if self.thinking is not None:
            self.thinking.note(self.text, parsed)
        is_held = not self.text.is_reasoning and (not was_reasoning or token in self.opener_ids)
        if self.grammar is not None and (is_held or self.spans_reasoning):
            self.grammar.accept(token)
        return parsed, is_stopped

    @property
    def is_read(self) -> bool:
        """Whether what may come next depends on what the text has come to."""
        return self.grammar is not None or self.thinking is not None

    def follow(self, parent: Request) -> None:
        """Go on from where a beam is that this one is forked from."""
        self.text = parent.text.copy()
        self.grammar = None if parent.grammar is None else parent.grammar.fork()
        if self.thinking is not None and parent.thinking is not None:
            self.thinking.follow(parent.thinking)

    def read(self, token: int) -> None:
        """Go on by a beam's token, of which nothing is told yet. Raises `GrammarError`."""
        self._read(token)

    def is_ended_by(self, token: int) -> bool:
        """Go on by a token of which nothing is told; return whether the answer ends with it. Raises `GrammarError`."""
        _, is_stopped = self._read(token)
        return is_stopped or (self.grammar is not None and self.grammar.is_finished)

    def ends_with(self, token: int) -> bool:
        """Whether nothing can follow a token that the mask allows, as the form is whole then."""
        if self.grammar is None or self.is_outside_grammar:
            return False
        after = self.grammar.fork()
        after.accept(token)
        return after.is_finished

    def resume(self, log: TokenLog) -> Output:
        """Go on after tokens sampled and delivered elsewhere, in the state that sampling them here would have led to.

        Return what was delivered of them.
        """
        self.tokens += log.tokens
        self.num_told = len(self.tokens)
        self.sampler.observe(log.tokens)
        told = reduce(joined, [self._read(token)[0] for token in log.tokens], NOTHING)
        self.arrived -= log.asked_seconds
        if log.first_token_seconds is not None:
            self.scheduled = self.first_token = self.arrived + log.first_token_seconds
        return Output(told.content, tokens=log.tokens, reasoning=told.reasoning, tool_calls=told.tool_calls)

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
        place = self.text.num_chars
        if self.forced_token is not None:
            self.sampler.observe([token])  # another one has sampled it
        parsed, is_stopped = self._read(token)
        logprobs = () if likelihood is None else self._logprobs(token, likelihood, place)
        if is_stopped or (self.grammar is not None and self.grammar.is_finished):
            if num_after:
                del self.tokens[-num_after:]
            return self.finish("stop", parsed if is_stopped else joined(parsed, self.text.flush()[0]), logprobs)
        if self.num_output_tokens - num_after >= self.max_tokens:
            last, is_stopped = self.text.flush(is_cut=True)
            return self.finish("stop" if is_stopped else "length", joined(parsed, last), logprobs)
        self.unsent, self.unsent_logprobs = joined(self.unsent, parsed), (*self.unsent_logprobs, *logprobs)
        return self._output(num_after=num_after) if self._is_due(num_after) else None

    def _is_due(self, num_after: int) -> bool:
        """Whether what is unsent goes out now: the first text at once, then that of so many tokens together."""
        num_tokens = len(self.tokens) - num_after - self.num_told
        if num_tokens < self.stream_interval and self.num_told > self.num_prompt_tokens:
            return False
        unsent = self.unsent
        return bool(unsent.content or unsent.reasoning or unsent.tool_calls or self.unsent_logprobs)

    def stop(self, now: float, token: int) -> Output:
        """Finish on an end-of-sequence token, which is no part of the log, and of the text where that is asked for."""
        self.last_token = now
        self.first_token = self.first_token or now
        said = self.text.push(token)[0] if self.params.include_stop_str_in_output else NOTHING
        return self.finish("stop", joined(said, self.text.flush()[0]))

    def end_prompt(self, now: float) -> Output:
        """Finish a request for its prompt alone; drop the token that was sampled after it."""
        del self.tokens[self.num_prompt_tokens :]
        self.last_token = self.first_token = now
        return self.finish("length")

    def finish(
        self,
        reason: FinishReason,
        parsed: Parsed = NOTHING,
        logprobs: tuple[TokenLogprob, ...] = (),
        error: str | None = None,
    ) -> Output:
        """Finish the request; return its last output. Raises `TransitionError` when it has ended."""
        self.become(Status.FINISHED)
        if reason == "stop" and self.text.num_calls:
            reason = "tool_calls"
        self.finish_reason = reason
        self.finished = time.perf_counter()
        return self._output(parsed, logprobs, reason, error)

    def _output(
        self,
        parsed: Parsed = NOTHING,
        logprobs: tuple[TokenLogprob, ...] = (),
        reason: FinishReason | None = None,
        error: str | None = None,
        num_after: int = 0,
    ) -> Output:
        end = len(self.tokens) - num_after
        tokens = tuple(self.tokens[self.num_told : end])
        self.num_told = end
        is_last = reason is not None
        parsed, logprobs = joined(self.unsent, parsed), (*self.unsent_logprobs, *logprobs)
        self.unsent, self.unsent_logprobs = NOTHING, ()
        text, written = parsed.content, self.text.written if is_last and self.text.is_parsed else None
        output = Output(
            text, logprobs, reason, error, tokens, self.index, is_last, parsed.reasoning, parsed.tool_calls, written
        )
        return output if self.activations is None else replace(output, activations=self.activations.take(tokens))

    def _logprobs(self, token: int, likelihood: Likelihood, place: int) -> tuple[TokenLogprob, ...]:
        if self.params.top_logprobs is None:
            return ()
        if self.params.flat_logprobs:
            entries = [(token, likelihood.logprob), *likelihood.top[: self.params.top_logprobs]]
            return (TokenLogprob("", likelihood.logprob, flat=pack(entries), entropy=likelihood.entropy),)
        name = token_by_id if self.params.return_tokens_as_token_ids else self.tokenizer.token_text
        top = [(name(other), logprob) for other, logprob in likelihood.top[: self.params.top_logprobs]]
        return (TokenLogprob(name(token), likelihood.logprob, top, place, entropy=likelihood.entropy),)
