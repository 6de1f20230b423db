"""What the engine asks of a runner: the loop and its scheduler (`Runner`), and what is around them (`ModelRunner`).

One thread at a time calls a runner, the loop's, but for what says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from pyagent.core.runners.batch import PLAIN_KEY, Batch, DraftOutput, PrefixKey, StepOutput

if TYPE_CHECKING:
    from pathlib import Path

    from pyagent._rust import BlockPool, PoolStats
    from pyagent.core.runners.factory import LargestStep


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """A model as a runner holds it. Rows of logits are `vocab_size` long.

    KV memory is `num_pages` pages of `page_bytes`. `kv_groups` are its groups of layers: "full", "recorded" (full, with
    a record of each block's last token, from which a head that drafts goes on), "window" or "state", a size (a window's
    tokens; the blocks of which one keeps the state of recurrent layers; else 0), and the pages that a block of tokens
    takes. `load_seconds` is what loading took by phase, where the runner tells. `probes` are the fields
    of requests about their tokens' activations (`top_activations`, `logit_lens`) that it fills, of `num_layers` layers.
    An encoder-decoder's answers begin after `decoder_start`; sequences begin with the prompt (`PrefixKey.encoded`).
    """

    architecture: str
    vocab_size: int
    context_length: int
    weight_bytes: int
    num_pages: int
    page_bytes: int
    kv_groups: tuple[tuple[str, int, int], ...] = (("full", 0, 1),)
    load_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    probes: frozenset[str] = frozenset()
    num_layers: int = 0
    decoder_start: int | None = None


class Runner(Protocol):
    """Owns a model's weights and KV memory on one device, and computes batches."""

    @property
    def num_lookahead_tokens(self) -> int:
        """Tokens that a step may accept for a sequence beyond its next one; the scheduler reserves room for them."""
        ...

    @property
    def context_length(self) -> int:
        """Positions the model was made for."""
        ...

    @property
    def vocab_size(self) -> int:
        """Rows of logits are this long."""
        ...

    @property
    def free_pages(self) -> int:
        """Pages that can be had now, those of unused prefixes included."""
        ...

    @property
    def pages_per_block(self) -> int:
        """Pages that the next `BLOCK_TOKENS` tokens of a sequence take."""
        ...

    def num_pages(self, num_tokens: int) -> int:
        """Pages that a sequence of so many tokens holds: fewer than its blocks take where layers see a window only."""
        ...

    def lookup(self, tokens: list[int], key: PrefixKey = PLAIN_KEY) -> tuple[int, int]:
        """How many of a prompt's tokens `add` would find cached, and how many free pages it would take by that."""
        ...

    def add(
        self,
        sequence_id: int,
        tokens: list[int],
        key: PrefixKey = PLAIN_KEY,
        *,
        is_resumed: bool = False,
        most_cached: int | None = None,
    ) -> int:
        """Start a sequence on its longest cached prefix; returns how many of its tokens need no computing.

        One that is resumed after a preemption is not counted again as a prompt looked up. With `most_cached`, no more
        of its tokens are taken from the cache.
        """
        ...

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Make room for so many tokens in all; False, and nothing changed, when there is none."""
        ...

    def release(self, sequence_id: int) -> None:
        """End a sequence; what it computed may be found again as a prefix."""
        ...

    def fork(self, parent: int, child: int) -> bool:
        """Start `child` as a copy of `parent`, whole blocks shared; False, and nothing changed, without memory."""
        ...

    def swap_seconds(self, num_tokens: int) -> float:
        """What moving the KV of so many tokens out and in again takes, as measured; infinite where it cannot be."""
        ...

    def swap_out(self, sequence_id: int) -> bool:
        """End a sequence but keep what it computed outside of KV memory; False, and nothing changed, if it cannot."""
        ...

    def swap_in(self, sequence_id: int, key: PrefixKey = PLAIN_KEY) -> bool:
        """Start a swapped sequence where it was; False, and nothing changed, without memory. `OSError` if lost."""
        ...

    def drop_swapped(self, sequence_id: int) -> None:
        """Forget what is kept of a swapped sequence."""
        ...

    def stats(self) -> PoolStats:
        """What the KV memory holds now."""
        ...

    def execute(self, batch: Batch) -> StepOutput:
        """Compute a batch. Blocks the calling thread, not the interpreter."""
        ...


class StepMemoryError(Exception):
    """The device lacks memory for a step, of which nothing counts as computed; a smaller one may have enough."""


@runtime_checkable
class DeferringRunner(Protocol):
    """A runner that puts off work until no request is here."""

    def when_idle(self) -> bool:
        """Do a piece of it, a second at most; False when there is none. The loop's thread calls, between steps."""
        ...


class PendingStep(Protocol):
    """A step that was launched."""

    def result(self) -> StepOutput:
        """Wait for it. Steps are asked in the order in which they were launched, each once."""
        ...


@runtime_checkable
class DraftingRunner(Protocol):
    """A runner whose model may have a head that drafts further tokens, or something attached that does.

    Steps keep them up to date.
    """

    @property
    def has_mtp(self) -> bool:
        """Whether it has one, as it is loaded."""
        ...

    @property
    def pool(self) -> BlockPool:
        """Which page holds which tokens' KV."""
        ...

    @property
    def context_length(self) -> int:
        """Positions the model was made for."""
        ...

    def attach_drafter(self, path: Path | None) -> int:
        """Load an assistant or a head, which drafts from now on, or free it with None; return the bytes of its weights.

        Raises `ModelError` where it is damaged, for another model, or a head that pages have no room for.
        """
        ...

    def draft(
        self,
        sequence_ids: Sequence[int],
        tokens: Sequence[int],
        num_ahead: Sequence[int],
        before: Sequence[int | None],
    ) -> DraftOutput:
        """Draft a token after each of `tokens`, one for each of some sequences.

        `tokens[i]` is `num_ahead[i]` behind those that the pool has of its sequence, in room that is reserved. Where it
        is a draft itself, `before[i]` is the row of the last call that gave it; None says that a step computed the
        token before. An assistant needs no room, and drafts for those that the last step computed.
        """
        ...


@runtime_checkable
class LaunchingRunner(Protocol):
    """A runner for a device that goes on by itself: a step may be launched before the last one's tokens are known.

    Such a step's batch has no `tokens`. Some of its sequences may have ended with the last step: what it gives for them
    is left aside, and they are released after it.
    """

    @property
    def launches_ahead(self) -> bool:
        """Whether it can, as it is loaded."""
        ...

    def launch(self, batch: Batch) -> PendingStep:
        """Launch a step, as `execute` without waiting for its tokens. The loop's thread of steps calls."""
        ...


class RankStats(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank is, one of the processes among which a model is divided; rank 0 is the engine's own.

    `num_steps` that it has computed took `step_seconds` (p50 of the last 1,024), and it is at the present one for
    `busy_seconds`. `memory_bytes` are of its device, or of this machine. It has said nothing for `silent_seconds` more
    than is usual.
    """

    rank: int
    process_id: int | None = None
    num_steps: int = 0
    step_seconds: float = 0.0
    busy_seconds: float = 0.0
    memory_bytes: int = 0
    silent_seconds: float = 0.0


@runtime_checkable
class DividedRunner(Protocol):
    """A runner of several processes."""

    def ranks(self) -> list[RankStats]:
        """Return how each of them is, rank 0 first; none where the model is in one. Any thread."""
        ...


class CompiledFunctionStats(msgspec.Struct, frozen=True, kw_only=True):
    """How a function of a model's steps was compiled (`engine.compile`).

    It was compiled `num_compiles` times in `seconds`, `num_cached` of which an earlier start had kept, and is taken
    from `from_rows` rows on (None: it is computed eagerly, because of `fault`, or because no gain was measured).
    `recompiles` counts those while serving, by the guard that failed.
    """

    name: str
    num_compiles: int = 0
    num_cached: int = 0
    seconds: float = 0.0
    from_rows: int | None = None
    recompiles: dict[str, int] = {}
    fault: str = ""


class CompileStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner compiled and captured: functions, and steps in graphs of which `num_replays` were taken again."""

    functions: list[CompiledFunctionStats] = []
    num_graphs: int = 0
    num_captures: int = 0
    capture_seconds: float = 0.0
    num_replays: int = 0


@runtime_checkable
class CompilingRunner(Protocol):
    """A runner that compiles or captures steps."""

    def compile_stats(self) -> CompileStats | None:
        """Return what was compiled and captured; None where nothing is to be. Any thread."""
        ...


@runtime_checkable
class AttendingRunner(Protocol):
    """A runner whose attention has several backends."""

    @property
    def attention(self) -> str:
        """The backend that computes attention, by its name in `engine.attention`."""
        ...

    def use_attention(self, name: str) -> None:
        """Compute attention by another backend from the next step on, or by the quickest (`auto`). Any thread; blocks.

        Raises `ConfigError` for one that there is not, or that cannot compute the model's attention; `CapacityError`.
        """
        ...


@runtime_checkable
class RoutingRunner(Protocol):
    """A runner that counts the tokens of a mixture's experts."""

    def expert_loads(self) -> list[list[int]]:
        """Return how many tokens each expert of each layer has had; no layers without experts. Any thread; cheap."""
        ...


class ModelRunner(Runner, Protocol):
    """A runner as the parts around the loop see it: loading, the ledger of memory, the prompt cache."""

    @property
    def info(self) -> RunnerInfo:
        """The model it holds."""
        ...

    @property
    def pool(self) -> BlockPool:
        """Which page holds which tokens' KV; the prompt cache pins, retains and shows prefixes there. Any thread."""
        ...

    @property
    def num_threads(self) -> int:
        """This machine's threads that its steps keep busy."""
        ...

    @property
    def scores_prompts(self) -> bool:
        """Whether it fills a batch's `scores`; where not, requests for log probabilities of prompts are refused."""
        ...

    @property
    def processes_logits(self) -> bool:
        """Whether it calls a batch's `process`; where not, requests for logits processors are refused."""
        ...

    @property
    def verifies_drafts(self) -> bool:
        """Whether it takes a batch's `num_drafts`; where not, it is given none."""
        ...

    @property
    def most_drafts(self) -> int | None:
        """How many drafts of a request it verifies in a step at most; None is any number."""
        ...

    @property
    def computes_ahead(self) -> bool:
        """Whether it takes a batch's `num_ahead`; where not, it cannot run a draft model."""
        ...

    @property
    def kv_tokens(self) -> int:
        """The longest sequence whose keys and values fit in memory, up to the model's context."""
        ...

    @property
    def swapped_bytes(self) -> int:
        """Bytes of what is kept of swapped sequences outside of memory. Any thread."""
        ...

    def step_bytes(self, step: LargestStep) -> int:
        """Return the bytes that steps up to the largest take beside weights and KV memory."""
        ...

    def give_back(self, num_bytes: int | None = None) -> None:
        """Free so many bytes, or all, of the KV memory that no sequence holds. Any thread."""
        ...

    def close(self) -> None:
        """Free the weights and the KV memory, even while something refers to the runner. Safe to call twice."""
        ...
