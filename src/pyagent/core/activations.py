"""What a backend tells of how a token came about: the neurons that wrote most, and what each layer would have said.

The words are the field's: a neuron's activation is TransformerLens' `blocks.LAYER.mlp.hook_post`, the logit lens is
nostalgebraist's (2020). Knows no model.
"""

from __future__ import annotations

import msgspec

MOST_NEURONS = 32
"""Neurons of one token that can be asked for."""
MOST_LENS_TOKENS = 20
"""Tokens of one layer that can be asked for, as many as `top_logprobs`."""


class NeuronActivation(msgspec.Struct, frozen=True):
    """A neuron of a feed-forward block: place `neuron` of layer `layer`, both from 0.

    `activation` is what its gate lets through. `write_norm` is the length of what it adds to the residual stream,
    |activation| times that of its column of the down matrix (arXiv 2203.14680), before a norm that the model family
    has after the block. What it adds `promotes` these tokens more than all others, by the model's last norm and output
    matrix alone; the first one most.
    """

    layer: int
    neuron: int
    activation: float
    write_norm: float
    promotes: list[str] = []


class LensToken(msgspec.Struct, frozen=True):
    """A token that a layer would have said, with its log probability there."""

    token: str
    logprob: float


class TokenActivations(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an output token came about, at the place that it was sampled from.

    `neurons` of all layers together, those that wrote most first; of equals the one in the earlier place. `layers` has
    for each layer, the first one first, the likeliest tokens that the last norm and the output matrix read from the
    residual stream after it: those of the last layer are the model's own, before penalties and masks.
    """

    token: str
    neurons: list[NeuronActivation] = []
    layers: list[list[LensToken]] = []
