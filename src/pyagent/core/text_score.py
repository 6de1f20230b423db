"""How likely a model finds a text: perplexity, bits per byte, and the tokens it expected least.

A long text is scored in windows, each by itself: a window's first token has nothing before it and does not count. Knows
the `Backend` protocol and no tokenizer: where a window is too long for the model it is halved.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterator
from heapq import nsmallest

import msgspec

from pyagent.core.backends import Backend, collect
from pyagent.core.errors import ContextOverflowError
from pyagent.core.messages import ChatRequest, PromptLogprob, SamplingParams
from pyagent.core.token_estimate import BYTES_A_TOKEN

WINDOW_TOKENS = 1024
_SHOWN_BEFORE = 8
_SAMPLING = SamplingParams(temperature=0, max_tokens=0, echo=True, top_logprobs=0, prompt_logprobs=1)


class ScoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token of a text, and what was likeliest in its place."""

    line: int
    before: str
    token: str
    logprob: float
    rank: int | None
    expected: str


class TextScore(msgspec.Struct, frozen=True, kw_only=True):
    """A text's score; perplexity and bits per byte are None where no token of it has a log probability."""

    backend: str = ""
    num_tokens: int = 0
    num_bytes: int = 0
    logprob: float = 0.0
    perplexity: float | None = None
    bits_per_byte: float | None = None
    least_expected: list[ScoredToken] = []


class PositionScores(msgspec.Struct, frozen=True, kw_only=True):
    """Of each token of a text its log probability, and the token that was likeliest in its place, in order."""

    logprobs: list[float]
    best_ids: list[int]

    @property
    def perplexity(self) -> float:
        """Of all of them; infinite where there are none."""
        return math.exp(-math.fsum(self.logprobs) / len(self.logprobs)) if self.logprobs else math.inf

    def same_best(self, other: PositionScores) -> float:
        """Return at which share of the positions both have the same best token. They are of one text and vocabulary."""
        pairs = list(zip(self.best_ids, other.best_ids, strict=True))
        return sum(one == another for one, another in pairs) / max(1, len(pairs))


class _Window(msgspec.Struct, frozen=True):
    """A part of a text with what is known of it."""

    backend: str
    num_bytes: int
    tokens: list[ScoredToken]
    best_ids: list[int]


async def score_text(
    backend: Backend, text: str, *, window_tokens: int = WINDOW_TOKENS, num_least_expected: int = 5
) -> TextScore:
    """Return the score of a text by the backend's model, in windows of about so many tokens.

    Raises what the backend does; one that cannot score prompts refuses by name.
    """
    windows: list[_Window] = []
    line = 1
    for piece in _pieces(text, window_tokens * BYTES_A_TOKEN):
        windows += [window async for window in _scored(backend, piece, line)]
        line += piece.count("\n")
    tokens = [token for window in windows for token in window.tokens]
    logprob, num_bytes = math.fsum(token.logprob for token in tokens), sum(window.num_bytes for window in windows)
    return TextScore(
        backend=windows[-1].backend if windows else "",
        num_tokens=len(tokens),
        num_bytes=num_bytes,
        logprob=logprob,
        perplexity=math.exp(-logprob / len(tokens)) if tokens else None,
        bits_per_byte=-logprob / math.log(2) / num_bytes if tokens and num_bytes else None,
        least_expected=nsmallest(num_least_expected, tokens, key=lambda token: token.logprob),
    )


async def score_positions(backend: Backend, text: str, *, window_tokens: int = WINDOW_TOKENS) -> PositionScores:
    """Return the scores of a text's tokens, to compare two models; raises as `score_text` does."""
    logprobs: list[float] = []
    best_ids: list[int] = []
    for piece in _pieces(text, window_tokens * BYTES_A_TOKEN):
        async for window in _scored(backend, piece, 1):
            logprobs += [token.logprob for token in window.tokens]
            best_ids += window.best_ids
    return PositionScores(logprobs=logprobs, best_ids=best_ids)


def _pieces(text: str, most_bytes: int) -> Iterator[str]:
    """Cut a text into pieces of so many bytes at most, before a space or line end where there is one."""
    start = 0
    while start < len(text):
        fitting = text[start : start + most_bytes].encode()[:most_bytes].decode(errors="ignore")
        end = start + max(1, len(fitting))
        if end < len(text):
            cut = max(text.rfind(" ", start + 1, end), text.rfind("\n", start + 1, end))
            end = cut if cut > start else end
        yield text[start:end]
        start = end


async def _scored(backend: Backend, text: str, line: int) -> AsyncGenerator[_Window]:
    """Yield the windows of a text; more than one where it is too long for the model's context."""
    try:
        answer = await collect(backend.chat(ChatRequest(prompt=text, sampling=_SAMPLING, whole=True)))
    except ContextOverflowError:
        halves = list(_pieces(text, len(text.encode()) // 2))
        if len(halves) < 2:
            raise
        for half in halves:
            async for window in _scored(backend, half, line):
                yield window
            line += half.count("\n")
        return
    first = answer.deltas[0].logprobs[0].token
    num_unscored = len(first.encode()) if text.startswith(first) else 0  # a control token is none of the text
    entries = answer.deltas[0].prompt_logprobs[1:]
    tokens = list(_tokens(entries, [first], line))
    best_ids = [min(entry, key=lambda token: entry[token].rank or 0) for entry in entries if entry]
    yield _Window(answer.last.backend, len(text.encode()) - num_unscored, tokens, best_ids)


def _tokens(entries: list[dict[int, PromptLogprob] | None], before: list[str], line: int) -> Iterator[ScoredToken]:
    """Yield the tokens that have a log probability; each entry has the text's own token first."""
    line += before[0].count("\n")
    for entry in entries:
        known = list((entry or {}).values())
        own, best = known[0], min(known, key=lambda one: one.rank or 0)
        token = own.decoded_token or ""
        yield ScoredToken(
            line=line,
            before="".join(before[-_SHOWN_BEFORE:]),
            token=token,
            logprob=own.logprob,
            rank=own.rank,
            expected=best.decoded_token or "",
        )
        before.append(token)
        line += token.count("\n")
