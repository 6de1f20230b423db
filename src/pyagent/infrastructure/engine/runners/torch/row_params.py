"""What rows of logits are sampled by, as it lies on the device: parameters, and each step's random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple  # Any: arrays of any number

import numpy as np
import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch import sampling
from pyagent.infrastructure.engine.runners.torch.sampling import Cuts

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15


class Params(NamedTuple):
    """A plain sampler's parameters, as `SamplerState.plain_params` gives them."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    seed: int
    num_logprobs: int
    logit_bias: list[tuple[int, float]]
    allowed_tokens: list[int] | None
    has_entropy: bool = False

    @property
    def has_penalties(self) -> bool:
        """Whether tokens seen have a penalty."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0


class RowGroup:
    """Rows that are sampled in the same way: their places on the host and the device, and what they keep."""

    def __init__(self, rows: Sequence[int], params: Sequence[Params], device: torch.device) -> None:
        self.rows = np.array(rows, np.int64)
        self.places = to_device(self.rows, device)
        floats = np.array([[one.temperature, one.top_p, one.min_p] for one in params], np.float64).reshape(-1, 3)
        temperature, top_p, min_p = to_device(floats.T.copy(), device).float()
        self.has_top_k = any(one.top_k for one in params)
        top_k = [one.top_k or sampling.MOST_VOCABULARY for one in params]
        self.most_kept = max(top_k, default=0)
        self.cuts = Cuts(temperature, to_device(np.array(top_k, np.int64), device), top_p, min_p)
        self._streams = mixed(np.array([one.seed for one in params], np.uint64) + np.uint64(_GOLDEN))

    def uniform(self, steps: Sequence[int]) -> NDArray[np.float64]:
        """Return each row's random number in [0, 1): a hash of its seed and step, as the CPU's kernels have it."""
        counters = np.array(steps, np.uint64)[self.rows] + np.uint64(1)
        bits = mixed(self._streams + counters * np.uint64(_GOLDEN))
        return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def to_device(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """Copy numbers to the device, without waiting for it."""
    there = torch.from_numpy(numbers)
    return there.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else there
