"""The Rust core's kernels over tensors of torch's CPU device, in torch's own threads; and stages made of them.

Few rows are too little work for torch's operations: each takes longer to begin than to compute, and a norm, a gate or a
rotation is several of them. The kernels are for float32. They are taken where they can use torch's threads, as threads
of their own would have to share the cores with those, which wait busily between operations.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from pyagent import _rust
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache
from pyagent.infrastructure.engine.runners.torch.layers import Activation, ClampedSwiglu, gated
from pyagent.infrastructure.engine.runners.torch.stages import Heads


def open_kernels() -> _rust.TorchKernels:
    """Return the kernels with the threads of this torch, where its library lends them."""
    return _rust.TorchKernels(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")


def no_kernels_reason(device: str, dtype: torch.dtype, kv_dtype: torch.dtype) -> str | None:
    """Return why the kernels are not for such tensors, or not for this torch; None where they are."""
    if device != "cpu":
        return f"the Rust core's kernels are for torch's CPU device, not {device}"
    if dtype != torch.float32 or kv_dtype != torch.float32:
        return "the Rust core's kernels over tensors are for float32"
    return None if open_kernels().has_threads else "this torch does not lend its threads to the Rust core"


def numbers_of(tensor: Tensor) -> memoryview:
    """Return a tensor's memory as the kernels take it."""
    return tensor.numpy().data


def pages_of(tensor: Tensor) -> memoryview[float]:
    """Return the memory of KV pages, float32 side by side, while the call lasts.

    Not by numpy, which would pin the storage: KV memory goes and comes back.
    """
    return _numbers_at(tensor.data_ptr(), tuple(tensor.shape))


@lru_cache(maxsize=1024)
def _numbers_at(address: int, shape: tuple[int, ...]) -> memoryview[float]:
    numbers = (ctypes.c_float * math.prod(shape)).from_address(address)
    return memoryview(numbers).cast("B").cast("f", shape)


class RustStages:
    """The kernels as `Stages`."""

    def __init__(self) -> None:
        self._kernels = open_kernels()

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """As `Stages.rms_norm`."""
        out = torch.empty(x.shape)
        numbers = numbers_of(x.contiguous()), numbers_of(weight), numbers_of(out)
        self._kernels.rms_norm(*numbers, epsilon=epsilon, num_threads=torch.get_num_threads())
        return out

    def add_rms_norm(self, x: Tensor, branch: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """As `Stages.add_rms_norm`."""
        out, total = torch.empty(x.shape), torch.empty(x.shape)
        self._kernels.rms_norm(
            numbers_of(x.contiguous()),
            numbers_of(weight),
            numbers_of(out),
            epsilon=epsilon,
            num_threads=torch.get_num_threads(),
            branch=numbers_of(branch.contiguous()),
            total=numbers_of(total),
        )
        return total, out

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """As `Stages.gated`."""
        if isinstance(activation, ClampedSwiglu):
            return gated(gate_up, activation)
        out = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2)
        numbers = numbers_of(gate_up.contiguous()), numbers_of(out)
        self._kernels.gated(*numbers, is_silu=activation == "silu", num_threads=torch.get_num_threads())
        return out

    def rotate_and_store(
        self, heads: Heads, cos_sin: tuple[Tensor, Tensor], rows: Tensor, cache: PagedCache, *, is_interleaved: bool
    ) -> Tensor:
        """As `Stages.rotate_and_store`."""
        q, k, v = heads
        cos, sin = cos_sin
        out = torch.empty(q.shape)
        self._kernels.rotate_and_store(
            (numbers_of(q), numbers_of(k), numbers_of(v)),
            (numbers_of(cos), numbers_of(sin)),
            numbers_of(rows),
            pages_of(cache.keys),
            pages_of(cache.values),
            numbers_of(out),
            is_interleaved=is_interleaved,
            num_threads=torch.get_num_threads(),
        )
        return out
