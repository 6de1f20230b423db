"""Self-consistency: several lines of thought, and the answer most come to (Wang et al. 2022, arXiv:2203.11171)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.confidence import agreement
from pyagent.core.fleet.context import Context
from pyagent.core.messages import SamplingParams
from pyagent.logic.strategies.chain_of_thought import Thought, chain_of_thought

MAX_SAMPLES = 64
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


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
    """Majority of the normal forms; among equals the one met first. The answer is shown as it was first written."""
    written: dict[str, str] = {}
    for thought in samples:
        written.setdefault(normal_form(thought.answer), thought.answer)
    votes = Counter(normal_form(thought.answer) for thought in samples)
    winner, _ = votes.most_common(1)[0]
    return Consensus(answer=written[winner], votes=dict(votes.most_common()), samples=list(samples))


def normal_form(answer: str) -> str:
    """What an answer says, however it is written: its number when it has just one, else its words in lower case."""
    text = _THOUSANDS.sub("", answer.strip().lower())
    numbers = _NUMBER.findall(text)
    if len(numbers) == 1:
        return f"{float(numbers[0]):.12g}"
    words = re.findall(r"[^\W_]+", text)
    return " ".join(word for word in words if word not in {"the", "a", "an", "is", "answer"}) or text
