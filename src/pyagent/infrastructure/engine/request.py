"""One generation request inside the engine, from its arrival to its last token.

The request owns its token log (append-only: prompt, then what was drawn) and everything that makes its text depend on
nothing but itself: its sampler, its grammar, its detokenizer, its stop texts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from pyagent.core.messages import FinishReason, SamplingParams, TokenLogprob
from pyagent.infrastructure.engine.batch import Drawn
from pyagent.infrastructure.engine.stops import StopTexts

if TYPE_CHECKING:
    from pyagent._rust import SamplerState
    from pyagent.infrastructure.engine.grammar import Grammar
    from pyagent.infrastructure.engine.tokens import Detokenizer, ModelTokenizer


class Status(Enum):
    """Where a request is in its life. A preempted request waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Output:
    """News of a request: more text, and at its end why it ended. `error` goes with finish reason "error"."""

    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None


@dataclass(slots=True, eq=False)
class Request:
    """A request and its state. Only the engine's thread changes it after `Engine.submit`."""

    id: int
    tokens: list[int]
    params: SamplingParams
    max_tokens: int
    sampler: SamplerState
    tokenizer: ModelTokenizer
    detokenizer: Detokenizer
    grammar: Grammar | None
    on_output: Callable[[Output], None]
    status: Status = Status.WAITING
    num_prompt_tokens: int = 0
    num_computed: int = 0
    num_cached: int | None = None
    num_preemptions: int = 0
    arrived: float = field(default_factory=time.perf_counter)
    scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None
    finish_reason: FinishReason | None = None
    stops: StopTexts = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)
        self.stops = StopTexts(self.params.stop)

    @property
    def num_drawn(self) -> int:
        """Tokens drawn so far."""
        return len(self.tokens) - self.num_prompt_tokens

    def accept(self, drawn: Drawn) -> Output | None:
        """Take a drawn token in; returns news for the client, None when there is none to tell yet."""
        if drawn.error is not None:
            return self.finish("error", error=drawn.error)
        now = time.perf_counter()
        self.first_token = self.first_token or now
        token = drawn.token
        is_end = token in self.tokenizer.end_ids and not self.params.ignore_eos
        if is_end:
            return self.finish("stop", self.stops.flush(self.detokenizer.flush()))
        self.tokens.append(token)
        if self.grammar is not None:
            self.grammar.accept(token)
        text, is_stopped = self.stops.push(self.detokenizer.push(token))
        logprobs = self._logprobs(drawn)
        if is_stopped or (self.grammar is not None and self.grammar.is_finished):
            tail = "" if is_stopped else self.stops.flush(self.detokenizer.flush())
            return self.finish("stop", text + tail, logprobs)
        if self.num_drawn >= self.max_tokens:
            return self.finish("length", text + self.stops.flush(self.detokenizer.flush()), logprobs)
        return Output(text, logprobs) if text or logprobs else None

    def finish(
        self,
        reason: FinishReason,
        text: str = "",
        logprobs: tuple[TokenLogprob, ...] = (),
        error: str | None = None,
    ) -> Output:
        """End the request; returns its last news."""
        self.status = Status.FINISHED
        self.finish_reason = reason
        self.finished = time.perf_counter()
        return Output(text, logprobs, reason, error)

    def _logprobs(self, drawn: Drawn) -> tuple[TokenLogprob, ...]:
        if self.params.top_logprobs is None or drawn.logprob is None:
            return ()
        name = self.tokenizer.token_text
        top = [(name(token), logprob) for token, logprob in drawn.top_logprobs[: self.params.top_logprobs]]
        return (TokenLogprob(name(drawn.token), drawn.logprob, top),)
