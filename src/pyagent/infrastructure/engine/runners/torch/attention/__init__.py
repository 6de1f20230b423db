"""Attention over paged keys and values: one door, several ways through it, and a trial that chooses.

`batch` says what a step's queries are and where keys and values lie, `plain` is the form that every other is compared
with, `sdpa` goes through torch's kernels. `choice` takes what the settings name, or the quickest that is right.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache


class Attend(Protocol):
    """Attention of a step's queries to the keys and values of their sequences."""

    def __call__(
        self,
        q: Tensor,
        cache: PagedCache,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Return [T, Hq, D] for `q` [T, Hq, D] and a layer's cache, which holds all keys, those of the step too.

        A query sees the last `window` positions up to its own, or all of them; scores are `scale * q @ k`, put through
        `softcap * tanh(score / softcap)` where there is one. Of each head, `sinks` float32 [Hq] is a score that takes
        part in the softmax as that of a key whose value is 0.
        """
        ...
