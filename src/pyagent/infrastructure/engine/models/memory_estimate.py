"""What one model takes, said before it is loaded, and what it holds in the ledger, an account for each kind of memory.

`weights` and `kv` are the model's matrices and its slabs of keys and values; `workspace` is what its steps compute in,
for the largest step there can be; `tokenizer` what building it took of the heap; `sessions` are the token logs of
conversations, `prompts` the beginnings that many share, `grammars` compiled grammars, `drafts` the texts that tokens
are proposed from; `draft_weights`, `draft_workspace` and `draft_kv` are those of its draft model.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.infrastructure.engine.memory.slabs import SLAB_BYTES
from pyagent.infrastructure.models.describe import kv_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyagent.core.runners.factory import KvDtype, ModelNeeds
    from pyagent.infrastructure.engine.memory.ledger import Reclaim, Reservation
    from pyagent.infrastructure.engine.options import EngineOptions

_LEAST_KV_TOKENS = 512
"""A model is not loaded with room for fewer tokens than this, or than its context."""
_TOKENIZER_BYTES = 200
"""Expected for each token of a vocabulary; SmolLM2's takes 176."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """Bytes a model will take, from its header. KV memory starts with `least_kv` and may grow to `most_kv`."""

    weights: int
    tokenizer: int
    workspace: int
    least_kv: int
    most_kv: int
    kv_settings: tuple[str, ...]
    """What bounds `most_kv` beside the room there is."""

    @classmethod
    def of(cls, needs: ModelNeeds, options: EngineOptions, room_bytes: int) -> Estimates:
        """For a model alone in so many bytes: KV for twice what all sequences can hold, as far as there is room."""
        tokenizer = _TOKENIZER_BYTES * needs.vocab_size
        whole = _kv_bytes(needs, needs.context_length) * options.limits.max_num_seqs * 2
        room = max(room_bytes - needs.weight_bytes - tokenizer - needs.workspace_bytes, 1)
        asked = {
            "engine.kv_cache_memory_bytes": options.runner.kv_bytes or 0,
            "engine.kv_cache_tokens": _kv_bytes(needs, options.kv_tokens or 0),
        }
        bounds = {setting: num_bytes for setting, num_bytes in asked.items() if num_bytes}
        most_kv = min(room, *(bounds.values() or [whole]))
        binding = tuple(setting for setting, num_bytes in bounds.items() if num_bytes == most_kv)
        least_kv = min(most_kv, _kv_bytes(needs, min(_LEAST_KV_TOKENS, needs.context_length)))
        return cls(needs.weight_bytes, tokenizer, needs.workspace_bytes, least_kv, most_kv, binding)

    def take_kv(self, kv: Reservation, *, can_grow: bool) -> int:
        """Hold KV memory to begin with, or all that there will be where it cannot grow; return the most of it."""
        if can_grow:
            kv.try_resize(min(self.most_kv, max(self.least_kv, SLAB_BYTES)))
            return self.most_kv
        kv.ask_others(self.most_kv - kv.num_bytes)  # what they have idle
        kv.try_resize(min(self.most_kv, kv.num_bytes + kv.free_bytes))
        return kv.num_bytes

    @property
    def least_bytes(self) -> int:
        """Without so many the model cannot be loaded."""
        return self.weights + self.tokenizer + self.workspace + self.least_kv


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a model fits with KV of a type: what a sequence of `num_tokens` takes in all, and the longest with room.

    `needed_bytes` is process, weights, tokenizer, workspace and KV, of `total_bytes` that the engine may use. `longest`
    is 0 when the model cannot be loaded. A device's memory holds no process.
    """

    kv_dtype: KvDtype
    num_tokens: int
    needed_bytes: int
    longest: int
    total_bytes: int

    @classmethod
    def of(  # noqa: PLR0913 - the machine, the model and what of it would be otherwise
        cls,
        path: Path,
        kv_dtype: KvDtype,
        options: EngineOptions,
        total_bytes: int,
        process_bytes: int,
        *,
        weight_bytes: int | None = None,
    ) -> Fit:
        """For a model alone in so many bytes, of which the process has some. Raises `ModelError`.

        With `weight_bytes` its weights take so many in place of what they take as they are.
        """
        _, about = replace(options, runner=replace(options.runner, kv_dtype=kv_dtype)).runner_for(path)
        if weight_bytes is not None:
            about = replace(about, weight_bytes=weight_bytes)
        if about.device is not None:
            total_bytes, process_bytes = about.device.total_bytes, 0
        needs = Estimates.of(about, options, total_bytes - process_bytes)
        num_tokens = min(about.context_length, options.max_model_len or about.context_length)
        room = total_bytes - process_bytes - (needs.least_bytes - needs.least_kv)
        blocks = range(1, -(-num_tokens // BLOCK_TOKENS) + 1)
        num_blocks = bisect_right(blocks, room, key=lambda block: _kv_bytes(about, block * BLOCK_TOKENS))
        is_loadable = room >= _kv_bytes(about, min(_LEAST_KV_TOKENS, about.context_length))
        needed_bytes = total_bytes - room + _kv_bytes(about, num_tokens)
        longest = min(num_tokens, num_blocks * BLOCK_TOKENS) if is_loadable else 0
        return cls(kv_dtype, num_tokens, needed_bytes, longest, total_bytes)


@dataclass(frozen=True, slots=True)
class DraftMemory:
    """The reservations of a model's draft model."""

    weights: Reservation
    workspace: Reservation
    kv: Reservation

    def release(self) -> None:
        """Give all of it back. Safe to call twice."""
        for reservation in (self.weights, self.workspace, self.kv):
            reservation.release()


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """A model's reservations."""

    model: str
    kv: Reservation
    weights: Reservation
    tokenizer: Reservation
    workspace: Reservation
    grammars: Reservation
    sessions: Reservation
    prompts: Reservation
    drafts: Reservation
    kv_settings: tuple[str, ...]
    """What to raise for more KV memory."""
    reserve: Callable[[str, int, Reclaim | None], Reservation]
    """Holds bytes for what comes later, an account of its own for each: `adapter:MODEL:NAME`."""
    draft: DraftMemory | None = None

    @property
    def draft_weight_bytes(self) -> int:
        """Bytes of a draft model's weights; 0 without one."""
        return 0 if self.draft is None else self.draft.weights.num_bytes


def _kv_bytes(needs: ModelNeeds, num_tokens: int) -> int:
    return kv_bytes(needs.kv_groups, needs.page_bytes, num_tokens)
