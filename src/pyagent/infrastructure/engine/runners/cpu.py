"""The CPU runner: the Rust model and its block pool behind the `Runner` protocol."""

from __future__ import annotations

import logging
import math
import tempfile
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyagent import _rust
from pyagent.core.errors import ConfigError, ModelError
from pyagent.core.eviction import EvictionPolicyFactory
from pyagent.infrastructure.engine.memory.evictions import BUILT_IN, DEFAULT, make_pool
from pyagent.infrastructure.engine.memory.ledger import Reservation
from pyagent.infrastructure.engine.memory.slabs import KvSlabs
from pyagent.infrastructure.engine.runners.batch import (
    BLOCK_TOKENS,
    PLAIN_KEY,
    Batch,
    Likelihood,
    PrefixKey,
    StepOutput,
)
from pyagent.infrastructure.engine.runners.swap import SwapSpace

logger = logging.getLogger(__name__)

_DEFAULT_KV_BYTES = 1 << 30

KvType = Literal["f32", "f16", "bf16", "int8"]
PrefixHash = Literal["siphash", "sha256", "xxh3"]


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """How to load: threads (0 means all cores), the most KV memory may take (None: what the ledger has), its type, and
    the instruction set (None: best).

    `make_eviction` makes the order in which cached KV is given up; `prefix_hash` names cached prefixes.
    """

    threads: int = 0
    kv_bytes: int | None = None
    kv_type: KvType = "bf16"
    isa: str | None = None
    make_eviction: EvictionPolicyFactory = BUILT_IN[DEFAULT]
    prefix_hash: PrefixHash = "siphash"


class CpuRunner:
    """Computes batches on this machine's cores. Not for concurrent use: one engine loop owns it."""

    num_lookahead_tokens = 0

    def __init__(self, path: Path, options: CpuOptions | None = None, kv: Reservation | None = None) -> None:
        """Load a GGUF file or safetensors folder; raises `ModelError` naming what is wrong with it.

        With a reservation, KV memory grows from what it holds as far as its ledger has room; without, it is all there.
        """
        options = options or CpuOptions()
        try:
            self.model = _rust.CpuModel.load(
                path,
                threads=options.threads or _rust.available_cores(),
                kv_bytes=options.kv_bytes or _DEFAULT_KV_BYTES,
                kv_type=options.kv_type,
                isa=options.isa,
                swap_dir=tempfile.gettempdir(),
            )
        except _rust.ModelFileError as error:
            raise ModelError(str(error), model=str(path)) from error
        except ValueError as error:
            raise ConfigError(str(error), key="engine.isa") from error
        except RuntimeError as error:
            raise ConfigError(f"{path} cannot be loaded: {error}", key="engine.memory") from error
        self.info = self.model.info()
        self.pool = make_pool(
            self.info["num_pages"], self.info["kv_groups"], options.make_eviction, options.prefix_hash
        )
        self._is_policy_error_told = False
        self.pages_per_block = sum(pages for _, _, pages in self.info["kv_groups"])
        page_bytes = self.info["page_bytes"]
        self._swap: SwapSpace | None = SwapSpace(self.model, self.pool, page_bytes)
        self._slabs = None if kv is None else KvSlabs(self.pool, page_bytes, self.model.give_back, kv)

    @property
    def context_length(self) -> int:
        """Positions the model was made for."""
        return self.info["context_length"]

    @property
    def vocab_size(self) -> int:
        """Rows of logits are this long."""
        return self.info["vocab_size"]

    @property
    def kv_tokens(self) -> int:
        """The longest sequence whose keys and values fit in memory, up to the model's context."""
        blocks = range(1, -(-self.context_length // BLOCK_TOKENS) + 1)
        fitting = bisect_right(blocks, self.info["num_pages"], key=lambda block: self.num_pages(block * BLOCK_TOKENS))
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

    def lookup(self, tokens: list[int], key: PrefixKey = PLAIN_KEY) -> tuple[int, int]:
        """How many of a prompt's tokens are cached, and how many free pages holding them would take."""
        return self.pool.lookup(tokens, adapter_id=key.adapter_id, media_hash=key.media_hash, tenant=key.tenant)

    def add(self, sequence_id: int, tokens: list[int], key: PrefixKey = PLAIN_KEY, *, is_resumed: bool = False) -> int:
        """Start a sequence on its longest cached prefix; returns how many of its tokens need no computing."""
        num_cached = self.pool.add(
            sequence_id,
            tokens,
            adapter_id=key.adapter_id,
            media_hash=key.media_hash,
            tenant=key.tenant,
            priority=key.priority,
            count=not is_resumed,
        )
        # A token is left to compute: nothing else tells what to draw.
        next_block = tokens[num_cached : min(num_cached + BLOCK_TOKENS, len(tokens) - 1)]
        return num_cached + (self._take_part(sequence_id, next_block) if next_block else 0)

    def _take_part(self, sequence_id: int, tokens: list[int]) -> int:
        """Copy what a cached block begins with of a sequence's next tokens; returns how many, 0 without memory."""
        num_tokens = 0

        def take() -> None:
            nonlocal num_tokens
            num_tokens, copies = self.pool.take_part(sequence_id, tokens)
            self.model.copy_pages(copies)

        self._take(self.pages_per_block, take)
        return num_tokens

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Make room for so many tokens in all; False, and nothing changed, when there is none."""
        held = self.num_pages(self.pool.num_tokens(sequence_id)) if self._slabs is not None else 0
        most = max(self.pages_per_block, self.num_pages(num_tokens) - held)
        return self._take(most, lambda: self.pool.reserve(sequence_id, num_tokens))

    def _take(self, num_pages: int, take: Callable[[], None]) -> bool:
        """Do what takes up to so many pages; False, and nothing changed, when there are not enough."""
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
        return self._take(self.pages_per_block, lambda: self.model.copy_pages(self.pool.fork(parent, child)))

    def swap_seconds(self, num_tokens: int) -> float:
        """What moving the KV of so many tokens to a file and back takes, as measured."""
        return math.inf if self._swap is None else self._swap.seconds(self.num_pages(num_tokens))

    def swap_out(self, sequence_id: int) -> bool:
        """End a sequence but keep what it computed in a file; False, and nothing changed, if it cannot be."""
        return self._swap is not None and self._swap.move_out(sequence_id)

    def swap_in(self, sequence_id: int, key: PrefixKey = PLAIN_KEY) -> bool:
        """Start a swapped sequence where it was; False, and nothing changed, without memory. `OSError` if lost."""
        return self._swap is not None and self._swap.move_in(sequence_id, key, self._take)

    def drop_swapped(self, sequence_id: int) -> None:
        """Forget what is kept of a swapped sequence."""
        if self._swap is not None:
            self._swap.drop(sequence_id)

    def close(self) -> None:
        """Free the weights and the KV memory, whoever still refers to the runner. It computes nothing afterwards."""
        self._slabs = self._swap = None
        self.__dict__.pop("model", None)

    def stats(self) -> _rust.PoolStats:
        """What the KV memory holds now. An eviction policy that failed is named in the log, once."""
        stats = self.pool.stats()
        if stats.policy_error is not None and not self._is_policy_error_told:
            self._is_policy_error_told = True
            logger.error("the eviction policy failed, cached KV goes by last use now: %s", stats.policy_error)
        return stats

    def execute(self, batch: Batch) -> StepOutput:
        """Compute a batch and draw the tokens it asks for; the pool learns what was computed."""
        tokens, likelihoods, errors = self.model.execute(
            self.pool, batch.sequence_ids, batch.lengths, batch.tokens, batch.samplers, batch.steps, batch.masks
        )
        found = {row: Likelihood(*likelihood) for row, likelihood in likelihoods.items()}
        return StepOutput(tokens, likelihoods=found, errors=errors)
