"""What an election came to, as programs and people read it."""

from __future__ import annotations

from typing import Literal

import msgspec

from pyagent.logic.voting.ballots import InvalidBallot
from pyagent.logic.voting.numbers import Number

Method = Literal[
    "majority", "plurality", "runoff", "ranked-choice", "borda", "schulze", "approval", "quadratic", "weighted"
]
_MAX_INVALID_SHOWN = 10
_MAX_TABLE = 8
_MAX_VOTES_SHOWN = 12


class Round(msgspec.Struct, frozen=True, omit_defaults=True):
    """The votes or points by option, the most first, and who is out after it."""

    votes: dict[str, Number]
    eliminated: list[str] = []


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an election came to. Without a `winner`, `tied` has those who tie for it, or `note` says why there is none.

    `ranking` has the best first, those of a group being equal. `invalid` holds the first 100 of `num_invalid` ballots.
    """

    method: Method
    winner: str | None
    tied: list[str] = []
    ranking: list[list[str]]
    rounds: list[Round] = []
    pairwise: dict[str, dict[str, Number]] = {}
    condorcet_winner: str | None = None
    num_ballots: int
    weight: Number
    num_invalid: int = 0
    invalid: list[InvalidBallot] = []
    note: str = ""

    def __str__(self) -> str:
        won = self.winner or ("a tie of " + ", ".join(self.tied) if self.tied else "none")
        ballots = f"{self.weight} vote{'' if self.weight == 1 else 's'}, {self.method}"
        lines = [f"Winner: {won}  ({ballots})"]
        lines += [f"  {number}. {' = '.join(group)}" for number, group in enumerate(self.ranking, 1)]
        labels = [f"round {number}" for number in range(1, len(self.rounds) + 1)] if len(self.rounds) > 1 else ["votes"]
        lines += [f"{label}: {_round_text(each)}" for label, each in zip(labels, self.rounds, strict=False)]
        lines += self._pairs()
        lines += [f"({self.note})"] if self.note else []
        shown = self.invalid[:_MAX_INVALID_SHOWN]
        lines += [f"not counted: {ballot.place}, {ballot.text!r}: {ballot.fault}" for ballot in shown]
        more = self.num_invalid - len(shown)
        return "\n".join([*lines, *([f"not counted: {more:,} more"] if more else [])])

    def _pairs(self) -> list[str]:
        """Return who beats whom, where the table is small enough to read."""
        if not self.pairwise:
            return []
        beats = (
            f"beats every other one: {self.condorcet_winner}"
            if self.condorcet_winner
            else "beats every other one: none"
        )
        names = [name for group in self.ranking for name in group]
        pairs = [(one, two) for place, one in enumerate(names) for two in names[place + 1 :]]
        lines = [f"  {one} {self.pairwise[one][two]}, {two} {self.pairwise[two][one]}" for one, two in pairs]
        return [beats, *(lines if len(names) <= _MAX_TABLE else [])]


def _round_text(each: Round) -> str:
    votes = [f"{name} {value}" for name, value in each.votes.items()]
    more = [f"{len(votes) - _MAX_VOTES_SHOWN} more"] if len(votes) > _MAX_VOTES_SHOWN else []
    out = f"; out: {', '.join(each.eliminated)}" if each.eliminated else ""
    return f"{', '.join([*votes[:_MAX_VOTES_SHOWN], *more])}{out}"
