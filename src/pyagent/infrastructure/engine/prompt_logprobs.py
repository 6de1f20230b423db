"""The log probabilities of a prompt's tokens: from what a request asks for to what its answer says of them.

The numbers come from the runner (`PromptScores`), a step at a time; here they get their texts. Knows no loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pyagent._rust import PromptScores
from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatDelta, PromptLogprob, SamplingParams, TokenLogprob

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.request import Output, Request
    from pyagent.infrastructure.engine.tokens import ModelTokenizer

MAX_ENTRIES = 150_000
"""Log probabilities of one prompt; each takes a few hundred bytes on its way to the client."""

Row = tuple[float, int, list[tuple[int, float]]]
"""Of a token: its log probability, its rank, and the likeliest tokens with theirs."""


def token_by_id(token: int) -> str:
    """Return what stands for a token in log probabilities whose tokens are told by id, as in vLLM."""
    return f"token_id:{token}"


def make_scores(params: SamplingParams, tokens: list[int], num_answers: int = 1) -> PromptScores | None:
    """Return what takes the scores of a prompt, None where none are asked for.

    Raises `RequestError` where all answers together would tell too many.
    """
    asked = {"prompt_logprobs": params.prompt_logprobs, "logprobs": params.top_logprobs if params.echo else None}
    num_top, field = max(((number, name) for name, number in asked.items() if number is not None), default=(None, ""))
    if num_top is None:
        return None
    num_each = sum(number + 1 for number in asked.values() if number is not None) * num_answers
    num_entries = len(tokens) * num_each
    if num_entries > MAX_ENTRIES:
        text = f"{num_each} log probabilities for each of {len(tokens)} prompt tokens are {num_entries} in all; "
        text += f"at most {MAX_ENTRIES} are given: ask for fewer, or send the text in parts"
        raise RequestError(text, param=field)
    return PromptScores(tokens, num_top)


def with_prompt(
    on_output: Callable[[Output], None], text: str, scores: PromptScores | None
) -> Callable[[Output], None]:
    """Return `on_output` that has each answer begin with the prompt's text and its scores."""
    begun = set[int]()

    def emit(output: Output) -> None:
        if output.index not in begun and output.finish_reason not in {"error", "abort"}:
            begun.add(output.index)
            output = replace(output, text=text + output.text, scores=scores)
        on_output(output)

    return emit


@dataclass(frozen=True, slots=True)
class PromptReport:
    """What the answers to a request say of its prompt, each with its first delta."""

    prompt_logprobs: list[dict[int, PromptLogprob] | None]
    echoed: list[TokenLogprob]

    @classmethod
    def of(cls, request: Request, scores: PromptScores) -> PromptReport:
        """Return the report of a prompt whose tokens are all scored. Takes long for a long prompt."""
        params, rows = request.params, scores.read(0, request.num_prompt_tokens)
        first, *others = request.tokens[: request.num_prompt_tokens]
        text_of = _texts(request.tokenizer)
        tokens = list(zip(others, rows, strict=True))
        entries: list[dict[int, PromptLogprob] | None] = []
        if (num_top := params.prompt_logprobs) is not None:
            entries = [None, *(_entry(token, row, num_top, text_of) for token, row in tokens)]
        echoed: list[TokenLogprob] = []
        if params.echo and (num_top := params.top_logprobs) is not None:
            places = _places(request)
            name = token_by_id if params.return_tokens_as_token_ids else text_of
            echoed = [TokenLogprob(name(first), None, [], places[0])]
            told = zip(tokens, places[1:], strict=True)
            echoed += [_echoed(token, row, num_top, name, place) for (token, row), place in told]
        return cls(entries, echoed)

    def before(self, delta: ChatDelta) -> ChatDelta:
        """Return an answer's first delta with the report."""
        logprobs = [*self.echoed, *delta.logprobs]
        return replace(delta, logprobs=logprobs, prompt_logprobs=self.prompt_logprobs)


def _entry(token: int, row: Row, num_top: int, text_of: Callable[[int], str]) -> dict[int, PromptLogprob]:
    """Return a token's own entry, then those of the likeliest."""
    logprob, rank, top = row
    found = {token: PromptLogprob(logprob, rank, text_of(token))}
    for place, (other, its_logprob) in enumerate(top[:num_top], 1):
        found.setdefault(other, PromptLogprob(its_logprob, place, text_of(other)))
    return found


def _echoed(token: int, row: Row, num_top: int, text_of: Callable[[int], str], place: int) -> TokenLogprob:
    """Return a token's entry as an answer's tokens have it."""
    logprob, _, top = row
    likeliest = [(text_of(other), its_logprob) for other, its_logprob in top[:num_top]]
    return TokenLogprob(text_of(token), logprob, likeliest, place)


def _places(request: Request) -> list[int]:
    """Return where in the echoed text each token of the prompt begins.

    Counted from its end: what a tokenizer puts before a text by itself (a first token, a space) is not in the text.
    """
    stream = request.tokenizer.detokenizer(shows_special=True, is_further=True)
    lengths = [len(stream.push(token)) for token in request.tokens[: request.num_prompt_tokens]]
    start = request.num_echoed - sum(lengths) - len(stream.flush())
    return [max(0, start + place) for place in accumulate(lengths[:-1], initial=0)]


def _texts(tokenizer: ModelTokenizer) -> Callable[[int], str]:
    """Return what gives each token's text, made once."""
    known: dict[int, str] = {}

    def text_of(token: int) -> str:
        text = known.get(token)
        if text is None:
            text = known[token] = tokenizer.token_text(token)
        return text

    return text_of
