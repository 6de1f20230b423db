"""Beam search: the `width` likeliest continuations are kept, step by step (as Hugging Face's `generate` defines it).

Each beam is a request of its own, forked from the one it continues. A step of the search begins when all beams have
offered their likeliest next tokens. Of all continuations the 2 x width best are looked at (one more width for each end
token after the first): one that ends, by an end token, a stop text or its length, is a finished answer if it is among
the first `width`, others become beams until there are `width`. An answer's score is its log probability, end included,
over its number of tokens ** `length_penalty`. The search ends when `width` answers are finished and (with
`early_stopping`) at once, or when no beam can become better than the worst of them (`early_stopping="never"` there), or
at the longest answer allowed. Ties go to the earlier beam and the lower token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pyagent.core.abilities import FURTHER_SAMPLING
from pyagent.core.errors import RequestError
from pyagent.core.sampling_params import SamplingParams
from pyagent.core.stop_strings import StopStrings

if TYPE_CHECKING:
    from pyagent.core.dialects.output import Parsed
    from pyagent.core.messages import BeamSearch, ChatRequest, FinishReason
    from pyagent.core.runners.batch import Likelihood
    from pyagent.infrastructure.engine.request import Request
    from pyagent.infrastructure.engine.tokens import Detokenizer

MAX_WIDTH = 8


def num_offered(beam: BeamSearch, num_end_ids: int) -> int:
    """Continuations looked at in a step, and next tokens that each beam offers."""
    return max(2, 1 + num_end_ids) * beam.width


class Continuation(NamedTuple):
    """A beam's next token, and the log probability of all its tokens then."""

    beam: int
    token: int
    logprob: float


class FinishedBeam(NamedTuple):
    """A finished answer."""

    score: float
    tokens: tuple[int, ...]
    reason: FinishReason


@dataclass(slots=True)
class SearchRules:
    """The search without its requests: what it goes on with, and what it has found."""

    beam: BeamSearch
    end_ids: frozenset[int]
    max_tokens: int
    answers: list[FinishedBeam] = field(default_factory=list[FinishedBeam])
    is_done: bool = False

    def choose(
        self,
        beams: Sequence[tuple[tuple[int, ...], float, Sequence[tuple[int, float]]]],
        stops: Callable[[int, int], bool] = lambda beam, token: False,
    ) -> list[Continuation]:
        """The beams of the next step, from each beam's tokens, log probability and likeliest next tokens.

        `stops` says of a beam and a token whether a stop text ends there.
        """
        width = self.beam.width
        found = [
            Continuation(beam, token, before + logprob)
            for beam, (_, before, likeliest) in enumerate(beams)
            for token, logprob in likeliest
        ]
        found.sort(key=lambda one: (-one.logprob, one.beam, one.token))
        chosen: list[Continuation] = []
        num_tokens = len(beams[0][0]) + 1
        for rank, one in enumerate(found[: num_offered(self.beam, len(self.end_ids))]):
            tokens = beams[one.beam][0]
            is_end = one.token in self.end_ids
            is_stop = is_end or stops(one.beam, one.token)
            if not is_stop and num_tokens < self.max_tokens:
                chosen.append(one)
            elif rank < width:
                whole = tokens if is_end else (*tokens, one.token)
                self._add(whole, one.logprob, num_tokens, "stop" if is_stop else "length")
            if len(chosen) == width:
                break
        self.is_done = not chosen or self._cannot_improve(chosen[0].logprob, num_tokens)
        return [] if self.is_done else chosen

    def _add(self, tokens: tuple[int, ...], logprob: float, num_tokens: int, reason: FinishReason) -> None:
        self.answers.append(FinishedBeam(self._score(logprob, num_tokens), tokens, reason))
        self.answers.sort(key=lambda answer: -answer.score)
        del self.answers[self.beam.width :]

    def _score(self, logprob: float, num_tokens: int) -> float:
        return logprob / num_tokens**self.beam.length_penalty

    def _cannot_improve(self, best: float, num_tokens: int) -> bool:
        if len(self.answers) < self.beam.width:
            return False
        # A beam's log probability only falls; divided by a power of its length it may still rise until the longest.
        longest = self.max_tokens if self.beam.length_penalty > 0 else num_tokens
        return self.beam.early_stopping or self.answers[-1].score >= self._score(best, longest)


class BeamText:
    """A beam's text, as far as stop texts may yet be found in it."""

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings) -> None:
        self._detokenizer = detokenizer
        self._stops = stops

    def after(self, token: int) -> tuple[BeamText, str, bool]:
        """The text with another token, what that lets be told, and whether a stop text ended it."""
        longer = BeamText(self._detokenizer.copy(), copy(self._stops))
        return longer, *longer._stops.push(longer._detokenizer.push(token))

    def flush(self) -> str:
        """What is left to tell at the end."""
        return self._stops.flush(self._detokenizer.flush())


class Step(NamedTuple):
    """What becomes of a search's requests: which take another token, which are forked first, which end."""

    forks: list[tuple[Request, Request]]
    going_on: list[tuple[Request, int]]
    ended: list[Request]


class Search:
    """A search's requests. The first one, `lead`, stands for the search to its caller."""

    def __init__(self, lead: Request, beam: BeamSearch, num_told: int, make: Callable[[list[int]], Request]) -> None:
        """`make` makes a request with these tokens after the prompt's; `num_told` answers are told."""
        self.lead = lead
        self.rules = SearchRules(beam, lead.end_ids, lead.max_tokens)
        self.live = [lead]
        self._make = make
        self._num_told = num_told
        self._logprobs = {lead.id: 0.0}
        self._offers: dict[int, list[tuple[int, float]]] = {}
        self._start = lead.text.copy()
        self._texts = {lead.id: self._no_text()}
        lead.search = self

    @property
    def answers(self) -> list[FinishedBeam]:
        """What is told, best first."""
        return self.rules.answers[: self._num_told]

    def offer(self, request: Request, likelihood: Likelihood) -> bool:
        """A beam's likeliest next tokens; True when all beams have offered."""
        self._offers[request.id] = likelihood.top  # of those that its mask allows
        return len(self._offers) == len(self.live)

    def step(self) -> Step:
        """Go on by a token; `rules.is_done` afterwards says whether that was the last."""
        beams = [(self._drawn(one), self._logprobs[one.id], self._offers[one.id]) for one in self.live]
        looks = self._has_stops or self.lead.grammar is not None
        chosen = self.rules.choose(beams, self._stops_after) if looks else self.rules.choose(beams)
        step = Step([], [], [])
        taken: set[int] = set()
        live: list[Request] = []
        logprobs: dict[int, float] = {}
        texts: dict[int, BeamText] = {}
        for beam, token, logprob in chosen:
            request = self.live[beam]
            text = self._texts[request.id].after(token)[0] if self._has_stops else self._texts[request.id]
            if beam in taken:
                child = self._make(list(self._drawn(request)))
                child.search = self
                child.follow(request)
                step.forks.append((request, child))
                request = child
            taken.add(beam)
            step.going_on.append((request, token))
            live.append(request)
            logprobs[request.id] = logprob
            texts[request.id] = text
        step.ended.extend(one for beam, one in enumerate(self.live) if beam not in taken)
        if self.lead.is_read:
            for request, token in step.going_on:
                request.read(token)
        self.live, self._logprobs, self._texts, self._offers = live, logprobs, texts, {}
        return step

    def text(self, answer: FinishedBeam) -> str:
        """An answer's text, up to a stop text."""
        text, told = self._no_text(), ""
        for token in answer.tokens:
            text, piece, is_stopped = text.after(token)
            told += piece
            if is_stopped:
                return told
        return told + text.flush()

    def parsed(self, answer: FinishedBeam, text: str) -> Parsed:
        """Return an answer's text as its client reads it."""
        return self._start.parsed(text, is_cut=answer.reason == "length")

    def num_reasoning_tokens(self, answer: FinishedBeam) -> int:
        """Return how many of an answer's tokens are thoughts."""
        text = self._start.copy()
        for token in answer.tokens if text.is_parsed else ():
            text.push(token)
        return text.num_reasoning_tokens

    @property
    def _has_stops(self) -> bool:
        return bool(self.lead.params.stop)

    def _no_text(self) -> BeamText:
        return BeamText(self._start.detokenizer(), StopStrings(self.lead.params.stop))

    def _stops_after(self, beam: int, token: int) -> bool:
        request = self.live[beam]
        is_stop = self._has_stops and self._texts[request.id].after(token)[2]
        return is_stop or request.ends_with(token)

    def _drawn(self, request: Request) -> tuple[int, ...]:
        return tuple(request.tokens[request.num_prompt_tokens :])


_PLAIN = SamplingParams()


def check_beam(request: ChatRequest, beam: BeamSearch) -> None:
    """Raise `RequestError` for a search that cannot be made, naming the field."""
    sampling = request.sampling
    if not 1 <= beam.width <= MAX_WIDTH:
        raise RequestError(f"beam.width must be between 1 and {MAX_WIDTH}, got {beam.width}", param="beam")
    if not (math.isfinite(beam.length_penalty) and -10 <= beam.length_penalty <= 10):
        raise RequestError(f"beam.length_penalty must be between -10 and 10, got {beam.length_penalty}", param="beam")
    if not 1 <= request.n <= beam.width:
        raise RequestError(f"n must be between 1 and the {beam.width} beams, got {request.n}", param="n")
    is_structured = request.response_format is not None and request.response_format.type != "text"
    penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    refused = {
        "best_of": request.best_of is not None,
        "response_format": is_structured and bool(request.tools) and request.tool_choice != "none",
        "top_logprobs": sampling.top_logprobs is not None,
        "stop_token_ids": bool(sampling.stop_token_ids),
        "min_tokens": sampling.min_tokens > 0,
        "prompt_logprobs": sampling.prompt_logprobs is not None,
        "top_activations": sampling.top_activations is not None,
        "logit_lens": sampling.logit_lens is not None,
        "echo": sampling.echo,
        "include_stop_str_in_output": sampling.include_stop_str_in_output,
        "skip_special_tokens": not sampling.skip_special_tokens,
        # At 1 the search is by the model's own log probabilities; 0 is what vLLM asks for.
        "temperature": sampling.temperature not in {0, 1},
        **{name: getattr(sampling, name) != getattr(_PLAIN, name) for name in ("top_p", "top_k", "min_p")},
        "repetition_penalty": penalties != (1.0, 0.0, 0.0),
        **{name: getattr(sampling, name) != getattr(_PLAIN, name) for name in sorted(FURTHER_SAMPLING)},
    }
    for name, is_asked in refused.items():
        if is_asked:
            what = "penalties" if name == "repetition_penalty" else name
            raise RequestError(f"beam search cannot be combined with {what}; leave one of them out", param=name)
