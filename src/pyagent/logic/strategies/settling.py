"""How a debate that has ended is settled: by a method of voting over the debaters' answers, or by a judge.

Answers stand as numbered options, so that no text of a model is a name in an election or in a grammar. Methods that
count rankings ask the model for one from each debater. What cannot be had is settled by plurality, and told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from pyagent.core.messages import JsonObject, Message, SamplingParams
from pyagent.logic.strategies.answers import normal_form
from pyagent.logic.strategies.calls import Ask, Calls, Lack
from pyagent.logic.strategies.chain_of_thought import SYSTEM, Thought
from pyagent.logic.voting.ballots import Ballot, Paper
from pyagent.logic.voting.election import How, hold
from pyagent.logic.voting.outcome import Method

SettleBy = Literal["plurality", "majority", "runoff", "ranked-choice", "borda", "schulze", "judge"]
RANKED: frozenset[SettleBy] = frozenset({"runoff", "ranked-choice", "borda", "schulze"})
_JUDGE = "You are the judge. Which of these answers to the question is right? Give the reason, then its number."
_RANK = "Rank these answers to the question by their numbers, the best first."
_TIE = "answers tie: the one given most often in all rounds, or first, is taken"
_MAX_REASON = 300
_MAX_TOKENS = 192


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The thought that has the answer, the debaters behind each answer, and by what it was settled in the end."""

    thought: Thought
    votes: dict[str, int]
    by: SettleBy
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Motion:
    """What is settled: the different answers, each debater's own as a ballot, and a prompt with all of them."""

    options: Sequence[Thought]
    ballots: Sequence[Sequence[str]]
    prompt: str


class _Elected(msgspec.Struct, frozen=True):
    """The number of the answer that is taken, by what, and what to say of it."""

    number: int
    by: SettleBy
    note: str = ""


async def settle_by(
    calls: Calls, thoughts: Sequence[Thought], given: Mapping[str, int], prompt: str, by: SettleBy
) -> Settlement:
    """Return what the thoughts, one at least, are settled on; the prompt has the question and all answers.

    `given` has how often each answer was given in all rounds, which breaks ties.
    """
    forms = [normal_form(thought.answer) for thought in thoughts]
    options: dict[str, Thought] = {}
    for form, thought in sorted(zip(forms, thoughts, strict=True), key=lambda each: -given[each[0]]):
        options.setdefault(form, thought)
    numbers = {form: str(number) for number, form in enumerate(options, 1)}
    motion = _Motion([*options.values()], [[numbers[form]] for form in forms], prompt)
    elected = await _elected(calls, motion, by)
    votes = {form: forms.count(form) for form in sorted(options, key=forms.count, reverse=True)}
    return Settlement(thought=motion.options[elected.number - 1], votes=votes, by=elected.by, note=elected.note)


async def _elected(calls: Calls, motion: _Motion, by: SettleBy) -> _Elected:
    if len(motion.options) == 1:
        return _Elected(1, by)
    if by == "judge":
        found = await _judged(calls, motion)
    elif by in RANKED:
        found = await _ranked(calls, motion, by)
    else:
        return _counted(motion.ballots, by, len(motion.options))
    if not isinstance(found, Lack):
        return found
    counted = _counted(motion.ballots, "plurality", len(motion.options))
    why = f"settled by plurality, not by {by}: {found.end.text}"
    return msgspec.structs.replace(counted, note="; ".join(filter(None, [why, counted.note])))


def _counted(ballots: Sequence[Sequence[str]], by: SettleBy, num_options: int) -> _Elected:
    """Return who wins, the first option of those that tie; where there is no majority, the most votes."""
    papers = [Paper(str(place), "", Ballot(ranking=list(ballot))) for place, ballot in enumerate(ballots, 1)]
    names = tuple(str(number) for number in range(1, num_options + 1))
    outcome = hold(papers, How(method=cast("Method", by), options=names, ties="order"))
    if outcome.winner is None:
        counted = _counted(ballots, "plurality", num_options)
        note = "; ".join(filter(None, ["no answer has a majority, so the most votes count", counted.note]))
        return msgspec.structs.replace(counted, note=note)
    return _Elected(int(outcome.winner), by, _TIE if outcome.note else "")


async def _judged(calls: Calls, motion: _Motion) -> _Elected | Lack:
    numbers = [str(number) for number in range(1, len(motion.options) + 1)]
    reason: JsonObject = {"type": "string", "maxLength": _MAX_REASON}
    schema = _object({"reason": reason, "best": {"type": "string", "enum": numbers}})
    said = await calls.ask(_ask(motion, _JUDGE, schema))
    if isinstance(said, Lack):
        return said
    verdict = cast("dict[str, str]", said.output)
    return _Elected(int(verdict["best"]), "judge", f"the judge: {' '.join(verdict['reason'].split())}")


async def _ranked(calls: Calls, motion: _Motion, by: SettleBy) -> _Elected | Lack:
    """Ask for a ranking on behalf of each debater, and count those that come; numbers that stand twice count once."""
    num = len(motion.options)
    number: JsonObject = {"type": "string", "enum": [str(each) for each in range(1, num + 1)]}
    schema = _object({"ranking": {"type": "array", "items": number, "minItems": 1, "maxItems": num}})
    said = await calls.ask_all([_ask(motion, _RANK, schema, seed) for seed in range(len(motion.ballots))])
    lacks = [each for each in said if isinstance(each, Lack)]
    found = [cast("dict[str, list[str]]", each.output)["ranking"] for each in said if not isinstance(each, Lack)]
    if not found:
        return lacks[0]
    counted = _counted([[*dict.fromkeys(ranking)] for ranking in found], by, num)
    missing = f"{len(lacks)} of {len(said)} rankings are missing: {lacks[0].end.text}" if lacks else ""
    return msgspec.structs.replace(counted, note="; ".join(filter(None, [counted.note, missing])))


def _ask(motion: _Motion, what: str, schema: JsonObject, seed: int | None = None) -> Ask:
    listed = "\n".join(f"{number}. {each.answer[:_MAX_REASON]}" for number, each in enumerate(motion.options, 1))
    text = f"{motion.prompt}\n\nThe different answers:\n{listed}\n\n{what}"
    sampling = SamplingParams(temperature=0.0 if seed is None else 0.7, max_tokens=_MAX_TOKENS, seed=seed)
    return Ask(messages=[Message("system", SYSTEM), Message("user", text)], sampling=sampling, schema=schema)


def _object(properties: dict[str, JsonObject]) -> JsonObject:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
