"""How likely a model finds each of several answers, by its log probabilities when it is held to one of them.

The model answers under a choice, and tells the likeliest tokens at each place, of those that the choice allows. A token
that begins one option alone is for that option; one that several begin with is decided by the next token: along the
answer given, and for the others by asking again among them. Exact as far as the tokens told are all there is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.messages import Message, SamplingParams, TokenLogprob
from pyagent.core.structured_output.wanted import Wanted

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

MAX_OPTIONS = 100
_TOP = 20
_MAX_TOKENS = 64
_MAX_CALLS = 8
_WORTH_ASKING = 0.02
"""Probability that options with a common beginning have to have together, to be told apart by another call."""


class Choice(msgspec.Struct, frozen=True):
    """The answer given, and the probability of each option; None where the backend tells no log probabilities."""

    answer: str
    probabilities: dict[str, float] | None


async def choose(context: Context, messages: Sequence[Message], options: Sequence[str]) -> Choice:
    """Return what the model chooses and how likely it finds each option; at most `MAX_OPTIONS`, all different."""
    answer, split = await _ask(context, messages, options)
    if split is None:
        return Choice(answer, None)
    found = dict.fromkeys(options, 0.0)
    waiting, num_calls = [(1.0, split)], 1
    while waiting:
        share, (own, groups) = waiting.pop(0)
        for option, probability in own.items():
            found[option] += share * probability
        for group, probability in groups:
            again = None
            if share * probability >= _WORTH_ASKING and num_calls < _MAX_CALLS and len(group) < len(options):
                num_calls += 1
                _, again = await _ask(context, messages, group)
            if again is not None:
                waiting.append((share * probability, again))
            else:
                for option in group:
                    found[option] += share * probability / len(group)
    total = math.fsum(found.values())
    if not total > 0.0:
        return Choice(answer, None)
    return Choice(answer, {option: probability / total for option, probability in found.items()})


_Split = tuple[dict[str, float], list[tuple[list[str], float]]]
"""The probability of each option that is decided, and of those with a common beginning together."""


async def _ask(context: Context, messages: Sequence[Message], options: Sequence[str]) -> tuple[str, _Split | None]:
    wanted = Wanted(None, options)
    sampling = SamplingParams(temperature=0.0, max_tokens=_MAX_TOKENS, top_logprobs=_TOP)
    completion = await context.answer(list(messages), wanted.response_format, sampling)
    answer = completion.text if completion.text in options else _nearest(completion.text, options)
    return answer, split_by_tokens(completion.logprobs, options)


def _nearest(text: str, options: Sequence[str]) -> str:
    """Return the option that an answer means which was not held to the choice: what it begins with, else the first."""
    said = text.strip().casefold()
    return next((each for each in options if said.startswith(each.casefold())), options[0])


def _weights(token: TokenLogprob, *, is_first: bool) -> dict[str, float]:
    """Return the probabilities told at a place; spaces before an answer do not count."""
    likely = token.top_logprobs or ([(token.token, token.logprob)] if token.logprob is not None else [])
    weights: dict[str, float] = {}
    for text, logprob in likely:
        if math.isfinite(logprob):
            said = text.lstrip() if is_first else text
            weights[said] = weights.get(said, 0.0) + math.exp(min(0.0, logprob))
    return weights


def split_by_tokens(tokens: Sequence[TokenLogprob], options: Sequence[str]) -> _Split | None:
    """Return how the tokens told divide the options; None where none are told, or they fit no option."""
    own: dict[str, float] = {}
    groups: list[tuple[list[str], float]] = []
    prefix, share = "", 1.0
    for token in tokens:
        left = [option for option in options if option.startswith(prefix)]
        if len(left) < 2:
            break
        weights = _weights(token, is_first=not prefix)
        fitting = {text: [each for each in left if text and each.startswith(prefix + text)] for text in weights}
        if prefix in left:  # an option that others begin with: what fits none of them ends it
            fitting |= {text: [prefix] for text, found in fitting.items() if not found}
        total = math.fsum(weights[text] for text, found in fitting.items() if found)
        if not total:
            return None if not prefix else (own, [*groups, (left, share)])
        said, going_on = token.token if prefix else token.token.lstrip(), 0.0
        for text, found in fitting.items():
            probability = share * weights[text] / total
            if len(found) == 1:
                own[found[0]] = own.get(found[0], 0.0) + probability
            elif text == said:
                going_on = probability
            elif found:
                groups.append((found, probability))
        prefix, share = prefix + said, going_on
        if not going_on:
            return own, groups
    left = [option for option in options if option.startswith(prefix)]
    if not prefix or not left:
        return None
    if prefix in left:  # it ended with an option that others begin with
        own[prefix] = own.get(prefix, 0.0) + share
    else:
        groups.append((left, share))
    return own, groups
