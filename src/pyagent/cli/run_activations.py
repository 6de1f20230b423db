"""The activations behind a run's answers as lines: of each token the neurons that wrote most, and what layers said."""

from __future__ import annotations

import json
import textwrap
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
    parts = [("neurons", ", ".join(map(_neuron, token.neurons))), ("layers", "  ".join(_runs(token.layers)))]
    head = _quoted(token.token)
    for name, text in parts:
        if text:
            first = f"{head:<{_TOKEN_WIDTH}} {name:<8} "
            yield from textwrap.wrap(text, max(width, 60), initial_indent=first, subsequent_indent=" " * len(first))
            head = ""


def _neuron(neuron: NeuronActivation) -> str:
    return f"{neuron.layer}.{neuron.neuron} {neuron.activation:+.3g} ({neuron.write_norm:.3g})"


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
    return json.dumps(printable(token), ensure_ascii=False)
