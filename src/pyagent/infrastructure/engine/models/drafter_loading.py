"""What drafts for a model from a folder of its own and is attached to its runner: found, reserved and attached.

It is an assistant, which reads the model's keys and values (Gemma 4's), a head of EAGLE-3, whose own lie in the
model's pages, or heads of Medusa, which have none. It is named as a draft model is, and what stands in its way is said
as for one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyagent import _rust
from pyagent.core.errors import CapacityError, ConfigError, ModelError
from pyagent.core.runners.runner import DraftingRunner
from pyagent.core.sizes import format_bytes
from pyagent.infrastructure.engine.drafts.drafter import ANY_NUMBER
from pyagent.infrastructure.engine.drafts.mtp_head import MtpHead
from pyagent.infrastructure.engine.models.draft_loading import (
    DRAFT_KEY,
    FoundDraft,
    LoadedDraft,
    check_vocabulary,
    find_draft,
)
from pyagent.infrastructure.engine.models.memory_estimate import DraftMemory
from pyagent.infrastructure.engine.runners.family import Family

if TYPE_CHECKING:
    from pyagent.core.runners.runner import ModelRunner
    from pyagent.infrastructure.engine.memory.ledger import Reclaim, Reservation
    from pyagent.infrastructure.engine.options import EngineOptions
    from pyagent.infrastructure.engine.request import Request
    from pyagent.infrastructure.engine.tokens import ModelTokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AttachedDrafter:
    """An assistant, or heads, attached to a model."""

    name: str
    target: str
    path: Path
    runner: DraftingRunner
    weight_ratio: float
    """The weights that a draft reads, as a part of the model's."""
    is_head: bool = False
    most_drafts: int = ANY_NUMBER

    def model_for(self, target: ModelRunner, tokenizer: ModelTokenizer, options: EngineOptions) -> MtpHead:
        """Return what drafts for the model. Raises `ConfigError` where its tokenizer, if it has one, is another."""
        from pyagent.infrastructure.engine.tokens import ModelTokenizer  # late: a server that starts needs none

        if (self.path / "tokenizer.json").is_file():
            own = ModelTokenizer.load(self.path, vocab_size=target.vocab_size, options=options.tokenizer)
            check_vocabulary(tokenizer, own, self.target, self.name)
        reserve = None if self.is_head else _room_for_all
        head = MtpHead(self.runner, options.limits.most_running, reserve, most_drafts=self.most_drafts)
        head.weight_ratio = self.weight_ratio
        return head

    def give_back(self, num_bytes: int) -> None:
        """Do nothing: it has no KV memory of its own."""

    def drop_kv(self) -> None:
        """Do nothing: it has no KV memory of its own."""

    def close(self) -> None:
        """Free its memory. Safe to call twice."""
        self.runner.attach_drafter(None)


@dataclass(frozen=True, slots=True)
class FoundDrafter:
    """An assistant, or heads, to be attached to `target`, and the bytes it takes.

    With a bound on its drafts it has a head for each (Medusa).
    """

    name: str
    target: str
    path: Path
    weights: int
    workspace: int
    is_head: bool = False
    most_drafts: int | None = None

    @property
    def head(self) -> Path | None:
        """Its folder, where the model's pages need room for it, which they have from when the model is loaded."""
        return self.path if self.is_head else None

    def fitted(self, options: EngineOptions, room_bytes: int) -> FoundDrafter:
        """Return it. Raises `ConfigError` where the bytes that there are do not hold it."""
        if (needed := self.weights + self.workspace) > room_bytes:
            text = f"{DRAFT_KEY}: {self.name} needs {format_bytes(needed)} to draft for {self.target}"
            left = f"which leaves {format_bytes(max(0, room_bytes))} of engine.memory"
            raise ConfigError(f"{text}, {left}; raise that, or go without", key=DRAFT_KEY)
        return self

    def reserve(self, reserve: Callable[[str, int, Reclaim | None], Reservation], shrink: Reclaim) -> DraftMemory:
        """Hold what it takes, in the accounts of draft models."""
        return DraftMemory(
            weights=reserve("draft_weights", self.weights, None),
            workspace=reserve("draft_workspace", self.workspace, None),
            kv=reserve("draft_kv", 0, shrink),
        )

    def load(self, target: ModelRunner, options: EngineOptions, memory: DraftMemory | None) -> AttachedDrafter | None:
        """Attach it; None without memory for it. Raises `ConfigError`, also for a target whose runner takes none."""
        if memory is None:
            return None
        if not isinstance(target, DraftingRunner):
            memory.release()
            text = f"{DRAFT_KEY}: {self.name} drafts on the cpu runner only, and {self.target} runs on another one"
            how = "set engine.runner to cpu, or engine.speculative.method to suffix, which copies drafts from texts"
            raise ConfigError(f"{text}; {how}", key=DRAFT_KEY)
        try:
            num_bytes = target.attach_drafter(self.path)
        except ModelError as error:
            raise ConfigError(f"{DRAFT_KEY}: {error}", key=DRAFT_KEY) from error
        try:
            memory.weights.resize(num_bytes)
        except BaseException:
            target.attach_drafter(None)
            raise
        ratio = num_bytes / max(1, target.info.weight_bytes) / (self.most_drafts or 1)
        most_drafts = self.most_drafts or ANY_NUMBER
        return AttachedDrafter(self.name, self.target, self.path, target, ratio, self.is_head, most_drafts)


def _room_for_all(request: Request, count: int) -> int:
    """Return the drafts that there is room for: all, where nothing is stored of them."""
    return count


Found = FoundDraft | FoundDrafter
Loaded = LoadedDraft | AttachedDrafter


def find_drafter(target: str, target_path: Path, options: EngineOptions, locate: Callable[[str], Path]) -> Found | None:
    """Return what the settings name to draft for a model, fetched if need be; None where they name nothing.

    Raises `ConfigError`.
    """
    name = None if options.drafts is None else options.drafts.model_for(target)
    if name is None:
        return None
    step = options.largest_step
    try:
        path = locate(name)
        threads = options.runner.threads or _rust.available_cores()
        family = Family.of(target_path, options.runner.architectures)
        inner = None if family is None else family.inner
        positions = options.max_model_len or _rust.describe_model(target_path, family=inner)["context_length"]
        about = _rust.describe_drafter(path, threads, step.num_outputs, positions, step.num_tokens)
        is_head = about is not None and about["kind"] == "head"
        if is_head:
            _rust.describe_model(target_path, head=path, family=inner)  # whether it is for this model
    except (CapacityError, ModelError, _rust.ModelFileError) as error:
        raise ConfigError(f"{DRAFT_KEY}: {error}", key=DRAFT_KEY) from error
    if about is None:
        return find_draft(target, options, lambda _: path)
    sizes = about["weight_bytes"], about["workspace_bytes"]
    return FoundDrafter(name, target, path, *sizes, is_head, about["most_drafts"])
