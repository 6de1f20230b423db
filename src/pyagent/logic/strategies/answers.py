"""Answers as several lines of thought give them: what each says, and which one they settle on."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from pyagent.core.fleet.confidence import agreement
from pyagent.logic.voting.ballots import Ranking
from pyagent.logic.voting.profile import Profile
from pyagent.logic.voting.ties import broken, grouped

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MAX_NUMBER_CHARACTERS = 200
"""Of an answer that says a number; a longer one is a text that has a number in it."""
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


class Verdict(msgspec.Struct, frozen=True):
    """The answer with most votes, as it was first written, and the votes by normal form, the most first."""

    answer: str
    votes: dict[str, int]

    @property
    def agreement(self) -> float:
        """The part of the answers that say the same as the winner."""
        return agreement([*self.votes.values()])


def settle(answers: Sequence[str]) -> Verdict:
    """Plurality of the normal forms; among equals the one met first. There is at least one answer."""
    written: dict[str, str] = {}
    ballots: dict[Ranking, int] = {}
    for answer in answers:
        form = normal_form(answer)
        written.setdefault(form, answer)
        ballots[((form,),)] = ballots.get(((form,),), 0) + 1
    forms = tuple(written)
    scores = Profile(forms, ballots, 1).first_votes(forms)
    ranking = grouped(scores)
    (winner,) = broken(ranking[0], forms)
    return Verdict(written[winner], {form: int(scores[form]) for group in ranking for form in group})


def normal_form(answer: str) -> str:
    """What an answer says, however it is written: a short one's only number, else its words in lower case."""
    text = _THOUSANDS.sub("", answer.strip().lower())
    numbers = _NUMBER.findall(text)
    if len(numbers) == 1 and len(text) <= _MAX_NUMBER_CHARACTERS:
        return f"{float(numbers[0]):.12g}"
    words = re.findall(r"[^\W_]+", text)
    return " ".join(word for word in words if word not in {"the", "a", "an", "is", "answer"}) or text
