"""What crosses between the engine and a runner: a step's work in columns, and what came out of it.

Runners for any device take the same `Batch` and give the same `StepOutput`. Columns, because most steps are one token
for each of many sequences, and a column of numbers crosses into Rust at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyagent._rust import PoolStats, SamplerState

BLOCK_TOKENS = 16
"""Tokens of a KV block: the unit in which memory is reserved and prefixes are shared."""


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """What must be equal, besides the tokens, for KV to be used again; and how long it is worth keeping.

    `priority` is told to the eviction policy (higher stays longer); it does not tell prefixes apart, and neither
    does comparing keys look at it.
    """

    adapter_id: int = 0
    media_hash: bytes = b""
    tenant: str = ""
    priority: int = field(default=0, compare=False)


PLAIN_KEY = PrefixKey()


@dataclass(slots=True)
class Batch:
    """Segments: the next `lengths[i]` of `tokens` for sequence `sequence_ids[i]`, one segment for a sequence.

    The first `len(samplers)` segments sample the sequence's next token after their last: with `samplers[i]`, as its
    `steps[i]`-th, from the tokens that `masks[i]` allows where there is one. The first `num_decoding` segments have
    room for `Runner.num_lookahead_tokens` more.
    """

    sequence_ids: list[int] = field(default_factory=list[int])
    lengths: list[int] = field(default_factory=list[int])
    tokens: list[int] = field(default_factory=list[int])
    samplers: list[SamplerState] = field(default_factory=list["SamplerState"])
    steps: list[int] = field(default_factory=list[int])
    masks: dict[int, bytes] = field(default_factory=dict[int, bytes])
    num_decoding: int = 0


class Likelihood(NamedTuple):
    """A sampled token's log probability, and the likeliest tokens with theirs."""

    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True)
class StepOutput:
    """The tokens sampled, in the order of the segments that sample; likelihoods and faults of rows that have any.

    `more` has, by row below `num_decoding`, the tokens accepted after `tokens[row]` in the same step, where the runner
    verified several: at most `Runner.num_lookahead_tokens`. Their KV is computed, but for the last one's. `seconds` is
    how long the runner computed, measured by its caller.
    """

    tokens: list[int]
    more: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    likelihoods: dict[int, Likelihood] = field(default_factory=dict[int, Likelihood])
    errors: dict[int, str] = field(default_factory=dict[int, str])
    seconds: float = 0.0


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

    def add(self, sequence_id: int, tokens: list[int], key: PrefixKey = PLAIN_KEY, *, is_resumed: bool = False) -> int:
        """Start a sequence on its longest cached prefix; returns how many of its tokens need no computing.

        One that is resumed after a preemption is not counted again as a prompt looked up.
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
