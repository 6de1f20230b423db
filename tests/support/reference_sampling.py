"""The samplers' formulas in float64, and a test whether draws follow them.

The order is bias, penalties (repetition, frequency, presence), temperature, top-n-sigma, epsilon, eta, top-k, top-h,
typical, top-p, min-p, XTC; each filter sees what those before it keep as if it were all, but for the entropy that
`top_k_entropy` and `min_p_entropy` read, which is the whole row's. Sources: top-n-sigma arXiv
2411.07641, epsilon and eta arXiv 2210.15191, top-h arXiv 2509.02510, typical arXiv 2202.00666, top-p Holtzman et al.
2019 (arXiv 1904.09751), min-p arXiv 2407.01082, repetition Keskar et al. 2019 (arXiv 1909.05858), frequency and
presence OpenAI's API reference.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from support.reference_decoder import softmax


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Parameters by their names in requests."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k_entropy: float = 0.0
    min_p_entropy: float = 0.0
    top_n_sigma: float = 0.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    top_h: float = 1.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
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
        """The probability of each token; with XTC, where it has its turn."""
        values = [value / self.temperature for value in self.adjusted(logits, prompt, output)]
        order = sorted(range(len(values)), key=lambda token: (-values[token], token))
        for keep in (self._top_n_sigma, self._cutoffs, self._top_k, self._top_h, self._typical, self._top_p_and_min_p):
            order = keep(order, values)
        if self.xtc_probability:
            num_top = sum(share >= self.xtc_threshold for share in _shares(order, values))
            order = order[max(0, num_top - 1) :]
        shares = [0.0] * len(values)
        for token, share in zip(order, _shares(order, values), strict=True):
            shares[token] = share
        return shares

    def _top_n_sigma(self, order: list[int], values: list[float]) -> list[int]:
        if not self.top_n_sigma:
            return order
        least = values[order[0]] - self.top_n_sigma * statistics.pstdev(values[token] for token in order)
        return [token for token in order if values[token] >= least]

    def _cutoffs(self, order: list[int], values: list[float]) -> list[int]:
        shares = _shares(order, values)
        order = [
            token for token, share in zip(order, shares, strict=True) if share >= min(self.epsilon_cutoff, shares[0])
        ]
        shares = _shares(order, values)
        eta = min(self.eta_cutoff, math.sqrt(self.eta_cutoff) * math.exp(-_entropy(shares)))
        return [token for token, share in zip(order, shares, strict=True) if share >= min(eta, shares[0])]

    def _top_k(self, order: list[int], values: list[float]) -> list[int]:
        if self.top_k_entropy:
            perplexity = math.exp(_entropy(softmax(values)))
            order = order[: max(1, math.floor(self.top_k_entropy * perplexity + 0.5))]
        return order[: self.top_k or None]

    def _top_h(self, order: list[int], values: list[float]) -> list[int]:
        if self.top_h == 1:
            return order
        most = self.top_h * _entropy(_shares(order, values))
        count = 1
        while count < len(order) and _entropy(_shares(order[: count + 1], values)) <= most:
            count += 1
        return order[:count]

    def _typical(self, order: list[int], values: list[float]) -> list[int]:
        if self.typical_p == 1:
            return order
        shares = _shares(order, values)
        entropy = _entropy(shares)
        nearest = sorted(range(len(order)), key=lambda place: abs(-math.log(shares[place]) - entropy))
        kept = set(nearest[: _num_reaching(self.typical_p, [shares[place] for place in nearest])])
        return [token for place, token in enumerate(order) if place in kept]

    def _top_p_and_min_p(self, order: list[int], values: list[float]) -> list[int]:
        if self.top_p < 1:
            order = order[: _num_reaching(self.top_p, _shares(order, values))]
        shares = _shares(order, values)
        min_p = self.min_p * math.exp(-self.min_p_entropy * _entropy(softmax(values)))
        return [token for token, share in zip(order, shares, strict=True) if share >= min_p * shares[0]]


def _shares(order: Sequence[int], values: Sequence[float]) -> list[float]:
    return softmax([values[token] for token in order])


def _entropy(shares: Sequence[float]) -> float:
    """In nats."""
    return -sum(share * math.log(share) for share in shares if share > 0)


def _num_reaching(mass: float, shares: Sequence[float]) -> int:
    """How many shares, from the first on, reach a mass together."""
    reached = accumulate(shares)
    return next((count for count, total in enumerate(reached, 1) if total >= mass), len(shares))


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
