"""Sampling by a kernel that takes all rows at once, where a trial finds its tokens to be those of torch's form."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch import kernels, sampling
from pyagent.infrastructure.engine.runners.torch.attention.trial import first_line
from pyagent.infrastructure.engine.runners.torch.row_params import Params, RowGroup, to_device
from pyagent.infrastructure.engine.runners.torch.sampling import Adjusting, Cuts

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

_BEST_TOKEN = Params(0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, 0, [], None)
_NUM_ROWS = 8
"""Of a trial."""


class SampleRows(Protocol):
    """What adjusts rows of logits [m, V] in place, and draws a token of each."""

    def __call__(
        self, logits: Tensor, adjusting: Adjusting, cuts: Cuts | None, uniform: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return tokens and `faults_of`, int64 [m] each.

        A row of temperature 0 has its best token, as all have without `cuts`. `uniform` float64 [m] are the draws.
        """
        ...


class FusedRows:
    """How the rows of a batch are sampled by a kernel; those without parameters have their best token."""

    def __init__(
        self,
        kernel: SampleRows,
        num_rows: int,
        params: Mapping[int, Params],
        tallies: Mapping[int, int],
        device: torch.device,
    ) -> None:
        of_rows = [params.get(row, _BEST_TOKEN) for row in range(num_rows)]
        self._kernel, self._device = kernel, device
        self._group = RowGroup(range(num_rows), of_rows, device)
        self._is_warm = any(one.temperature > 0 for one in of_rows)
        rates = np.array([one[4:7] for one in of_rows], np.float64).reshape(-1, 3)
        self._penalties = to_device(rates, device).float()
        self._tallies = to_device(np.array([tallies.get(row, -1) for row in range(num_rows)], np.int32), device)
        self._no_masks = torch.full_like(self._tallies, -1), self._tallies.new_zeros(0, 0)

    def sample(
        self, logits: Tensor, seen: Tensor, masked: Sequence[int], words: NDArray[np.int32], steps: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Adjust logits by the tallies `seen` and the `words` of the rows that are `masked`; see `SampleRows`."""
        masks = self._no_masks
        if masked:
            places = np.full(len(self._tallies), -1, np.int32)
            places[list(masked)] = range(len(masked))
            masks = to_device(places, self._device), to_device(words, self._device)
        adjusting = Adjusting(self._penalties, self._tallies, seen, *masks)
        if not self._is_warm:
            return self._kernel(logits, adjusting, None, None)
        return self._kernel(logits, adjusting, self._group.cuts, to_device(self._group.uniform(steps), self._device))


@torch.inference_mode()
def choose_sampling(vocab_size: int, device: torch.device) -> SampleRows | None:
    """Return the kernel where it works, else None for torch's own operations, with the reason in the log."""
    if device.type != "cuda" or vocab_size > sampling.MOST_VOCABULARY:
        return None  # the interpreter is for tests
    reason = kernels.unavailable_reason(device.type)
    if reason is None:
        from pyagent.infrastructure.engine.runners.torch.kernels.sampling import sample

        start = time.perf_counter()
        reason = fault_of(sample, vocab_size, device)
        if reason is None:
            logger.info("Triton's sampling is ready and gives torch's tokens, %.1f s", time.perf_counter() - start)
            return sample
    logger.warning("sampling by torch's own operations, which are slower than Triton's kernels: %s", reason)
    return None


def fault_of(sample: SampleRows, vocab_size: int, device: torch.device, num_rows: int = _NUM_ROWS) -> str | None:
    """Return how a kernel's tokens differ from those of torch's operations, over rows of all kinds; None if not.

    One may, as exponentials are rounded otherwise.
    """
    generator = torch.Generator().manual_seed(0)

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator)

    logits = torch.randn(num_rows, vocab_size, generator=generator) * torch.logspace(-1, 1, num_rows)[:, None]
    top_k = between(1, vocab_size, num_rows).long()
    top_k[::2] = sampling.MOST_VOCABULARY
    top_p, min_p = between(0.3, 1.4, num_rows).clamp(max=1), between(-0.2, 0.1, num_rows).clamp(min=0)
    cuts = Cuts(*(of.to(device) for of in (between(0.5, 2, num_rows), top_k, top_p, min_p)))
    uniform, logits = torch.rand(num_rows, generator=generator, dtype=torch.float64).to(device), logits.to(device)
    unchanged = torch.full((num_rows,), -1, dtype=torch.int32, device=device)
    nothing = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
    adjusting = Adjusting(logits.new_ones(num_rows, 3), unchanged, nothing, unchanged, nothing)
    try:
        tokens, faults = sample(logits, adjusting, cuts, uniform)
        expected = sampling.sample_unranked(logits, cuts, uniform, has_top_k=True)
        num_wrong = int(((tokens != expected) | (faults >= 0)).sum())
    except Exception as failure:  # noqa: BLE001 - whatever a compiler or driver raises is why it is not taken
        return first_line(failure)
    return f"{num_wrong} of {num_rows} tokens are others than torch's" if num_wrong > 1 else None
