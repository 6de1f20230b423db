"""A step's tokens from its logits in three launches, whatever each row's parameters: see `rows` and `draw`."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.kernels.draw import draw
from pyagent.infrastructure.engine.runners.torch.kernels.launch import INTERPRETED, divide_up, next_power_of_2
from pyagent.infrastructure.engine.runners.torch.kernels.rows import CHUNK, NUM_BOUNDS, adjust, weigh
from pyagent.infrastructure.engine.runners.torch.sampling import Adjusting, Cuts

NUM_SORTED = 16 if INTERPRETED else 1024
"""Tokens that are sorted: few in the interpreter, so that its small rows have more."""
BLOCK = 512 if INTERPRETED else 2048
"""Tokens that a program of `draw` reads at once."""


def sample(logits: Tensor, adjusting: Adjusting, cuts: Cuts | None, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
    """Adjust rows [m, V] in place; return their tokens and `faults_of`, int64 [m] each.

    A row whose temperature is 0 has its best token, as all have without `cuts`. `uniform` float64 [m] are the draws.
    """
    if logits.stride(1) != 1 or logits.dtype != torch.float32:
        raise ValueError("a row's logits must lie together, as float32")
    num_rows, vocab_size = logits.shape
    num_chunks = divide_up(vocab_size, CHUNK)
    floats, ints = (logits.new_empty((num_rows, 3, num_chunks), dtype=kind) for kind in (torch.float32, torch.int32))
    masses = logits.new_empty((num_rows, 2, num_chunks), dtype=torch.int64)
    counts = logits.new_empty((num_rows, NUM_BOUNDS, num_chunks), dtype=torch.int32)
    scratch = logits.new_empty((num_rows, NUM_SORTED), dtype=torch.int64)
    tokens, faults = (logits.new_empty(num_rows, dtype=torch.int64) for _ in range(2))
    grid, of_rows = (num_rows, num_chunks), (vocab_size, logits.stride(0))
    adjust[grid](logits, *adjusting, floats, ints, *of_rows, adjusting.words.shape[1], CHUNK=CHUNK)
    sizes = {"NUM_BOUNDS": NUM_BOUNDS, "BLOCK_C": next_power_of_2(num_chunks)}
    deviations = _deviations(vocab_size)
    if cuts is None or uniform is None:
        cuts = Cuts(*(logits.new_zeros(num_rows, dtype=kind) for kind in _CUT_TYPES))
        uniform = logits.new_zeros(num_rows, dtype=torch.float64)
    else:
        weigh[grid](
            logits, cuts.temperature, cuts.min_p, floats, ints, masses, counts, *of_rows, *deviations,
            CHUNK=CHUNK, **sizes,
        )  # fmt: skip
    draw[num_rows,](
        logits, cuts.temperature, cuts.top_k, cuts.top_p, uniform, floats, ints, masses, counts, scratch, tokens,
        faults, *of_rows, num_chunks, *deviations, NUM_SORTED=NUM_SORTED, BLOCK=BLOCK, **sizes,
    )  # fmt: skip
    return tokens, faults


_CUT_TYPES = (torch.float32, torch.int64, torch.float32, torch.float32)


@lru_cache
def _deviations(vocab_size: int) -> tuple[float, float]:
    """Return the first bound and the step to the next, in deviations above a row's mean.

    Were logits normal, 8 times as many tokens as are sorted would be above the first, a sixteenth above the last.
    """
    first, last = (-NormalDist().inv_cdf(min(0.5, times * NUM_SORTED / vocab_size)) for times in (8.0, 0.0625))
    return first, (last - first) / (NUM_BOUNDS - 2)
