"""Feed-forward blocks as what they do with a step's rows: a gated MLP here, a mixture of experts in `experts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.layers import Activation
    from pyagent.infrastructure.engine.runners.torch.linear import Linear
    from pyagent.infrastructure.engine.runners.torch.stages import Stages


class FeedForward(Protocol):
    """A layer's block."""

    def __call__(self, x: Tensor, stages: Stages, *, is_decode: bool) -> Tensor:
        """Return [T, hidden] for `x` [T, hidden]: a rank's part of it.

        A step that decodes may be captured: the host asks for nothing then that the device computes.
        """
        ...


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """Gate and up in one matrix, and down."""

    gate_up: Linear
    down: Linear
    activation: Activation

    def __call__(self, x: Tensor, stages: Stages, *, is_decode: bool) -> Tensor:
        """As `FeedForward`."""
        del is_decode
        return self.down(stages.gated(self.gate_up(x), self.activation))
