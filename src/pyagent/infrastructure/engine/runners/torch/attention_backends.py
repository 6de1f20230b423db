"""The torch runner's attention backends as a plugin. Imported with all plugins, so torch only when a model is loaded.

`auto` takes the quickest of those that compute the formula: Triton's kernels on a GPU, as a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from pyagent.core.hooks import hookimpl
from pyagent.core.runners.attention import Attend, AttentionBackend, AttentionShape, Mask


class PlainAttention:
    """Attention as its formula reads: slow, and what every other backend is compared with."""

    name = "torch"
    takes_sinks = True

    def unavailable_reason(self, shape: AttentionShape) -> str | None:
        """Return None: it takes every shape."""

    def open(self, shape: AttentionShape) -> Attend:
        """Return the plain form."""
        from pyagent.infrastructure.engine.runners.torch.attention.plain import attend

        return attend

    def open_invariant(self, shape: AttentionShape) -> Attend:
        """Return attention by products of one size."""
        from pyagent.infrastructure.engine.runners.torch.invariant.attention import attend

        return attend


class SdpaAttention:
    """Torch's `scaled_dot_product_attention`, over keys and values copied together."""

    name = "sdpa"
    takes_sinks = True

    def unavailable_reason(self, shape: AttentionShape) -> str | None:
        """Return why not: torch's kernels have no softcap."""
        return None if shape.softcap is None else "torch's scaled_dot_product_attention has no softcap"

    def open(self, shape: AttentionShape) -> Attend:
        """Return attention through torch's kernels; a CPU gathers into memory that stays, without sinks."""
        if shape.device.startswith("cpu") and not shape.has_sinks:
            from pyagent.infrastructure.engine.runners.torch.attention.cpu import CpuAttend

            return CpuAttend()
        from pyagent.infrastructure.engine.runners.torch.attention.sdpa import attend

        return attend


class TritonAttention:
    """Our kernels, which read pages where they lie."""

    name = "triton"
    takes_sinks = True

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

    def open_invariant(self, shape: AttentionShape) -> Attend:
        """Return attention by the prompts' kernel for every query."""
        from pyagent.infrastructure.engine.runners.torch.kernels.attention import attend_invariant

        return attend_invariant


class RustAttention:
    """The Rust core's kernel for sequences that decode on torch's CPU device, which reads pages where they lie."""

    name = "rust"

    def unavailable_reason(self, shape: AttentionShape) -> str | None:
        """Return why not: other devices or data types, heads of no whole registers, or a torch without its threads."""
        from pyagent.infrastructure.engine.runners.torch.device import KV_DTYPES
        from pyagent.infrastructure.engine.runners.torch.rust_kernels import no_kernels_reason

        if shape.softcap is not None:
            return "prompts go through torch's scaled_dot_product_attention, which has no softcap"
        if shape.head_dim % _RUST_LANES:
            return f"the Rust core's kernel takes heads of multiples of {_RUST_LANES}, not {shape.head_dim}"
        return no_kernels_reason(shape.device, KV_DTYPES[shape.dtype], KV_DTYPES[shape.kv_dtype])

    def open(self, shape: AttentionShape) -> Attend:
        """Return attention through the kernel."""
        from pyagent.infrastructure.engine.runners.torch.attention.rust import RustAttend

        return RustAttend()


class FlexAttention:
    """Torch's FlexAttention, under a mask of the user's besides what the model's windows and order hide.

    `mask(head, query_position, key_position)` gets integer tensors and returns whether the query sees the key, by
    torch's operations. A query must see itself. What no query will see stays in memory: only windows let blocks go.
    """

    takes_sinks = True

    def __init__(self, name: str = "flex", mask: Mask | None = None) -> None:
        self.name = name
        self._mask = mask

    def unavailable_reason(self, shape: AttentionShape) -> str | None:
        """Return why not: it is not in every torch."""
        return None if find_spec("torch.nn.attention.flex_attention") else "this torch has no FlexAttention"

    def passed_over_reason(self, shape: AttentionShape) -> str | None:
        """Return why `auto` leaves it out."""
        return "it is for masks, and is compiled for seconds" if self._mask is None else "it has a mask of its own"

    def open(self, shape: AttentionShape) -> Attend:
        """Return attention under the mask."""
        from pyagent.infrastructure.engine.runners.torch.attention.flex import FlexAttend

        return FlexAttend(self._mask)


class FlashInferAttention:
    """FlashInfer's kernels, where the package is installed."""

    name = "flashinfer"

    def unavailable_reason(self, shape: AttentionShape) -> str | None:
        """Return why not: no such package or GPU, or shapes that it is not built for."""
        return _package_reason("flashinfer", "flashinfer-python", shape) or (
            None if shape.head_dim in _FLASHINFER_DIMS else f"FlashInfer has no kernel for heads of {shape.head_dim}"
        )

    def open(self, shape: AttentionShape) -> Attend:
        """Return attention through FlashInfer, with memory to work in."""
        import torch

        from pyagent.infrastructure.engine.runners.torch.attention.flashinfer import FlashInferAttend

        return FlashInferAttend(torch.device(shape.device))


class FlashAttention:
    """FlashAttention 3, where its module is installed."""

    name = "flash_attn"

    def unavailable_reason(self, shape: AttentionShape) -> str | None:
        """Return why not: no such module or GPU, or shapes that it is not built for."""
        return _package_reason("flash_attn_interface", "FlashAttention 3", shape) or (
            None if shape.head_dim <= _MOST_FLASH_DIM else f"FlashAttention has no kernel for heads of {shape.head_dim}"
        )

    def open(self, shape: AttentionShape) -> Attend:
        """Return attention through FlashAttention."""
        from pyagent.infrastructure.engine.runners.torch.attention.flash_attn import attend

        return attend


_RUST_LANES = 16
_FLASHINFER_DIMS = (64, 128, 256)
_MOST_FLASH_DIM = 256


def _package_reason(module: str, package: str, shape: AttentionShape) -> str | None:
    """Return why a package's kernels cannot be used: it is not there, or they are not for such numbers."""
    if find_spec(module) is None:
        return f"{package} is not installed (there is no module {module})"
    if not shape.device.startswith("cuda"):
        return f"{package} needs a CUDA device, and this one is {shape.device}"
    if shape.dtype not in {"f16", "bf16"} or shape.kv_dtype != shape.dtype:
        return f"{package} takes f16 or bf16 alike for queries and keys, not {shape.dtype} and {shape.kv_dtype}"
    try:
        import_module(module)
    except Exception as error:  # noqa: BLE001 - what is built for another torch or driver fails in any way
        return f"{package} cannot be imported: {type(error).__name__}: {error}"
    return None


BACKENDS: tuple[AttentionBackend, ...] = (
    TritonAttention(),
    RustAttention(),
    SdpaAttention(),
    PlainAttention(),
    FlexAttention(),
    FlashInferAttention(),
    FlashAttention(),
)


@hookimpl
def pyagent_register_attention_backends() -> Sequence[AttentionBackend]:
    """What comes with the torch runner."""
    return BACKENDS
