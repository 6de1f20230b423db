"""What crosses between the engine and a runner: a batch of work, and what came out of it.

Runners for any device take the same `Batch` and give the same `StepOutput`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyagent._rust import PoolStats, SamplerState


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """What must be equal, besides the tokens, for KV to be used again; and how long it is worth keeping.

    `priority` is told to the eviction policy (higher stays longer); it does not tell prefixes apart.
    """

    adapter_id: int = 0
    media_hash: bytes = b""
    tenant: str = ""
    priority: int = 0


PLAIN_KEY = PrefixKey()


@dataclass(frozen=True, slots=True)
class Draw:
    """Draw the next token of a segment: with which parameters, from which allowed tokens, as its how-many-eth."""

    sampler: SamplerState
    mask: bytes | None
    step: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The next tokens of one sequence; `draw` is set when the last of them gives the sequence's next token."""

    sequence_id: int
    tokens: list[int]
    draw: Draw | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn token, or the fault that prevented it."""

    token: int
    logprob: float | None
    top_logprobs: list[tuple[int, float]]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work."""

    segments: list[Segment] = field(default_factory=list[Segment])


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What was drawn, in the order of the segments that asked for it."""

    drawn: list[Drawn]


class Runner(Protocol):
    """Owns a model's weights and KV memory on one device, and computes batches."""

    @property
    def context_length(self) -> int:
        """Positions the model was made for."""
        ...

    @property
    def vocab_size(self) -> int:
        """Rows of logits are this long."""
        ...

    def add(self, sequence_id: int, tokens: list[int], key: PrefixKey = PLAIN_KEY) -> int:
        """Start a sequence on its longest cached prefix; returns how many of its tokens need no computing."""
        ...

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Make room for so many tokens in all; False, and nothing changed, when there is none."""
        ...

    def release(self, sequence_id: int) -> None:
        """End a sequence; what it computed may be found again as a prefix."""
        ...

    def stats(self) -> PoolStats:
        """What the KV memory holds now."""
        ...

    def execute(self, batch: Batch) -> StepOutput:
        """Compute a batch. Blocks the calling thread, not the interpreter."""
        ...
