"""A profile: all rankings of an election with their weights, in whole numbers, and what every method counts in them.

Weights are kept in units so small that all are whole: sums and comparisons are then exact, and quick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from pyagent.core.errors import RequestError
from pyagent.logic.voting.ballots import Ranking, Vote

Scores = dict[str, Fraction]
MAX_WORK = 12_000_000
"""Comparisons of two options: some seconds."""


@dataclass(frozen=True, slots=True)
class Profile:
    """`counts` has how many units of `1 / scale` each ranking weighs."""

    options: tuple[str, ...]
    counts: dict[Ranking, int]
    scale: int

    @classmethod
    def of(cls, votes: Sequence[Vote], options: tuple[str, ...]) -> Profile:
        """Return the votes' profile; raises `RequestError` when they differ so much that counting would take long."""
        scale = lcm(*(vote.weight.denominator for vote in votes))
        counts: Counter[Ranking] = Counter()
        for vote in votes:
            counts[tuple(tuple(sorted(group)) for group in vote.ranking)] += vote.weight.numerator * (
                scale // vote.weight.denominator
            )
        if len(counts) * len(options) ** 2 > MAX_WORK:
            text = f"{len(counts):,} different ballots on {len(options)} options are too many to count here"
            raise RequestError(f"{text}; name fewer options", param="ballots")
        return cls(options, dict(counts), scale)

    def first_votes(self, remaining: Collection[str]) -> Scores:
        """Return each remaining option's share of ballots that rank it first of these; equal ones share a ballot."""
        return {name: Fraction(value) / self.scale for name, value in self.first_units(remaining).items()}

    def first_units(self, remaining: Collection[str]) -> dict[str, int | Fraction]:
        """Return the same in units, which is quicker."""
        found: dict[str, int | Fraction] = dict.fromkeys(remaining, 0)
        for ranking, count in self.counts.items():
            for group in ranking:
                first = [name for name in group if name in found]
                if first:
                    share = count if len(first) == 1 else Fraction(count, len(first))
                    for name in first:
                        found[name] += share
                    break
        return found

    def pairwise(self) -> dict[str, dict[str, int]]:
        """Return in units how much ranks one option above another."""
        above = {name: dict.fromkeys(self.options, 0) for name in self.options}
        for ranking, count in self.counts.items():
            below = set(self.options)
            for group in ranking:
                below.difference_update(group)
                for name in group:
                    row = above[name]
                    for other in below:
                        row[other] += count
        return above

    def borda(self) -> Scores:
        """Return the points: one for each option ranked below, half a one for each that is equal."""
        found = dict.fromkeys(self.options, 0)
        for ranking, count in self.counts.items():
            num_left, listed = len(self.options), {name for group in ranking for name in group}
            rest = tuple(name for name in self.options if name not in listed)
            for group in (*ranking, rest):
                num_left -= len(group)
                for name in group:
                    found[name] += count * (2 * num_left + len(group) - 1)
        return {name: Fraction(points, 2 * self.scale) for name, points in found.items()}

    @property
    def weight(self) -> Fraction:
        """What all ballots weigh."""
        return Fraction(sum(self.counts.values()), self.scale)
