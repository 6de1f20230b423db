"""Attention over paged keys and values: one door, several ways through it.

`batch` says what a step's queries are, `plain` is the form that every other is compared with, `sdpa` goes through
torch's kernels. `choose` takes the quickest that can.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.attention import plain, sdpa
from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch


class Attend(Protocol):
    """Attention of a step's queries to the keys and values of their sequences."""

    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Return [T, Hq, D] for `q` [T, Hq, D] and caches [num_pages, BLOCK_TOKENS, Hkv, D], which hold all keys.

        A query sees the last `window` positions up to its own, or all of them; scores are `scale * q @ k`, put through
        `softcap * tanh(score / softcap)` where there is one.
        """
        ...


def choose(softcap: float | None) -> Attend:
    """Return the quickest way of computing attention here."""
    return plain.attend if softcap else sdpa.attend
