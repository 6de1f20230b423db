"""A runner's KV memory: pages of a block pool, found again by prefix, grown by slabs, swapped to files.

What is the same for every device: a runner derives from `PagedRunner` and computes. It must not know how.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyagent import _rust
from pyagent.core.runners.batch import BLOCK_TOKENS, PLAIN_KEY, Batch, Likelihood, PrefixKey, StepOutput
from pyagent.core.runners.factory import KvReservation, LargestStep, RunnerOptions
from pyagent.core.runners.runner import RunnerInfo
from pyagent.infrastructure.engine.memory.evictions import make_pool
from pyagent.infrastructure.engine.memory.slabs import KvSlabs, WholeKv
from pyagent.infrastructure.engine.runners.swap import SwapSpace

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger(__name__)


class PagedRunner(ABC):
    """Derive from it, call `__init__` with the model's sizes, and define `execute`.

    `execute` computes a batch's tokens over the pages that `pool.tables` gives for their sequences, and ends with
    `finish_step`. Where pages have content, define `copy_pages` too, where their memory can be given back,
    `empty_pages`, and where KV can be moved to other engines, what `MovableKv` has beyond this: `kv_shape`,
    `read_layers` and `write_layers`.
    """

    is_kv_whole = False
    """Whether KV memory is there whole or not at all, and `drop_kv` gives it back instead of `empty_pages`."""
    num_lookahead_tokens = 0
    num_threads = 0
    """This machine's threads that steps keep busy."""
    scores_prompts = False
    """Whether `execute` fills a batch's `scores`."""
    verifies_drafts = False
    """Whether `execute` takes a batch's `num_drafts`."""
    most_drafts: int | None = None
    """How many it takes for a request at most."""
    computes_ahead = False
    """Whether `execute` takes a batch's `num_ahead`."""
    processes_logits = True
    """Whether `execute` calls a batch's `process`, as `finish_step` does."""

    def __init__(self, info: RunnerInfo, options: RunnerOptions, kv: KvReservation | None = None) -> None:
        """With a reservation, KV memory grows from what it holds up to what its ledger has; without, it is all there.

        Raises `ConfigError` when the eviction policy cannot be made.
        """
        self.info = info
        self.pool = make_pool(info.num_pages, info.kv_groups, options.eviction, options.prefix_hash)
        self.pages_per_block = sum(pages for _, _, pages in info.kv_groups)
        self._is_policy_error_told = False
        self._swap: SwapSpace | None = None
        self._free_moving: Callable[[], bool] = _nothing_moves
        self._slabs = self._kv_memory(kv) if kv is not None and info.page_bytes > 0 else None

    def _kv_memory(self, kv: KvReservation) -> KvSlabs | WholeKv:
        if self.is_kv_whole:
            num_bytes = self.info.num_pages * self.info.page_bytes
            return WholeKv(self.pool, num_bytes, self.allocate_kv, self.drop_kv, kv)
        return KvSlabs(self.pool, self.info.page_bytes, self.empty_pages, kv)

    # -- what a device does -------------------------------------------------------------------------------------------

    @abstractmethod
    def execute(self, batch: Batch) -> StepOutput:
        """Compute a batch and sample the tokens it asks for. Blocks the calling thread, not the interpreter."""

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:  # noqa: B027 - none for a device without pages
        """Copy the content of KV pages: (from, to), in this order."""

    def empty_pages(self, pages: Sequence[int]) -> None:  # noqa: B027 - none where memory is never given back
        """Give the memory of pages back to the system; they are written before they are read again."""

    def drop_kv(self) -> None:  # noqa: B027 - none where pages are given back
        """Give all KV memory back to the device, while no sequence has any."""

    def allocate_kv(self) -> None:  # noqa: B027 - as `drop_kv`
        """Take it again, empty. Raises `StepMemoryError` where the device lacks it."""

    def step_bytes(self, step: LargestStep) -> int:
        """Return the bytes that steps up to the largest take beside weights and KV memory."""
        return 0

    def close(self) -> None:
        """Free the weights and the KV memory, even while something refers to the runner. Safe to call twice."""
        self._slabs = self._swap = None

    def finish_step(self, batch: Batch, logits: Buffer) -> StepOutput:
        """Note that a batch's tokens are computed, and sample the segments that ask for it.

        `logits` are their rows, 32-bit floats [len(batch.samplers), vocab_size] in this machine's memory. Raises
        `ValueError` when they are not.
        """
        num_bytes, wanted = memoryview(logits).nbytes, 4 * len(batch.samplers) * self.vocab_size
        if num_bytes != wanted:
            raise ValueError(f"the runner gave {num_bytes} bytes of logits, expected {wanted}")
        faults = self._commit(batch)
        if not batch.samplers:  # a chunk of prefill; an empty buffer may have no address
            return StepOutput([], errors=faults)
        tokens, likelihoods, errors = _rust.sample_logits(
            logits, batch.samplers, batch.steps, batch.masks, process=batch.process, processed=batch.processed
        )
        found = {row: Likelihood(*likelihood) for row, likelihood in likelihoods.items()}
        return StepOutput(tokens, likelihoods=found, errors=errors | faults)

    def _commit(self, batch: Batch, more: Mapping[int, Sequence[int]] = MappingProxyType({})) -> dict[int, str]:
        """Tell the pool what was computed, but nothing ahead; of drafts as many as segments have `more` tokens.

        Return the segments of which it does not know, with the reasons.
        """
        faults: dict[int, str] = {}
        start = 0
        for segment, (sequence_id, length) in enumerate(zip(batch.sequence_ids, batch.lengths, strict=True)):
            num_wrong = batch.num_drafts.get(segment, 0) - len(more.get(segment, ()))
            try:
                if segment not in batch.num_ahead:
                    self.pool.commit(sequence_id, batch.tokens[start : start + length - num_wrong])
            except ValueError as error:
                faults[segment] = str(error)
            start += length
        return faults

    # -- sizes --------------------------------------------------------------------------------------------------------

    @property
    def context_length(self) -> int:
        """Positions the model was made for."""
        return self.info.context_length

    @property
    def vocab_size(self) -> int:
        """Rows of logits are this long."""
        return self.info.vocab_size

    @property
    def kv_tokens(self) -> int:
        """The longest sequence whose keys and values fit in memory, up to the model's context."""
        blocks = range(1, -(-self.context_length // BLOCK_TOKENS) + 1)
        fitting = bisect_right(blocks, self.info.num_pages, key=lambda block: self.num_pages(block * BLOCK_TOKENS))
        return fitting * BLOCK_TOKENS

    @property
    def swapped_bytes(self) -> int:
        """Bytes of the files that sequences are swapped to."""
        return 0 if self._swap is None else self._swap.num_bytes

    @property
    def free_pages(self) -> int:
        """Pages that can be had now, those of unused prefixes included."""
        return self.stats().free if self._slabs is None else self._slabs.free_pages

    def num_pages(self, num_tokens: int) -> int:
        """Pages that a sequence of so many tokens holds, when it goes on a token at a time."""
        return self.pool.most_pages(num_tokens, 1)

    # -- sequences ----------------------------------------------------------------------------------------------------

    def lookup(self, tokens: list[int], key: PrefixKey = PLAIN_KEY) -> tuple[int, int]:
        """How many of a prompt's tokens are cached, and how many free pages holding them would take."""
        return self.pool.lookup(tokens, adapter_id=key.adapter_id, media_hash=key.media_hash, tenant=key.tenant)

    def add(
        self,
        sequence_id: int,
        tokens: list[int],
        key: PrefixKey = PLAIN_KEY,
        *,
        is_resumed: bool = False,
        most_cached: int | None = None,
    ) -> int:
        """Start a sequence on its longest cached prefix; returns how many of its tokens need no computing."""
        num_cached = self.pool.add(
            sequence_id,
            tokens,
            adapter_id=key.adapter_id,
            media_hash=key.media_hash,
            tenant=key.tenant,
            priority=key.priority,
            count=not is_resumed,
            most_cached=most_cached,
        )
        # A token is left to compute: nothing else tells what to sample.
        usable = len(tokens) - 1 if most_cached is None else min(most_cached, len(tokens) - 1)
        next_block = tokens[num_cached : min(num_cached + BLOCK_TOKENS, usable)]
        return num_cached + (self._take_part(sequence_id, next_block) if next_block else 0)

    def _take_part(self, sequence_id: int, tokens: list[int]) -> int:
        """Copy what a cached block begins with of a sequence's next tokens; returns how many, 0 without memory."""
        num_tokens = 0

        def take() -> None:
            nonlocal num_tokens
            num_tokens, copies = self.pool.take_part(sequence_id, tokens)
            self.copy_pages(copies)

        self._take(self.pages_per_block, take)
        return num_tokens

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Make room for so many tokens in all; False, and nothing changed, when there is none."""
        num_computed = self.pool.num_tokens(sequence_id)
        held = self.num_pages(num_computed) if self._slabs is not None else 0
        most = self.pool.most_pages(num_tokens, max(1, num_tokens - num_computed))
        most = max(self.pages_per_block, most - held)
        return self._take(most, lambda: self.pool.reserve(sequence_id, num_tokens))

    def _take(self, num_pages: int, take: Callable[[], None]) -> bool:
        """Do what takes up to so many pages; False, and nothing changed, when there are not enough.

        KV that moves from or to other engines gives way.
        """
        return self._try_take(num_pages, take) or (self._free_moving() and self._try_take(num_pages, take))

    def _try_take(self, num_pages: int, take: Callable[[], None]) -> bool:
        if self._slabs is not None:
            return self._slabs.take(num_pages, take)
        try:
            take()
        except _rust.OutOfBlocks:
            return False
        return True

    def give_back(self, num_bytes: int | None = None) -> None:
        """Free so many bytes, or all, of the KV memory that no sequence holds. From any thread."""
        if self._slabs is not None:
            self._slabs.give_back(num_bytes)

    def release(self, sequence_id: int) -> None:
        """End a sequence; what it computed may be found again as a prefix."""
        self.pool.release(sequence_id)
        self.stats()  # an eviction policy that failed meanwhile is named in the log

    def fork(self, parent: int, child: int) -> bool:
        """Start `child` as a copy of `parent`, whole blocks shared; False, and nothing changed, without memory."""
        return self._take(self.pages_per_block, lambda: self.copy_pages(self.pool.fork(parent, child)))

    def swap_seconds(self, num_tokens: int) -> float:
        """What moving the KV of so many tokens to a file and back takes, as measured."""
        return math.inf if self._swap is None else self._swap.seconds(self.num_pages(num_tokens))

    def swap_out(self, sequence_id: int) -> bool:
        """End a sequence but keep what it computed in a file; False, and nothing changed, if it cannot be."""
        return self._swap is not None and self._swap.move_out(sequence_id)

    def swap_in(self, sequence_id: int, key: PrefixKey = PLAIN_KEY) -> bool:
        """Start a swapped sequence where it was; False, and nothing changed, without memory. `OSError` if lost."""
        return self._swap is not None and self._swap.move_in(sequence_id, key, self._take)

    def when_starved(self, free: Callable[[], bool]) -> None:
        """Have `free` called where a request lacks pages: it frees those of what moves, and returns whether it did."""
        self._free_moving = free

    def restore(self, sequence_id: int, tokens: list[int], key: PrefixKey) -> tuple[int, list[int]] | None:
        """Start a sequence whose KV comes from elsewhere, as `BlockPool.restore` does; None without memory."""
        restored: list[tuple[int, list[int]]] = []

        def restore() -> None:
            restored.append(
                self.pool.restore(
                    sequence_id, tokens, adapter_id=key.adapter_id, media_hash=key.media_hash, tenant=key.tenant
                )
            )

        return restored[0] if self._try_take(self.num_pages(len(tokens)), restore) else None

    def drop_swapped(self, sequence_id: int) -> None:
        """Forget what is kept of a swapped sequence."""
        if self._swap is not None:
            self._swap.drop(sequence_id)

    def stats(self) -> _rust.PoolStats:
        """What the KV memory holds now. An eviction policy that failed is named in the log, once."""
        stats = self.pool.stats()
        if stats.policy_error is not None and not self._is_policy_error_told:
            self._is_policy_error_told = True
            logger.error("the eviction policy failed, cached KV goes by last use now: %s", stats.policy_error)
        return stats


def _nothing_moves() -> bool:
    return False
