"""What crosses between the engine and a runner: a step's work in columns, and what came out of it.

Runners for any device take the same `Batch` and give the same `StepOutput`. Columns, because most steps are one token
for each of many sequences, and a column of numbers crosses into Rust at once.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyagent._rust import LogitsRows, PromptScores, SamplerState

BLOCK_TOKENS = 16
"""Tokens of a KV block: the unit in which memory is reserved and prefixes are shared."""


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """What must be equal, besides the tokens, for KV to be used again; and how long it is worth keeping.

    `encoded` are the tokens with which an encoder-decoder's sequence begins, and which its encoder reads all at once:
    KV of each depends on all of them, so that `media_hash` is their digest.

    `priority` is told to the eviction policy (higher stays longer); it does not tell prefixes apart, and neither
    does comparing keys look at it.
    """

    adapter_id: int = 0
    media_hash: bytes = b""
    tenant: str = ""
    priority: int = field(default=0, compare=False)
    encoded: tuple[int, ...] = field(default=(), compare=False)

    @classmethod
    def of_encoded(
        cls, encoded: Sequence[int], *, adapter_id: int = 0, tenant: str = "", priority: int = 0
    ) -> PrefixKey:
        """Return the key of an encoder-decoder's sequence."""
        digest = hashlib.sha256(array("I", encoded).tobytes()).digest()
        return cls(adapter_id, digest, tenant, priority, tuple(encoded))


PLAIN_KEY = PrefixKey()


class Probe(NamedTuple):
    """What is told of a sampled token: so many neurons of all layers, and so many tokens of each layer."""

    num_neurons: int = 0
    num_lens_tokens: int = 0


class ProbedToken(NamedTuple):
    """What was told of a token: see `core.activations.TokenActivations`, whose order is this one's.

    `neurons` are layer, neuron, activation, write norm and the ids of promoted tokens; `layers` are token ids with
    their log probabilities.
    """

    neurons: list[tuple[int, int, float, float, list[int]]]
    layers: list[list[tuple[int, float]]]


@dataclass(slots=True)
class Batch:
    """Segments: the next `lengths[i]` of `tokens` for sequence `sequence_ids[i]`, one segment for a sequence.

    The first `len(samplers)` segments sample the sequence's next token after their last: with `samplers[i]`, as its
    `steps[i]`-th, from the tokens that `masks[i]` allows where there is one. The first `num_decoding` segments have
    room for `Runner.num_lookahead_tokens` more. A segment with `scores[i]` is a part of a prompt whose tokens' log
    probabilities are wanted; they go there. Before the segments in `processed` are sampled, `process` is called once,
    in any thread, with their logits after `masks`; it returns why some cannot be sampled. Without `tokens`, a segment
    is the token that the step before sampled for its sequence (`LaunchingRunner`).

    The last `num_drafts[i]` tokens of one of the first `num_decoding` segments are drafts, for which there is room:
    proposals for what is sampled after the tokens before them. Each is sampled as in a step of its own, until one is
    not as proposed; KV of tokens after it is void. `masks[i]` then has the masks of all of them, one after the other.
    Only a runner that `verifies_drafts` is given any. In a model that drafts, a segment in `num_ahead` is one of its
    own drafts: so many tokens lie between what the pool has of the sequence and it, which earlier steps computed in
    room that is reserved. The pool does not learn of it.

    `probes` says of some segments that sample what is told of their tokens (`RunnerInfo.probes`).
    """

    sequence_ids: list[int] = field(default_factory=list[int])
    lengths: list[int] = field(default_factory=list[int])
    tokens: list[int] = field(default_factory=list[int])
    samplers: list[SamplerState] = field(default_factory=list["SamplerState"])
    steps: list[int] = field(default_factory=list[int])
    masks: dict[int, bytes] = field(default_factory=dict[int, bytes])
    scores: dict[int, PromptScores] = field(default_factory=dict[int, "PromptScores"])
    process: Callable[[LogitsRows], dict[int, str]] | None = None
    processed: frozenset[int] = frozenset()
    num_decoding: int = 0
    num_drafts: dict[int, int] = field(default_factory=dict[int, int])
    num_ahead: dict[int, int] = field(default_factory=dict[int, int])
    probes: dict[int, Probe] = field(default_factory=dict[int, Probe])


class Likelihood(NamedTuple):
    """A sampled token's log probability, the likeliest tokens with theirs, and the entropy where it was asked for."""

    logprob: float
    top: list[tuple[int, float]]
    entropy: float | None = None


class DraftOutput(NamedTuple):
    """What a model's own head or its assistant drafts: of each row its likeliest token with its log-probability.

    Faults are by row. None stands for a row for which nothing is known now, and the next step computes it.
    """

    tokens: list[tuple[int, float] | None]
    errors: dict[int, str]


@dataclass(slots=True)
class StepOutput:
    """The tokens sampled, in the order of the segments that sample; likelihoods and faults of rows that have any.

    `more` has, by row below `num_decoding`, the tokens accepted after `tokens[row]` in the same step, where the runner
    verified several: at most the row's drafts, or `Runner.num_lookahead_tokens` of its own. Their KV is computed, but
    for the last one's. `more_likelihoods` are theirs, where the request asks for any. `probed` is what was told of the
    tokens of rows in the batch's `probes`, one for each that was sampled. `seconds` is how long the runner
    computed, measured by its caller.
    """

    tokens: list[int]
    more: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    more_likelihoods: dict[int, list[Likelihood]] = field(default_factory=dict[int, list[Likelihood]])
    likelihoods: dict[int, Likelihood] = field(default_factory=dict[int, Likelihood])
    errors: dict[int, str] = field(default_factory=dict[int, str])
    probed: dict[int, list[ProbedToken]] = field(default_factory=dict[int, list[ProbedToken]])
    seconds: float = 0.0
