"""Debate: several debaters answer, see each other's answers, and answer again (Du et al. 2023, arXiv:2305.14325).

Debaters are the model with seeds of their own, or agents by name. All prompts of a round begin alike, with the question
and every answer; whose turn it is stands at the end, so that an engine computes the common part once. What a debater
wrote is shown as data, cut to a length, under a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from pyagent.core.errors import PyAgentError, RequestError
from pyagent.core.fleet.context import Context
from pyagent.core.messages import Message, SamplingParams
from pyagent.core.one_line import printable
from pyagent.logic.strategies.answers import normal_form
from pyagent.logic.strategies.calls import Ask, Calls, End, Lack
from pyagent.logic.strategies.chain_of_thought import SYSTEM, Thought
from pyagent.logic.strategies.settling import RANKED, SettleBy, Settlement, settle_by

MAX_DEBATERS = 16
MAX_ROUNDS = 8
_MAX_TOKENS = 384
_COMPARE = "Compare these answers: keep what is right, and correct what is wrong."
_AGAIN = "Now answer the question. End with one line: Answer: ..."
_MAX_SHOWN = 1_200
"""Characters of an answer that the others are shown: about 300 tokens."""
_MAX_LINE = 60


class Round(msgspec.Struct, frozen=True):
    """What each debater answered in a round, the empty text where it did not, and why it did not."""

    answers: list[str]
    failures: dict[int, str] = {}


class Debate(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that was settled on and how, the debaters behind each answer, and all rounds.

    `note` says what came of the settling where that was not as asked.
    """

    answer: str
    steps: list[str]
    votes: dict[str, int]
    rounds: list[Round]
    settled_by: SettleBy
    end: End
    num_calls: int
    num_tokens: int
    note: str = ""

    @property
    def agreement(self) -> float:
        """The part of the debaters who say the most frequent answer at the end."""
        return max(self.votes.values()) / len(self.rounds[-1].answers)


@dataclass(slots=True)
class _Debaters:
    """Where the debate stands: each debater's last answer, and every round."""

    names: Sequence[str]
    thoughts: list[Thought | None]
    rounds: list[Round] = field(default_factory=list[Round])
    first_error: PyAgentError | None = None

    @property
    def present(self) -> list[Thought]:
        """The answers there are, in the debaters' order."""
        return [thought for thought in self.thoughts if thought is not None]

    @property
    def forms(self) -> list[str]:
        """What each debater says; the empty text for one without an answer."""
        return ["" if thought is None else normal_form(thought.answer) for thought in self.thoughts]

    @property
    def given(self) -> Counter[str]:
        """How often each answer was given, in all rounds."""
        return Counter(normal_form(answer) for each in self.rounds for answer in each.answers if answer)

    @property
    def agreement(self) -> float:
        """The part of the debaters who say the most frequent answer now."""
        forms = [form for form in self.forms if form]
        return max(map(forms.count, forms), default=0) / len(self.names)


async def debate(  # noqa: PLR0913 - ways to hold it
    context: Context,
    question: str,
    *,
    num_debaters: int = 3,
    agents: Sequence[str] = (),
    num_rounds: int = 2,
    settle: SettleBy = "plurality",
    seed: int = 0,
    max_tokens: int | None = None,
) -> Debate:
    """Let debaters answer in at most `num_rounds` rounds, until they agree or none changes its answer; then settle it.

    With `agents` these are the debaters, one for each name. One that fails keeps its last answer, and is asked again in
    the next round. `max_tokens` bounds prompts and answers of all calls together; where they are over it, what was
    answered until then is settled. Raises what the first one failed by where no debater answers.
    """
    names = _checked(num_debaters, agents, num_rounds, settle)
    calls = Calls(context, "debate", most_calls(len(names), num_rounds, settle), max_tokens)
    debaters = _Debaters(names, [None] * len(names))
    end = None
    while end is None:
        number = len(debaters.rounds) + 1
        with context.phase(f"debate round {number}"):
            end = await _round(calls, debaters, question, seed)
        if not debaters.present and debaters.first_error is not None:
            raise debaters.first_error
        end = end or (
            End("rounds", f"{number} rounds are over, and they do not agree") if number == num_rounds else None
        )
    settled = await _settled(calls, debaters, question, settle)
    await context.doubts(debaters.agreement)
    return Debate(
        answer=settled.thought.answer,
        steps=settled.thought.steps,
        votes=settled.votes,
        rounds=debaters.rounds,
        settled_by=settled.by,
        end=end,
        num_calls=calls.num_calls,
        num_tokens=calls.num_tokens,
        note=settled.note,
    )


def most_calls(num_debaters: int, num_rounds: int, settle: SettleBy) -> int:
    """Return the most calls: one a debater and round, and those that settle it, each of which may be asked twice."""
    num_settling = num_debaters if settle in RANKED else int(settle == "judge")
    return num_debaters * num_rounds + 2 * num_settling


def _checked(num_debaters: int, agents: Sequence[str], num_rounds: int, settle: SettleBy) -> Sequence[str]:
    """Return the debaters' agents, empty names for the model; raises `RequestError`."""
    names = list(agents) or [""] * max(0, num_debaters)
    if not 2 <= len(names) <= MAX_DEBATERS:
        raise RequestError(f"debaters goes from 2 to {MAX_DEBATERS}, got {len(names)}", param="debaters")
    if not 1 <= num_rounds <= MAX_ROUNDS:
        raise RequestError(f"rounds goes from 1 to {MAX_ROUNDS}, got {num_rounds}", param="rounds")
    if agents and settle in RANKED:
        text = f"settle={settle} asks the model for rankings, and agents give none; take plurality, majority or judge"
        raise RequestError(text, param="settle")
    return names


async def _round(calls: Calls, debaters: _Debaters, question: str, seed: int) -> End | None:
    """Ask every debater; return why there is no further round."""
    before = debaters.forms
    said = await calls.ask_all(_asks(calls, debaters, question, seed))
    lacks: dict[int, Lack] = {}
    for place, each in enumerate(said):
        if isinstance(each, Lack):
            lacks[place] = each
            debaters.first_error = debaters.first_error or each.error
        else:
            debaters.thoughts[place] = each.thought
    answers = ["" if isinstance(each, Lack) else each.thought.answer for each in said]
    debaters.rounds.append(Round(answers, {place + 1: lack.end.text for place, lack in lacks.items()}))
    if not debaters.present:
        return None if all(lack.end.reason == "failed" for lack in lacks.values()) else next(iter(lacks.values())).end
    calls.report(debaters.agreement)
    calls.context.keep({"answer": debaters.present[0].answer})
    calls.context.progress(f"round {len(debaters.rounds)}: {' | '.join(_line(each) for each in answers)}")
    over = next((lack.end for lack in lacks.values() if lack.end.reason != "failed"), None)
    return over or _settlement(debaters, before)


def _settlement(debaters: _Debaters, before: Sequence[str]) -> End | None:
    """Return why the debaters need no further round."""
    forms = debaters.forms
    said = {form for form in forms if form}
    if len(said) == 1 and len(debaters.present) > 1:
        return End("agreed", f"{len(debaters.present)} debaters agree after round {len(debaters.rounds)}")
    if forms == before:
        return End("repeated", f"no debater changed its answer in round {len(debaters.rounds)}")
    return None


def _asks(calls: Calls, debaters: _Debaters, question: str, seed: int) -> list[Ask]:
    num, number = len(debaters.names), len(debaters.rounds)
    asks: list[Ask] = []
    for place, name in enumerate(debaters.names):
        messages = [Message("system", SYSTEM), Message("user", _prompt(debaters, question, place))]
        sampling = SamplingParams(
            temperature=0.7, top_p=0.95, max_tokens=_MAX_TOKENS, seed=(seed + number * num + place) & (2**63 - 1)
        )
        share = 0 if calls.max_tokens is None else max(1, calls.max_tokens // calls.max_calls)
        asks.append(Ask(messages=messages, sampling=sampling, agent=name, max_tokens=share))
    return asks


def _prompt(debaters: _Debaters, question: str, place: int) -> str:
    """Return the question, and from the second round on the answers so far, with whose turn it is at the end."""
    if not debaters.rounds or not debaters.present:
        return question
    turn = f"Answer {place + 1} is yours." if debaters.thoughts[place] is not None else "None of them is yours."
    return f"{question}\n\n{_table(debaters)}\n\n{_COMPARE} {turn} {_AGAIN}"


def _table(debaters: _Debaters) -> str:
    """Return the answers of all debaters as the model sees them."""
    told = [(place, thought) for place, thought in enumerate(debaters.thoughts, 1) if thought is not None]
    return "\n\n".join(["These answers were given:", *(f"Answer {place}:\n{_shown(each)}" for place, each in told)])


def _shown(thought: Thought) -> str:
    """Return an answer with its steps, cut in the middle of what is long: the end of it is the answer."""
    answer, steps = thought.answer[:_MAX_SHOWN], "\n".join(thought.steps)
    room = _MAX_SHOWN - len(answer)
    return "\n".join(filter(None, [steps if len(steps) <= room else f"{steps[:room]} ...", f"Answer: {answer}"]))


def _line(answer: str) -> str:
    text = printable(" ".join(answer[: 4 * _MAX_LINE].split())) or "-"
    return text if len(text) <= _MAX_LINE else f"{text[:_MAX_LINE]}..."


async def _settled(calls: Calls, debaters: _Debaters, question: str, by: SettleBy) -> Settlement:
    prompt = f"{question}\n\n{_table(debaters)}"
    with calls.context.phase(f"debate settled by {by}"):
        return await settle_by(calls, debaters.present, debaters.given, prompt, by)
