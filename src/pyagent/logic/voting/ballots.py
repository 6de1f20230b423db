"""Ballots: what each kind may hold, and why one does not count.

One ballot is a voter's, or that of several who vote alike. A ballot that is not valid is named with its place and its
fault, and the others count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.nearest import did_you_mean
from pyagent.core.one_line import printable
from pyagent.logic.voting.numbers import exact, shown

Kind = Literal["ranking", "approval", "votes"]
Ranking = tuple[tuple[str, ...], ...]
"""Options, the best first; those of one group are equal, those left out are below all others, and equal."""

MAX_OPTIONS = 64
MAX_NAME_CHARACTERS = 200
_MAX_SHOWN = 80
_FIELDS: dict[Kind, str] = {"ranking": "ranking", "approval": "approves", "votes": "votes"}


class Ballot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A ballot: a `ranking`, the best first and equal ones in a list; or what it `approves`; or `votes` by option.

    `weight` is how many ballots it counts as (1), `voter` a name that may vote once.
    """

    ranking: list[str | list[str]] | None = None
    approves: list[str] | None = None
    votes: dict[str, int | float | str] | None = None
    weight: int | float | str | None = None
    voter: str = ""


class InvalidBallot(msgspec.Struct, frozen=True):
    """A ballot that does not count: where it stands, what it says, and what is wrong with it."""

    place: str
    text: str
    fault: str


class Paper(msgspec.Struct, frozen=True):
    """A ballot as it was read, with its place; or the fault that kept it from being read."""

    place: str
    text: str
    ballot: Ballot | None = None
    fault: str = ""


class Vote(msgspec.Struct, frozen=True):
    """A valid ballot: its ranking (approved options are one group), or its votes; and its weight."""

    weight: Fraction
    ranking: Ranking = ()
    votes: dict[str, Fraction] = {}


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a ballot valid. Without `options` those that ballots name are voted on."""

    kind: Kind = "ranking"
    options: tuple[str, ...] = ()
    credits: Fraction = Fraction(100)
    needs_weight: bool = False


def validate(papers: Iterable[Paper], rules: Rules) -> tuple[list[Vote], list[InvalidBallot]]:
    """Return the votes that count, and the ballots that do not."""
    votes: list[Vote] = []
    invalid: list[InvalidBallot] = []
    voters: set[str] = set()
    for paper in papers:
        try:
            vote = _vote(paper, rules)
            _check_once(paper, voters)
            votes.append(vote)
        except RequestError as error:
            invalid.append(InvalidBallot(paper.place, printable(paper.text[:_MAX_SHOWN]), str(error)))
    return votes, invalid


def options_of(votes: Sequence[Vote], options: Sequence[str]) -> tuple[str, ...]:
    """Return what is voted on: the options given, else those of the ballots in the order in which they are named."""
    found = dict.fromkeys(options)
    if not options:
        for vote in votes:
            found |= dict.fromkeys(name for group in vote.ranking for name in group) | dict.fromkeys(vote.votes)
    if len(found) > MAX_OPTIONS:
        raise RequestError(f"there are {len(found):,} options; the most is {MAX_OPTIONS}", param="options")
    return tuple(found)


def clean_name(name: str) -> str:
    """Return an option's name without space around it; raises `RequestError` for what is none."""
    name = " ".join(name.split())
    if not name:
        raise RequestError("an option has no name", param="options")
    if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
        text = f"an option's name has at most {MAX_NAME_CHARACTERS} letters and no control characters"
        raise RequestError(text, param="options")
    return name


def _vote(paper: Paper, rules: Rules) -> Vote:
    if paper.ballot is None:
        raise RequestError(paper.fault, param="ballots")
    ballot, weight = paper.ballot, _weight(paper.ballot, rules)
    given = [field for field in _FIELDS.values() if getattr(ballot, field) is not None]
    if given != [_FIELDS[rules.kind]]:
        has = " and ".join(given) or "nothing"
        raise RequestError(f"it has {has}, and this method counts {_FIELDS[rules.kind]}", param="ballots")
    if ballot.votes is not None:
        return Vote(weight, votes=_spent(ballot.votes, rules))
    groups = [ballot.approves] if ballot.approves is not None else ballot.ranking or []
    return Vote(weight, ranking=_ranking(groups, rules))


def _ranking(groups: Sequence[str | Sequence[str]], rules: Rules) -> Ranking:
    found: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for group in groups:
        names = [_known(name, rules.options) for name in ([group] if isinstance(group, str) else group)]
        for name in names:
            if name in seen:
                raise RequestError(f"it names {name} twice", param="ballots")
            seen.add(name)
        found += [tuple(names)] if names else []
    if not found:
        raise RequestError("it names no option", param="ballots")
    _check_size(seen)
    return tuple(found)


def _spent(votes: dict[str, int | float | str], rules: Rules) -> dict[str, Fraction]:
    """Return the votes by option, which cost their squares: Lalley and Weyl's quadratic voting."""
    found: dict[str, Fraction] = {}
    for written, value in votes.items():
        name = _known(written, rules.options)
        if name in found:
            raise RequestError(f"it names {name} twice", param="ballots")
        found[name] = exact(value, f"the number of votes for {name}")
    spent = sum((each * each for each in found.values()), Fraction(0))
    _check_size(found)
    if spent > rules.credits:
        raise RequestError(f"it spends {shown(spent)} credits of {shown(rules.credits)}", param="ballots")
    if not any(found.values()):
        raise RequestError("it votes for nothing", param="ballots")
    return found


def _check_size(names: Collection[str]) -> None:
    if len(names) > MAX_OPTIONS:
        raise RequestError(f"it names {len(names):,} options; the most is {MAX_OPTIONS}", param="ballots")


def _weight(ballot: Ballot, rules: Rules) -> Fraction:
    if ballot.weight is None:
        if rules.needs_weight:
            raise RequestError("it has no weight, which this method needs", param="ballots")
        return Fraction(1)
    weight = exact(ballot.weight, "the weight")
    if weight <= 0:
        raise RequestError(f"its weight is {shown(weight)}, expected one above 0", param="ballots")
    return weight


def _known(name: str, options: Sequence[str]) -> str:
    name = clean_name(name)
    if options and name not in options:
        hint = did_you_mean(name, options, f"the options are {', '.join(options[:6])}")
        raise RequestError(f"there is no option {name!r}; {hint}", param="ballots")
    return name


def _check_once(paper: Paper, voters: set[str]) -> None:
    voter = paper.ballot.voter.strip() if paper.ballot else ""
    if voter and voter in voters:
        raise RequestError(f"{printable(voter[:_MAX_SHOWN])} has voted before", param="ballots")
    if voter:
        voters.add(voter)
