"""An election: which method counts, by which rules, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.voting import schulze
from pyagent.logic.voting.ballots import InvalidBallot, Kind, Paper, Rules, Vote, clean_name, options_of, validate
from pyagent.logic.voting.numbers import shown
from pyagent.logic.voting.outcome import Method, Outcome, Round
from pyagent.logic.voting.profile import Profile, Scores
from pyagent.logic.voting.rounds import Count, Counts, ranked_choice, runoff
from pyagent.logic.voting.ties import TieRule, broken, grouped, tie_order

_KINDS: dict[Method, Kind] = {"approval": "approval", "quadratic": "votes"}
_MAX_INVALID = 100
_DEFAULT_CREDITS = Fraction(100)


class How(msgspec.Struct, frozen=True, kw_only=True):
    """How to count. `quota` is the share of all votes that majority and weighted ask for at least."""

    method: Method
    options: tuple[str, ...] = ()
    ties: TieRule = "all"
    seed: int = 0
    quota: Fraction | None = None
    credits: Fraction | None = None

    @property
    def kind(self) -> Kind:
        """What a ballot has to hold."""
        return _KINDS.get(self.method, "ranking")

    def check(self) -> None:
        """Raise `RequestError` for rules that the method has not, and for those without a meaning."""
        if self.quota is not None and self.method not in {"majority", "weighted"}:
            raise RequestError(f"quota is for the methods majority and weighted, not {self.method}", param="quota")
        if self.quota is not None and not 0 < self.quota <= 1:
            text = f"quota is a share above 0 and at most 1, such as 2/3; got {shown(self.quota)}"
            raise RequestError(text, param="quota")
        if self.credits is not None and self.method != "quadratic":
            raise RequestError(f"credits is for the method quadratic, not {self.method}", param="credits")
        if self.credits is not None and self.credits <= 0:
            raise RequestError(f"credits must be above 0, got {shown(self.credits)}", param="credits")


class _Tally(msgspec.Struct, frozen=True):
    """What a method says: who can win, the options ranked, and how it was counted."""

    winners: list[str]
    ranking: list[list[str]]
    rounds: list[Count]
    note: str = ""
    ties: list[list[str]] = []
    pairwise: Mapping[str, Mapping[str, Fraction]] = {}
    condorcet_winner: str | None = None


_Order = Sequence[str] | None


def hold(papers: Sequence[Paper], how: How) -> Outcome:
    """Return what the election comes to; raises `RequestError` when no ballot counts."""
    how.check()
    options = _options(how.options)
    needs_weight, budget = how.method == "weighted", how.credits or _DEFAULT_CREDITS
    rules = Rules(kind=how.kind, options=options, credits=budget, needs_weight=needs_weight)
    votes, invalid = validate(papers, rules)
    if not votes:
        raise RequestError(_none_counts(invalid), param="ballots")
    names = options_of(votes, options)
    order = tie_order(how.ties, names, how.seed)
    tally = _count(votes, names, how, order)
    winners = broken(tally.winners, order)
    ties = tally.ties or ([tally.winners] if len(tally.winners) > 1 else [])
    return Outcome(
        method=how.method,
        winner=winners[0] if len(winners) == 1 else None,
        tied=winners if len(winners) > 1 else [],
        ranking=_first(winners, tally.ranking) if winners else tally.ranking,
        rounds=[_round(each) for each in tally.rounds],
        pairwise={one: {two: shown(value) for two, value in row.items()} for one, row in tally.pairwise.items()},
        condorcet_winner=tally.condorcet_winner,
        num_ballots=len(votes),
        weight=shown(sum((vote.weight for vote in votes), Fraction(0))),
        num_invalid=len(invalid),
        invalid=invalid[:_MAX_INVALID],
        note=tally.note or "; ".join(_tie_note(tied, how) for tied in ties),
    )


def _options(options: Sequence[str]) -> tuple[str, ...]:
    names = tuple(clean_name(name) for name in options)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise RequestError(f"the option {twice[0]} is given twice", param="options")
    return names


def _none_counts(invalid: Sequence[InvalidBallot]) -> str:
    if not invalid:
        return "there are no ballots; give lines such as `3: A > B > C`, or a file of them"
    first = invalid[0]
    return f"no ballot counts; {first.place}, {first.text!r}: {first.fault}"


def _count(votes: Sequence[Vote], names: tuple[str, ...], how: How, order: _Order) -> _Tally:
    if how.method == "quadratic":
        return _scored(_quadratic(votes, names))
    profile = Profile.of(votes, names)
    if how.method in {"majority", "weighted"}:
        return _with_quota(profile, how)
    if how.method == "schulze":
        return _schulze(profile)
    by_rounds = _ROUNDS.get(how.method)
    if by_rounds is not None:
        counts = by_rounds(profile, order)
        return _Tally(counts.winners, counts.ranking, counts.rounds, ties=counts.ties)
    return _scored(_SCORES[how.method](profile))


def _first_votes(profile: Profile) -> Scores:
    return profile.first_votes(profile.options)


def _approvals(profile: Profile) -> Scores:
    found = dict.fromkeys(profile.options, 0)
    for ranking, count in profile.counts.items():
        for name in ranking[0]:
            found[name] += count
    return {name: Fraction(value, profile.scale) for name, value in found.items()}


_ROUNDS: dict[Method, Callable[[Profile, _Order], Counts]] = {"runoff": runoff, "ranked-choice": ranked_choice}
_SCORES: dict[Method, Callable[[Profile], Scores]] = {
    "plurality": _first_votes,
    "borda": Profile.borda,
    "approval": _approvals,
}


def _quadratic(votes: Sequence[Vote], names: Sequence[str]) -> Scores:
    found = dict.fromkeys(names, Fraction(0))
    for vote in votes:
        for name, value in vote.votes.items():
            found[name] += vote.weight * value
    return found


def _scored(scores: Scores) -> _Tally:
    ranking = grouped(scores)
    return _Tally(ranking[0], ranking, [Count(scores, [])])


def _with_quota(profile: Profile, how: How) -> _Tally:
    """More than half, or at least the quota, of what all ballots weigh; weighted asks for no quota of its own."""
    scores, total = _first_votes(profile), profile.weight
    ranking = grouped(scores)
    most = scores[ranking[0][0]]
    if how.quota is not None:
        is_reached, wanted = most >= how.quota * total, f"{shown(how.quota * total)}"
    else:
        is_reached, wanted = how.method == "weighted" or 2 * most > total, f"more than {shown(total / 2)}"
    lack = f"none has {wanted} of {shown(total)}; the most is {shown(most)}"
    return _Tally(ranking[0] if is_reached else [], ranking, [Count(scores, [])], "" if is_reached else lack)


def _schulze(profile: Profile) -> _Tally:
    above = profile.pairwise()
    ranking = schulze.ranking(above)
    pairwise = {
        one: {two: Fraction(value, profile.scale) for two, value in row.items() if two != one}
        for one, row in above.items()
    }
    return _Tally(ranking[0], ranking, [], pairwise=pairwise, condorcet_winner=schulze.condorcet_winner(above))


def _first(winners: Sequence[str], ranking: Sequence[Sequence[str]]) -> list[list[str]]:
    rest = [[name for name in group if name not in winners] for group in ranking]
    return [list(winners), *(group for group in rest if group)]


def _round(count: Count) -> Round:
    votes = sorted(count.votes.items(), key=lambda item: -item[1])
    return Round({name: shown(value) for name, value in votes}, count.eliminated)


def _tie_note(tied: Sequence[str], how: How) -> str:
    names = ", ".join(tied)
    if how.ties == "all":
        return f"{names} tie; `ties` order or random breaks it"
    by = "the order of the options" if how.ties == "order" else f"lot, seed {how.seed}"
    return f"{names} tie, broken by {by}"
