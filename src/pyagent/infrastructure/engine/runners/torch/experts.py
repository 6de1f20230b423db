"""Mixtures of experts: a router rates a layer's experts for each token, and a few of them compute it.

The rules of choice are the CPU runner's (`rust_core/engine/src/forward/experts/choice.rs`). A token's experts lie
beside each other and are added up in the order of their ratings, whatever else is in the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from pyagent.infrastructure.engine.runners.torch.linear import DenseLinear
from pyagent.infrastructure.engine.runners.torch.quantised.mxfp4 import UNPACKED_BYTES, ExpertRows, Mxfp4

if TYPE_CHECKING:
    from pyagent._rust import ExpertsConfig
    from pyagent.infrastructure.engine.runners.torch.layers import Activation
    from pyagent.infrastructure.engine.runners.torch.linear import Linear
    from pyagent.infrastructure.engine.runners.torch.mlp import FeedForward
    from pyagent.infrastructure.engine.runners.torch.stages import Stages

GATHER_BYTES = 256 << 20
"""Of experts' weights that lie beside each other for one product, at most; one expert at least."""
_LEAST_SUM = 1e-20
"""What sums of sigmoids are at least, so that they can be divided by."""

Gate = Callable[[Tensor], Tensor]
"""What makes an expert's inside [n, F] of its gates and ups [n, 2 F]."""


class ExpertProducts(Protocol):
    """A layer's experts, as far as a rank has them."""

    def __call__(self, x: Tensor, places: Tensor, gate: Gate, *, is_decode: bool) -> Tensor:
        """Return what their experts `places` [T, k] make of the rows `x` [T, hidden]: [T, k, hidden]."""
        ...


@dataclass(frozen=True, slots=True)
class ExpertMlp:
    """As `FeedForward`: experts that a router chooses, beside an MLP that all tokens share, if there is one."""

    config: ExpertsConfig
    router: Linear  # float32
    correction: Tensor | None
    experts: ExpertProducts
    shared: FeedForward | None
    shared_gate: Linear | None
    activation: Activation

    def __call__(self, x: Tensor, stages: Stages, *, is_decode: bool) -> Tensor:
        """As `FeedForward`."""
        weights, places = choose_experts(self.router(x.float()), self.config, self.correction)
        gate = partial(stages.gated, activation=self.activation)
        total = weighed_sum(self.experts(x, places, gate, is_decode=is_decode), weights)
        if self.shared is not None:
            beside = self.shared(x, stages, is_decode=is_decode)
            total += beside if self.shared_gate is None else beside * sigmoid(self.shared_gate(x))
        return total.to(x.dtype)


def choose_experts(ratings: Tensor, config: ExpertsConfig, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the weights, float32, and the numbers of each token's experts [T, k], for ratings [T, experts].

    The highest are chosen, the first of equals; a correction is added only to choose.
    """
    shares = sigmoid(ratings) if config.is_rated_by_sigmoid else ratings.softmax(-1)
    ranked = ratings if correction is None and config.num_groups == 1 else shares
    if correction is not None:
        ranked = ranked + correction
    if config.num_groups > 1:
        ranked = _of_best_groups(ranked, config)
    places = _highest(ranked, config.num_used)
    weights = shares.gather(-1, places)
    if config.is_renormalised:
        total = weights.sum(-1, keepdim=True)
        weights = weights / (total + _LEAST_SUM if config.is_rated_by_sigmoid else total)
    return weights * config.weight_scale, places


def _highest(rated: Tensor, num: int) -> Tensor:
    """Where the highest of each row are, the highest first; a stable sort, as `topk` takes any of equals."""
    return rated.sort(dim=-1, descending=True, stable=True).indices[..., :num]


def _of_best_groups(ranked: Tensor, config: ExpertsConfig) -> Tensor:
    """Take the experts away that are not in the groups with the best two."""
    grouped = ranked.unflatten(-1, (config.num_groups, -1))
    best = grouped.sort(-1, descending=True).values[..., :2].sum(-1)
    is_left = torch.zeros_like(best, dtype=torch.bool).scatter(-1, _highest(best, config.num_used_groups), True)
    return grouped.masked_fill(~is_left[..., None], -torch.inf).flatten(-2)


def sigmoid(x: Tensor) -> Tensor:
    """Return the sigmoid by the exponential: torch's own computes what fills no vector of the CPU's otherwise."""
    return 1 / ((-x).exp() + 1)


def weighed_sum(outputs: Tensor, weights: Tensor) -> Tensor:
    """Return the sum [T, hidden] of outputs [T, k, hidden] times weights [T, k], float32.

    One after the other: in which order torch adds up a dimension, it chooses by the shape of the others.
    """
    total = outputs[:, 0] * weights[:, :1]
    for place in range(1, weights.shape[1]):
        total += outputs[:, place] * weights[:, place : place + 1]
    return total


class GroupedExperts:
    """As `ExpertProducts`: an expert's weights are read once a step, for all of its tokens together.

    How many these are the host has to ask the device.
    """

    def __init__(self, experts: Sequence[tuple[Linear, Linear]]) -> None:
        """Of each expert, gate and up in one matrix, and down."""
        self._experts = experts

    def __call__(self, x: Tensor, places: Tensor, gate: Gate, *, is_decode: bool) -> Tensor:
        """As `ExpertProducts`."""
        del is_decode
        chosen, num_used = places.flatten(), places.shape[1]
        counts = chosen.bincount(minlength=len(self._experts)).tolist()
        slots = chosen.argsort(stable=True)
        out = x.new_empty(len(chosen), x.shape[1])
        for (gate_up, down), part in zip(self._experts, slots.split(counts), strict=True):
            if len(part):
                out[part] = down(gate(gate_up(x[part // num_used])))
        return out.view(*places.shape, -1)


class MatrixStack(Protocol):
    """A matrix [out, in] of each of a layer's experts, with or without biases."""

    @property
    def expert_bytes(self) -> int:
        """What is copied for one row's product."""
        ...

    def linears(self) -> Sequence[Linear]:
        """Return each expert's matrix."""
        ...

    def each(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """Return each row's [n, in] product with the matrix of its expert `chosen` [n]: [n, out]. Waits for nothing."""
        ...


class DenseStack:
    """As `MatrixStack`: one tensor [E, out, in], and biases [E, out]."""

    def __init__(self, weights: Tensor, biases: Tensor | None = None) -> None:
        self._weights, self._biases = weights, biases

    @property
    def expert_bytes(self) -> int:
        """As `MatrixStack.expert_bytes`."""
        return self._weights[0].nbytes

    def linears(self) -> Sequence[Linear]:
        """As `MatrixStack.linears`."""
        biases = [None] * len(self._weights) if self._biases is None else self._biases.unbind()
        return [DenseLinear(*both) for both in zip(self._weights.unbind(), biases, strict=True)]

    def each(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """As `MatrixStack.each`."""
        return _each(self._weights.index_select(0, chosen), self._biases, rows, chosen)


class Mxfp4Stack:
    """As `MatrixStack`, in 4 bits: what a product needs is dequantised for it, or read by a kernel as it is."""

    def __init__(
        self, weights: Mxfp4, biases: Tensor | None, dtype: torch.dtype, kernel: ExpertRows | None = None
    ) -> None:
        self._weights, self._biases, self._dtype, self._kernel = weights, biases, dtype, kernel

    @property
    def expert_bytes(self) -> int:
        """As `MatrixStack.expert_bytes`; with a kernel, what it writes."""
        numbers = self._weights.numbers[0]
        if self._kernel is not None:
            return len(numbers) * self._dtype.itemsize
        return numbers.nbytes + 2 * numbers.numel() * (self._dtype.itemsize + UNPACKED_BYTES)

    def linears(self) -> Sequence[Linear]:
        """As `MatrixStack.linears`."""
        biases = [None] * len(self._weights.numbers) if self._biases is None else self._biases.unbind()
        both = zip(*(tensor.unbind() for tensor in self._weights), biases, strict=True)
        return [partial(self._product, Mxfp4(numbers, scales), bias) for numbers, scales, bias in both]

    def each(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """As `MatrixStack.each`."""
        if self._kernel is not None:
            return self._kernel(rows, self._weights, self._biases, chosen)
        copied = Mxfp4(*(tensor.index_select(0, chosen) for tensor in self._weights))
        return _each(copied.dequantised(self._dtype), self._biases, rows, chosen)

    def _product(self, weight: Mxfp4, bias: Tensor | None, x: Tensor) -> Tensor:
        return functional.linear(x, weight.dequantised(self._dtype), bias)


class StackedExperts:
    """As `ExpertProducts`, over all matrices of a layer's experts: gates and ups, and downs.

    A step that decodes multiplies copies of its experts' matrices, a number of them at a time that depends on shapes
    alone, and waits for nothing. Others group.
    """

    def __init__(self, gate_up: MatrixStack, down: MatrixStack) -> None:
        self._gate_up, self._down = gate_up, down
        self._expert_bytes = gate_up.expert_bytes + down.expert_bytes
        self._grouped = GroupedExperts(list(zip(gate_up.linears(), down.linears(), strict=True)))

    def __call__(self, x: Tensor, places: Tensor, gate: Gate, *, is_decode: bool) -> Tensor:
        """As `ExpertProducts`."""
        if not is_decode:
            return self._grouped(x, places, gate, is_decode=is_decode)
        step = max(1, GATHER_BYTES // self._expert_bytes)
        rows = x.repeat_interleave(places.shape[1], 0)  # [T * k, hidden]
        pieces = [
            self._gathered(some, chosen, gate)
            for some, chosen in zip(rows.split(step), places.flatten().split(step), strict=True)
        ]
        return torch.cat(pieces).view(*places.shape, -1)

    def _gathered(self, rows: Tensor, chosen: Tensor, gate: Gate) -> Tensor:
        return self._down.each(gate(self._gate_up.each(rows, chosen)), chosen)


def _each(matrices: Tensor, biases: Tensor | None, rows: Tensor, chosen: Tensor) -> Tensor:
    """Return each row's [n, in] product with a matrix of its own [n, out, in], and its expert's bias."""
    products = torch.bmm(matrices, rows[..., None])[..., 0]
    return products if biases is None else products.add_(biases.index_select(0, chosen))
