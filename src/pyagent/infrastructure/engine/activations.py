"""The activations behind a request's tokens: from what it asks for to what its outputs say of them.

The numbers come from the runner, with each step; here they wait for their tokens to be told, and get texts. Knows no
loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyagent.core.activations import LensToken, NeuronActivation, TokenActivations
from pyagent.core.errors import RequestError, UnsupportedError
from pyagent.core.runners.batch import Probe, ProbedToken

if TYPE_CHECKING:
    from pyagent.core.messages import SamplingParams
    from pyagent.core.runners.runner import RunnerInfo
    from pyagent.infrastructure.engine.tokens import ModelTokenizer

MAX_ENTRIES = 300_000
"""Neurons and tokens of layers that are told of all answers of a request; each takes about a hundred bytes."""


def make_probe(params: SamplingParams, info: RunnerInfo, num_tokens: int) -> Probe | None:
    """Return what is asked of each output token; None where nothing is.

    Raises `UnsupportedError` for what the model's runner does not tell, and `RequestError` where all of up to
    `num_tokens` tokens together would be told too much of.
    """
    asked = {"top_activations": params.top_activations, "logit_lens": params.logit_lens}
    fields = [name for name, number in asked.items() if number is not None]
    if not fields:
        return None
    if lacking := [name for name in fields if name not in info.probes]:
        text = f"{' and '.join(lacking)}: {info.architecture} on this runner does not tell this of its tokens"
        raise UnsupportedError(text, backend="native", fields=lacking)
    probe = Probe(params.top_activations or 0, params.logit_lens or 0)
    num_each = probe.num_neurons + probe.num_lens_tokens * info.num_layers
    if num_each * num_tokens > MAX_ENTRIES:
        text = f"{' and '.join(fields)}: {num_each} entries for each of up to {num_tokens} output tokens are "
        text += f"more than the {MAX_ENTRIES} that are told; ask for at most {MAX_ENTRIES // num_each} tokens in all "
        raise RequestError(text + "(max_tokens, n), or for fewer of each", param=fields[0])
    return probe


class ActivationLog:
    """What the steps told of an answer's tokens, until these go out."""

    def __init__(self, probe: Probe, tokenizer: ModelTokenizer) -> None:
        self.probe = probe
        self._text_of = tokenizer.token_text
        self._waiting = deque[ProbedToken]()

    def push(self, told: Iterable[ProbedToken]) -> None:
        """Take in what a step told of the tokens that it sampled, in their order."""
        self._waiting += told

    def take(self, tokens: Sequence[int]) -> tuple[TokenActivations, ...]:
        """Return what was told of the next tokens that go out."""
        return tuple(self._read(token, self._waiting.popleft()) for token in tokens if self._waiting)

    def _read(self, token: int, told: ProbedToken) -> TokenActivations:
        text_of = self._text_of
        layers = [[LensToken(text_of(one), logprob) for one, logprob in layer] for layer in told.layers]
        neurons = [
            NeuronActivation(layer, neuron, activation, write_norm, [*map(text_of, promoted)])
            for layer, neuron, activation, write_norm, promoted in told.neurons
        ]
        return TokenActivations(text_of(token), neurons, layers)
