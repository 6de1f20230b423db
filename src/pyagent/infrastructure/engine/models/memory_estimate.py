"""What one model takes, said before it is loaded, and what it holds in the ledger, an account for each kind of memory.

`weights` and `kv` are the model's matrices and its slabs of keys and values; `workspace` is what its steps compute in,
for the largest step there can be; `tokenizer` what building it took of the heap; `sessions` are the token logs of
conversations, `prompts` the beginnings that many share, `grammars` compiled grammars.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyagent import _rust

if TYPE_CHECKING:
    from pathlib import Path

    from pyagent.infrastructure.engine.memory.ledger import Reservation
    from pyagent.infrastructure.engine.options import EngineOptions
    from pyagent.infrastructure.models.describe import ModelDescription

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

    @classmethod
    def of(cls, path: Path, about: ModelDescription, options: EngineOptions, room_bytes: int) -> Estimates:
        """For a model alone in so many bytes: KV for twice what all sequences can hold, as far as there is room."""
        limits, context = options.limits, min(about.context_length, options.max_model_len or about.context_length)
        threads = options.cpu.threads or _rust.available_cores()
        workspace = _rust.most_step_bytes(path, threads, limits.max_num_batched_tokens, limits.most_running, context)
        tokenizer = _TOKENIZER_BYTES * about.vocab_size
        whole = about.kv_bytes(about.context_length) * limits.max_num_seqs * 2
        room = max(room_bytes - about.weight_bytes - tokenizer - workspace, 1)
        most_kv = min(room, whole if options.cpu.kv_bytes is None else options.cpu.kv_bytes)
        least_kv = min(most_kv, about.kv_bytes(min(_LEAST_KV_TOKENS, about.context_length)))
        return cls(about.weight_bytes, tokenizer, workspace, least_kv, most_kv)

    @property
    def least_bytes(self) -> int:
        """Without so many the model cannot be loaded."""
        return self.weights + self.tokenizer + self.workspace + self.least_kv


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """A model's reservations."""

    kv: Reservation
    weights: Reservation
    tokenizer: Reservation
    workspace: Reservation
    grammars: Reservation
    sessions: Reservation
    prompts: Reservation
