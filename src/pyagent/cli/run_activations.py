"""The activations behind a run's answers as lines: of each token the neurons that wrote most, and what layers said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from pyagent.cli.output import coloured
from pyagent.core.fleet.events import ModelCalled
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.core.activations import LensToken, NeuronActivation, TokenActivations
    from pyagent.core.fleet.events import Event

_TOKEN_WIDTH = 16


def activation_lines(events: Iterable[Event], width: int) -> Iterator[str]:
    """Yield the lines of each answer that has any: its step and model, then its tokens. None where none has."""
    for event in events:
        if not isinstance(event, ModelCalled) or not event.activations:
            continue
        yield coloured(f"{printable(event.step)} · {printable(event.backend)}", "dim")
        for token in event.activations:
            yield from _token_lines(token, width)
        if event.usage.completion_tokens > (num_told := len(event.activations)) + 1:  # the end token has none
            yield coloured(f"{num_told} of {event.usage.completion_tokens} tokens have their activations kept", "dim")
        yield ""


def _token_lines(token: TokenActivations, width: int) -> Iterator[str]:
    parts = [("neurons", [*map(_neuron, token.neurons)]), ("layers", [*_runs(token.layers)])]
    head = _quoted(token.token)
    for name, words in parts:
        if words:
            first = f"{head:<{_TOKEN_WIDTH}} {name:<8} "
            yield from _wrapped(words, max(width, 60), first)
            head = ""


def _wrapped(words: Sequence[str], width: int, line: str) -> Iterator[str]:
    """Yield lines of words, none of which is broken: a token may hold spaces."""
    indent, is_begun = " " * len(line), False
    for word in words:
        if is_begun and len(line) + 2 + len(word) > width:
            yield line.rstrip()
            line, is_begun = indent, False
        line += f"  {word}" if is_begun else word
        is_begun = True
    yield line.rstrip()


def _neuron(neuron: NeuronActivation) -> str:
    promoted = " ".join(map(_quoted, neuron.promotes))
    return f"{neuron.layer}.{neuron.neuron} {neuron.activation:+.3g} ({neuron.write_norm:.3g}) {promoted}".rstrip()


def _runs(layers: Sequence[Sequence[LensToken]]) -> Iterator[str]:
    """Yield each run of layers whose first choice is the same, with that and its probability in the last of them."""
    choices = [(place, layer[0]) for place, layer in enumerate(layers) if layer]
    for token, run in groupby(choices, lambda choice: choice[1].token):
        places = [*run]
        (first, _), (last, choice) = places[0], places[-1]
        span = str(first) if first == last else f"{first}-{last}"
        yield f"{span} {_quoted(token)} {_percent(choice.logprob)}"


def _percent(logprob: float) -> str:
    from math import exp

    return f"{100 * exp(min(0.0, logprob)):.0f}%"


def _quoted(token: str) -> str:
    return '"' + printable(token).replace('"', '\\"') + '"'
