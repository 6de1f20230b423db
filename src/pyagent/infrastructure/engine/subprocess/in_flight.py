"""Requests that an engine's process works on, and the question which of them killed it.

Pure bookkeeping: it says what to send and what to give up; it neither sends nor waits. While no process has died,
requests are sent as they come. When one dies, every request that was sent is suspect, and goes to the next process
alone until it has told enough that is new; then all go on together. One that kills its process alone is tried twice and
given up. One that kills later than its trial lasted is caught by the next, which lasts longer. Invariants: a request
is in exactly one of three places (sent, suspect, waiting) until it ends; one on trial is the only one sent.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from pyagent.core.errors import PyAgentError
from pyagent.core.messages import ChatDelta, ChatRequest
from pyagent.infrastructure.engine.request import PastTurn, TokenLog
from pyagent.infrastructure.engine.subprocess.protocol import Ask, Outputs

MAX_TRIALS = 2
"""Processes that may die with the same request alone."""
MAX_DEATHS = 5
"""Processes that may die with a request among others."""
TRIAL_NEWS = 8
"""Outputs of a request that end its first trial; each later one lasts four times as long."""


@dataclass(slots=True, eq=False)
class Asked:
    """A request, with all that is needed to ask it again and to tell nothing twice.

    One answer goes on from its token log. Several answers (and searches) are computed anew, which gives the same text,
    and what was told of each is left out. `tell` hears deltas, then None or the error at the end.
    `wire_id` is its name in the process it was sent to last.
    """

    id: int
    request: ChatRequest
    tell: Callable[[ChatDelta | PyAgentError | None], None]
    asked: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    prompt: bytes = b""
    tokens: list[int] = field(default_factory=list[int])
    wire_id: int = 0
    num_trials: int = 0
    num_deaths: int = 0
    _said: list[str] = field(default_factory=list[str])
    _num_chars: Counter[int] = field(default_factory=Counter[int])
    _num_logprobs: Counter[int] = field(default_factory=Counter[int])
    _ended: set[int] = field(default_factory=set[int])
    _chars_to_skip: Counter[int] = field(default_factory=Counter[int])
    _logprobs_to_skip: Counter[int] = field(default_factory=Counter[int])

    @property
    def is_single(self) -> bool:
        """Whether one answer is drawn, whose log can be gone on from."""
        return self.request.n == 1 and self.request.best_of in {None, 1} and self.request.beam is None

    def ask(self, past: PastTurn | None = None) -> Ask:
        """The frame that asks for the rest of the answer; `past` is what was computed of its conversation elsewhere."""
        now, request = time.monotonic(), self.request
        if request.timeout_seconds is not None:
            left = max(0.0, request.timeout_seconds - (now - self.asked))
            request = msgspec.structs.replace(request, timeout_seconds=left)
        self._chars_to_skip, self._logprobs_to_skip = self._num_chars.copy(), self._num_logprobs.copy()
        if not self.prompt:
            return Ask(self.wire_id, request, past=past)
        first = None if self.first_token is None else self.first_token - self.asked
        return Ask(self.wire_id, request, TokenLog(self.prompt, tuple(self.tokens), now - self.asked, first))

    def take(self, news: Outputs) -> ChatDelta | None:
        """Take news in; returns what of it is new to the caller."""
        self.first_token = self.first_token or time.monotonic()
        self.prompt = self.prompt or news.prompt
        delta = news.delta
        if self.is_single:
            self.tokens += news.tokens
            self._said.append(delta.content)
        else:
            delta = self._unheard(delta)
        self._num_chars[delta.index] += len(delta.content)
        self._num_logprobs[delta.index] += len(delta.logprobs)
        return delta if delta.content or delta.logprobs or delta.finish_reason or delta.usage else None

    @property
    def text(self) -> str:
        """What was told, of a single answer."""
        return "".join(self._said)

    def _unheard(self, delta: ChatDelta) -> ChatDelta:
        index = delta.index
        chars = min(len(delta.content), self._chars_to_skip[index])
        logprobs = min(len(delta.logprobs), self._logprobs_to_skip[index])
        self._chars_to_skip[index] -= chars
        self._logprobs_to_skip[index] -= logprobs
        reason = None if index in self._ended else delta.finish_reason
        if delta.finish_reason:
            self._ended.add(index)
        return msgspec.structs.replace(
            delta, content=delta.content[chars:], logprobs=delta.logprobs[logprobs:], finish_reason=reason
        )


class InFlight:
    """The requests of one engine, over the lives of its processes."""

    def __init__(self) -> None:
        self._sent: dict[int, Asked] = {}  # by wire id
        self._suspects: dict[int, Asked] = {}
        self._waiting: dict[int, Asked] = {}
        self._on_trial: Asked | None = None
        self._num_trial_news = 0
        self._wire_ids = itertools.count(1)

    def __len__(self) -> int:
        return len(self._sent) + len(self._suspects) + len(self._waiting)

    def add(self, asked: Asked) -> None:
        """A new request; `next_to_send` says when it goes."""
        self._waiting[asked.id] = asked

    def sent(self, wire_id: int) -> Asked | None:
        """The request of that name in the process, if it is there."""
        return self._sent.get(wire_id)

    def next_to_send(self) -> list[Asked]:
        """What goes to the process now: one suspect when none is on trial, everything when there are none."""
        if self._on_trial is not None:
            return []
        if self._suspects:
            self._on_trial = chosen = self._suspects.pop(next(iter(self._suspects)))
            self._num_trial_news = 0
            return [self._send(chosen)]
        everything, self._waiting = self._waiting, {}
        return [self._send(asked) for asked in everything.values()]

    def _send(self, asked: Asked) -> Asked:
        # Another name each time: news of an earlier life of the request may still be on their way.
        asked.wire_id = next(self._wire_ids)
        self._sent[asked.wire_id] = asked
        return asked

    def told(self, asked: Asked) -> bool:
        """The request had news. True when that is enough for its trial: the process is to drop it until its turn."""
        if asked is not self._on_trial:
            return False
        self._num_trial_news += 1
        return self._num_trial_news == TRIAL_NEWS * 4 ** max(0, asked.num_deaths - 1)

    def dropped(self, asked: Asked) -> None:
        """The process has dropped the request: its trial is over, and whoever kills the process now is another."""
        if asked is self._on_trial:
            self._on_trial = None
            asked.num_trials = 0
            del self._sent[asked.wire_id]
            self._waiting[asked.id] = asked

    def end(self, asked: Asked) -> bool:
        """The request is answered, failed or wanted no more. True when the process has it."""
        self._suspects.pop(asked.id, None)
        self._waiting.pop(asked.id, None)
        if asked is self._on_trial:
            self._on_trial = None
        return self._sent.pop(asked.wire_id, None) is not None

    def died(self) -> list[Asked]:
        """The process is gone. What was sent is suspect; returns the requests to give up."""
        sent, self._sent = self._sent, {}
        if self._on_trial is not None:
            self._on_trial.num_trials += 1
            self._on_trial = None
        else:
            for asked in sent.values():
                asked.num_deaths += 1
        given_up = [
            asked for asked in sent.values() if asked.num_trials >= MAX_TRIALS or asked.num_deaths >= MAX_DEATHS
        ]
        self._suspects |= {asked.id: asked for asked in sent.values() if asked not in given_up}
        return given_up

    def give_up(self) -> list[Asked]:
        """Everything there is, to be failed: no process can be had."""
        everything = [*self._sent.values(), *self._suspects.values(), *self._waiting.values()]
        for place in (self._sent, self._suspects, self._waiting):
            place.clear()
        self._on_trial = None
        return everything
