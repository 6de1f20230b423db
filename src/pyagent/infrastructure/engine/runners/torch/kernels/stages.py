"""The stages between a decoder's products, as `Stages` says, through Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.kernels import norms, rotary
from pyagent.infrastructure.engine.runners.torch.kernels.gates import gate

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache
    from pyagent.infrastructure.engine.runners.torch.layers import Activation
    from pyagent.infrastructure.engine.runners.torch.stages import Heads


class TritonStages:
    """Kernels that read each row once."""

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """As `Stages.rms_norm`."""
        return norms.rms_norm(x, weight, epsilon)

    def add_rms_norm(self, x: Tensor, branch: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """As `Stages.add_rms_norm`; the sum is written into `x`."""
        return x, norms.rms_norm(branch, weight, epsilon, residual=x)

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """As `Stages.gated`."""
        return gate(gate_up, activation)

    def rotate_and_store(
        self, heads: Heads, cos_sin: tuple[Tensor, Tensor], rows: Tensor, cache: PagedCache, *, is_interleaved: bool
    ) -> Tensor:
        """As `Stages.rotate_and_store`; the queries are turned in place."""
        cos, sin = cos_sin
        rotary.rotate_and_store(heads, cos.flatten(1), sin.flatten(1), rows, cache, is_interleaved=is_interleaved)
        return heads[0]
