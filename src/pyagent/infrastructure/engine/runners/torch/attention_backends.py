"""The torch runner's attention backends as a plugin. Imported with all plugins, so torch only when a model is loaded.

`auto` takes the quickest of those that compute the formula: Triton's kernels on a GPU, as a rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyagent.core.hooks import hookimpl
from pyagent.core.runners.attention import Attend, AttentionBackend, AttentionShape


class PlainAttention:
    """Attention as its formula reads: slow, and what every other backend is compared with."""

    name = "torch"

    def unavailable_reason(self, shape: AttentionShape) -> str | None:
        """Return None: it takes every shape."""

    def open(self, shape: AttentionShape) -> Attend:
        """Return the plain form."""
        from pyagent.infrastructure.engine.runners.torch.attention.plain import attend

        return attend


class SdpaAttention:
    """Torch's `scaled_dot_product_attention`, over keys and values copied together."""

    name = "sdpa"

    def unavailable_reason(self, shape: AttentionShape) -> str | None:
        """Return why not: torch's kernels have no softcap."""
        return None if shape.softcap is None else "torch's scaled_dot_product_attention has no softcap"

    def open(self, shape: AttentionShape) -> Attend:
        """Return attention through torch's kernels."""
        from pyagent.infrastructure.engine.runners.torch.attention.sdpa import attend

        return attend


class TritonAttention:
    """Our kernels, which read pages where they lie."""

    name = "triton"

    def unavailable_reason(self, shape: AttentionShape) -> str | None:
        """Return why the kernels cannot run on the device, or have no tile for such heads."""
        from pyagent.infrastructure.engine.runners.torch.kernels import no_tile_reason, unavailable_reason

        group = shape.num_heads // shape.num_kv_heads
        return unavailable_reason(shape.device) or no_tile_reason(group, shape.head_dim)

    def passed_over_reason(self, shape: AttentionShape) -> str | None:
        """Return why `auto` leaves it out: Triton's interpreter is for tests."""
        return None if shape.device.startswith("cuda") else "Triton's interpreter is for tests"

    def open(self, shape: AttentionShape) -> Attend:
        """Return attention through the kernels."""
        from pyagent.infrastructure.engine.runners.torch.kernels.attention import attend

        return attend


BACKENDS: tuple[AttentionBackend, ...] = (TritonAttention(), SdpaAttention(), PlainAttention())


@hookimpl
def pyagent_register_attention_backends() -> Sequence[AttentionBackend]:
    """What comes with the torch runner."""
    return BACKENDS
