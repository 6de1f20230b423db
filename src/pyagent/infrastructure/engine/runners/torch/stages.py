"""What lies between a decoder's matrix products, attention aside: torch's own operations, or Triton's kernels.

Kernels are taken on a GPU where a trial with the model's shapes gives what torch's operations give. Where it does not,
or Triton cannot compile there, the log says why and torch's own are taken.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.infrastructure.engine.runners.torch import kernels
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import FP8, PagedCache
from pyagent.infrastructure.engine.runners.torch.attention.trial import first_line
from pyagent.infrastructure.engine.runners.torch.layers import Activation, activation_of, gated, rms_norm, rotate

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.architectures.brought import Shape

logger = logging.getLogger(__name__)

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries [T, Hq, D], keys and values [T, Hkv, D] of a step."""

_NUM_TOKENS, _NUM_PAGES = 22, 128
"""Of a trial."""


class Stages(Protocol):
    """A step's operations beside its products. What they are given of the step itself they may write into."""

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Return `x` [T, D] or [T, H, D] with a root mean square of 1, times `weight` [D]."""
        ...

    def add_rms_norm(self, x: Tensor, branch: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """Return `x + branch` [T, D], and that sum as `rms_norm` gives it."""
        ...

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """Return the activated first half of the columns times the second."""
        ...

    def rotate_and_store(
        self, heads: Heads, cos_sin: tuple[Tensor, Tensor], rows: Tensor, cache: PagedCache, *, is_interleaved: bool
    ) -> Tensor:
        """Return the queries turned; the keys turned, and the values, go to rows [T] of the cache.

        A row is page * BLOCK_TOKENS + place in the page.
        """
        ...


class TorchStages:
    """Torch's own operations: the oracle of the kernels."""

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """As `Stages.rms_norm`."""
        return rms_norm(x, weight, epsilon)

    def add_rms_norm(self, x: Tensor, branch: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """As `Stages.add_rms_norm`."""
        total = x + branch
        return total, rms_norm(total, weight, epsilon)

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """As `Stages.gated`."""
        return gated(gate_up, activation)

    def rotate_and_store(
        self, heads: Heads, cos_sin: tuple[Tensor, Tensor], rows: Tensor, cache: PagedCache, *, is_interleaved: bool
    ) -> Tensor:
        """As `Stages.rotate_and_store`."""
        q, k, v = heads
        turned = rotate(torch.cat((q, k), 1), cos_sin, is_interleaved=is_interleaved)  # both at once: half the calls
        cache.store(rows, turned[:, q.shape[1] :], v)
        return turned[:, : q.shape[1]]


@dataclass(frozen=True, slots=True)
class Trial:
    """A small step with a model's shapes, on random numbers: what a decoder's layers ask of their stages."""

    config: Shape
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype

    def fault(self, stages: Stages) -> str | None:
        """Return what is wrong with the results of these stages; None where they are as torch's."""
        most = 1e-4 if self.dtype == torch.float32 and self.kv_dtype != FP8 else 3e-2
        try:
            results, expected = self._results(stages), self._results(TorchStages())
        except Exception as error:  # noqa: BLE001 - whatever a compiler or driver raises is why they are not taken
            return first_line(error)
        for name, result in results.items():
            wanted = expected[name].float()
            error = float((result.float() - wanted).norm() / wanted.norm())
            if not error < most:
                return f"{name} is wrong by {error:.1e}"
        return None

    def _results(self, stages: Stages) -> dict[str, Tensor]:
        config, generator = self.config, torch.Generator().manual_seed(1)

        def random(*shape: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.randn(shape, generator=generator).to(self.device, dtype)

        heads, kv_heads, dim, epsilon = config.num_heads, config.num_kv_heads, config.head_dim, config.norm_epsilon
        shape = (_NUM_TOKENS, config.hidden_size)
        weight = random(config.hidden_size, dtype=torch.float32)
        total, normed = stages.add_rms_norm(random(*shape), random(*shape), weight, epsilon)
        results = {"the residual": total, "RMSNorm with residual": normed}
        results["RMSNorm"] = stages.rms_norm(random(*shape), weight, epsilon)
        q, k, v = random(_NUM_TOKENS, heads + 2 * kv_heads, dim).split([heads, kv_heads, kv_heads], 1)
        results["RMSNorm of heads"] = stages.rms_norm(k, random(dim, dtype=torch.float32), epsilon)
        results["the gate"] = stages.gated(random(_NUM_TOKENS, 2 * config.ffn_size), activation_of(config))
        angles = random(_NUM_TOKENS, 1, len(config.rope_frequencies), dtype=torch.float32)
        cache_shape = (_NUM_PAGES, BLOCK_TOKENS, kv_heads, dim)
        cache = PagedCache.made(
            cache_shape, self.kv_dtype, lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=self.device)
        )
        rows = torch.randperm(_NUM_PAGES * BLOCK_TOKENS, generator=generator)[:_NUM_TOKENS].to(self.device)
        cos_sin, is_interleaved = (angles.cos(), angles.sin()), config.is_rope_interleaved
        q = stages.rotate_and_store((q, k, v), cos_sin, rows, cache, is_interleaved=is_interleaved)
        keys, values = cache.read(torch.arange(_NUM_PAGES, device=self.device))
        results |= {"the rotation": q, "the keys": keys, "the values": values}
        return results


def choose_stages(trial: Trial) -> Stages:
    """Return the kernels where they work, else torch's own operations, with the reason in the log."""
    if trial.device.type != "cuda":
        return _choose_cpu_stages(trial)  # Triton's interpreter is for tests
    reason = kernels.unavailable_reason(trial.device.type)
    if reason is None:
        from pyagent.infrastructure.engine.runners.torch.kernels.stages import TritonStages

        start = time.perf_counter()
        reason = trial.fault(TritonStages())
        if reason is None:
            logger.info("Triton's kernels are ready and give what torch gives, %.1f s", time.perf_counter() - start)
            return TritonStages()
    logger.warning("taking torch's own operations, which are slower than Triton's kernels: %s", reason)
    return TorchStages()


def _choose_cpu_stages(trial: Trial) -> Stages:
    """Return the Rust core's kernels where they are for the model's data types and right."""
    from pyagent.infrastructure.engine.runners.torch.rust_kernels import RustStages, no_kernels_reason

    reason = no_kernels_reason(str(trial.device), trial.dtype, trial.kv_dtype)
    if reason is None:
        reason = trial.fault(stages := RustStages())
        if reason is None:
            return stages
        logger.warning("taking torch's own operations, which are slower than the Rust core's: %s", reason)
    return TorchStages()
