"""A step as it crosses from the host to devices, and as it lies on one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from torch import Tensor

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens of n sequences, one's after the other's. T tokens, m of which give logits.

    `attention` and `rows` have an entry for each of the model's page tables: what attention reads, and where the
    tokens' keys and values go (int64 [T], page * BLOCK_TOKENS + place in the page).
    """

    tokens: Tensor  # [T] int32
    positions: Tensor  # [T] int32; [3, T] (frame, row, column) of a model whose `rope_axes` are said
    outputs: Tensor  # [m] int32, which tokens give logits
    attention: tuple[AttentionBatch, ...]
    rows: tuple[Tensor, ...]
    slots: Tensor  # [n] int64, the sequences' in the device's batch
    lengths: Tensor  # [n] int32, the sequences' tokens with these


class PackedStep(msgspec.Struct, frozen=True, array_like=True):
    """What a step changes of the batch that lies on devices (`DeviceBatch`), and what it computes there.

    `numbers`, int32, are `num_written` places and what is written there; `num_copied` slots of drafts, and those whose
    pages they have; then the tokens and their `n + 1` starts, which are left out where each sequence goes on with its
    last token. `num_queries` and `num_tokens` are those of the `n` sequences, the first `num_outputs` of which give
    logits; `shared` are the tokens that those which decode begin with alike and that are read once for all, for each
    page table. `first_row` is the first sequence's place in the order.
    """

    numbers: bytearray
    num_written: int
    num_queries: list[int]
    num_tokens: list[int]
    num_outputs: int
    shared: list[int]
    has_tokens: bool
    first_row: int = 0
    num_copied: int = 0
