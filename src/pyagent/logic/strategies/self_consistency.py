"""Self-consistency: several lines of thought, and the answer most come to (Wang et al. 2022, arXiv:2203.11171)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.confidence import agreement
from pyagent.core.fleet.context import Context
from pyagent.core.messages import SamplingParams
from pyagent.logic.strategies.answers import settle
from pyagent.logic.strategies.chain_of_thought import Thought, chain_of_thought

MAX_SAMPLES = 64


class Consensus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer with most votes, the votes by answer, and every line of thought."""

    answer: str
    votes: dict[str, int]
    samples: list[Thought]

    @property
    def agreement(self) -> float:
        """The part of the answers that say the same as the winner."""
        return agreement([*self.votes.values()])


async def self_consistency(context: Context, question: str, *, num_samples: int = 5, seed: int = 0) -> Consensus:
    """Ask `num_samples` times, with seeds from `seed` on, side by side, and let the answers vote.

    Where they do not agree, and doubtful answers are asked again, it asks as often once more.
    """
    if not 1 <= num_samples <= MAX_SAMPLES:
        raise RequestError(f"samples goes from 1 to {MAX_SAMPLES}, got {num_samples}", param="samples")

    async def sample(sample_seed: int) -> Thought:
        sampling = SamplingParams(temperature=0.7, top_p=0.95, max_tokens=384, seed=sample_seed)
        return await chain_of_thought(context, question, sampling=sampling, is_shown=False)

    context.progress(f"{num_samples} lines of thought in parallel")
    with context.phase(f"{num_samples} samples"):
        samples = await context.map(sample, range(seed, seed + num_samples))
    consensus = vote(samples)
    if num_samples > 1 and await context.doubts(consensus.agreement) in {"retry", "escalate"}:
        with context.phase(f"{num_samples} samples more, as they do not agree"):
            samples += await context.map(sample, range(seed + num_samples, seed + 2 * num_samples))
        consensus = vote(samples)
    return consensus


def vote(samples: Sequence[Thought]) -> Consensus:
    """Let the answers vote; among equals the one met first wins, as it was first written."""
    settled = settle([thought.answer for thought in samples])
    return Consensus(answer=settled.answer, votes=settled.votes, samples=list(samples))
