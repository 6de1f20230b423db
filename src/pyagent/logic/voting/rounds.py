"""Methods of several rounds: ranked choice (instant runoff), and a runoff of the first two.

Where options tie for last, or for a place in the runoff, an order says who goes on. Without one every way of breaking
the ties is followed (parallel universes, Conitzer et al. 2009): who wins in any of them is a winner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.voting.profile import Profile, Scores
from pyagent.logic.voting.ties import grouped

Votes = Mapping[str, int | Fraction]
_MAX_VISITS = 400_000
_MIN_STATES, _MAX_STATES = 64, 2_000


class Count(msgspec.Struct, frozen=True):
    """One round: the votes, and who is out after it."""

    votes: Scores
    eliminated: list[str]


class Counts(msgspec.Struct, frozen=True):
    """The rounds, who can win, all options, the best first, and the ties that the order broke."""

    rounds: list[Count]
    winners: list[str]
    ranking: list[list[str]]
    ties: list[list[str]] = []


def ranked_choice(profile: Profile, order: Sequence[str] | None) -> Counts:
    """Eliminate the option with fewest votes, round by round, until one has more than half of those that count."""
    line = tuple(order or profile.options)
    remaining, rounds, out, ties = list(profile.options), list[Count](), list[list[str]](), list[list[str]]()
    while not _is_over(votes := profile.first_votes(remaining)):
        losers = _losers(votes)
        lost = losers if not votes[losers[0]] else [max(losers, key=line.index)]
        ties += [losers] if len(losers) > len(lost) else []
        rounds.append(Count(votes, lost))
        out.append(lost)
        remaining = [name for name in remaining if name not in lost]
    ranking = [*grouped(votes), *reversed(out)]
    rounds.append(Count(votes, []))
    if order is None:
        winners = _Universes(profile).winners(frozenset(profile.options))
        return Counts(rounds, [name for name in profile.options if name in winners], ranking)
    return Counts(rounds, _tied(ranking[0], order), ranking, ties)


def _is_over(votes: Votes) -> bool:
    """Whether one has more than half, or is alone, or nothing is left to count."""
    total = sum(votes.values())
    return len(votes) == 1 or not total or 2 * max(votes.values()) > total


def _losers(votes: Votes) -> list[str]:
    fewest = min(votes.values())
    return [name for name, value in votes.items() if value == fewest]


class _Universes:
    """Who wins among some options, by every way of breaking ties; each set of options is counted once."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._left = max(_MIN_STATES, min(_MAX_STATES, _MAX_VISITS // len(profile.counts)))
        self._known: dict[frozenset[str], frozenset[str]] = {}

    def winners(self, remaining: frozenset[str]) -> frozenset[str]:
        """Return all that can win; raises `RequestError` when there are too many ways."""
        if remaining not in self._known:
            self._left -= 1
            if self._left < 0:
                text = "there are too many ties to follow every way of breaking them"
                raise RequestError(f"{text}; break them by `ties` order or random", param="ties")
            self._known[remaining] = self._count(remaining)
        return self._known[remaining]

    def _count(self, remaining: frozenset[str]) -> frozenset[str]:
        votes = self._profile.first_units(remaining)
        if _is_over(votes):
            return frozenset(grouped(votes)[0])
        losers = _losers(votes)
        if not votes[losers[0]]:
            return self.winners(remaining.difference(losers))
        return frozenset[str]().union(*(self.winners(remaining - {loser}) for loser in losers))


def runoff(profile: Profile, order: Sequence[str] | None) -> Counts:
    """Let the two with most first votes meet, unless one has more than half of them."""
    votes = profile.first_votes(profile.options)
    if _is_over(votes):
        return Counts([Count(votes, [])], _tied(grouped(votes)[0], order), grouped(votes))
    line = tuple(order or profile.options)
    meeting = _first_two(votes, line)
    final = profile.first_votes(meeting)
    out = {name: value for name, value in votes.items() if name not in meeting}
    rounds = [Count(votes, list(out)), Count(final, [])]
    ranking = [*grouped(final), *grouped(out)]
    if order is None:
        winners = {name for pair in _pairs(votes) for name in grouped(profile.first_votes(pair))[0]}
        return Counts(rounds, [name for name in profile.options if name in winners], ranking)
    return Counts(rounds, _tied(ranking[0], order), ranking, [*_place_ties(votes, meeting), *_ties(ranking[0])])


def _place_ties(votes: Scores, meeting: Sequence[str]) -> list[list[str]]:
    """Return who tied for a place in the runoff, if it made a difference."""
    least = min(votes[name] for name in meeting)
    tied = [name for name, value in votes.items() if value == least]
    return [tied] if any(name not in meeting for name in tied) else []


def _ties(names: Sequence[str]) -> list[list[str]]:
    return [list(names)] if len(names) > 1 else []


def _tied(names: Sequence[str], order: Sequence[str] | None) -> list[str]:
    return list(names) if order is None else [min(names, key=order.index)]


def _first_two(votes: Scores, line: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(votes, key=lambda name: (-votes[name], line.index(name)))[:2])


def _pairs(votes: Scores) -> list[tuple[str, ...]]:
    """Return every two that may meet: two of those with most votes, or the one with each that has second most."""
    first, second = (*grouped(votes), list[str]())[:2]
    return list(combinations(first, 2)) if len(first) > 1 else [(first[0], name) for name in second]
