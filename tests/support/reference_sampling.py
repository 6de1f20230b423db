"""The samplers' formulas in float64, and a test whether draws follow them.

The order is bias, penalties (repetition, frequency, presence), temperature, top-k, top-p, min-p. Sources: top-p
Holtzman et al. 2019 (arXiv 1904.09751), min-p arXiv 2407.01082, repetition Keskar et al. 2019 (arXiv 1909.05858),
frequency and presence OpenAI's API reference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from support.reference_decoder import softmax


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Parameters by their names in requests."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])

    def adjusted(self, logits: Sequence[float], prompt: Sequence[int], output: Sequence[int]) -> list[float]:
        """The logits after bias and penalties."""
        values = list(logits)
        for token, bias in self.logit_bias.items():
            values[token] += bias
        counts = Counter(output)
        for token in {*prompt, *output}:
            logit = values[token]
            values[token] = logit / self.repetition_penalty if logit > 0 else logit * self.repetition_penalty
        for token, count in counts.items():
            values[token] -= self.frequency_penalty * count + self.presence_penalty
        return values

    def shares(self, logits: Sequence[float], prompt: Sequence[int] = (), output: Sequence[int] = ()) -> list[float]:
        """The probability of each token."""
        values = [value / self.temperature for value in self.adjusted(logits, prompt, output)]
        order = sorted(range(len(values)), key=lambda token: (-values[token], token))[: self.top_k or None]
        kept = softmax([values[token] for token in order])
        mass = 0.0
        for place, share in enumerate(kept):
            mass += share
            if mass >= self.top_p:
                kept = kept[: place + 1]
                break
        kept = [share for share in kept if share >= self.min_p * kept[0]]
        shares = [0.0] * len(values)
        for token, share in zip(order, kept, strict=False):
            shares[token] = share / sum(kept)
        return shares


def assert_follows(counts: Mapping[str, int], shares: Mapping[str, float]) -> None:
    """Fail when draws are not from these shares: by what cannot be drawn, and by the chi-square statistic."""
    total = sum(counts.values())
    impossible = [name for name in counts if shares.get(name, 0.0) == 0]
    assert not impossible, f"drawn, though the filters cut it: {impossible}"
    terms: list[tuple[float, float]] = []
    rare = [0.0, 0.0]
    for name, share in shares.items():
        if share * total >= 8:
            terms.append((counts.get(name, 0), share * total))
        else:
            rare = [rare[0] + counts.get(name, 0), rare[1] + share * total]
    if rare[1] >= 8:
        terms.append((rare[0], rare[1]))
    statistic = sum((count - mean) ** 2 / mean for count, mean in terms)
    freedom = len(terms) - 1
    # Mean f, variance 2 f: five deviations are one in a million, and the seeds are fixed.
    limit = freedom + 5 * math.sqrt(2 * freedom) + 1
    assert statistic < limit, f"chi-square {statistic:.1f} of {freedom} degrees of freedom"
