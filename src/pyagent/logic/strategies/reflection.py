"""Reflection: the model answers, looks for faults in its answer, and answers again without them.

Self-Refine (Madaan et al. 2023, arXiv:2303.17651), with the earlier criticism in sight as in Reflexion (Shinn et al.
2023, arXiv:2303.11366). One conversation that grows at its end: each call begins with the last one's prompt, which an
engine's prefix cache has. What the model wrote is a message of its own, never a part of an instruction.
"""

from __future__ import annotations

import re
from typing import Annotated, cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.context import Context
from pyagent.core.messages import Message, SamplingParams
from pyagent.logic.strategies.answers import normal_form
from pyagent.logic.strategies.calls import Ask, Calls, End, Lack, Said
from pyagent.logic.strategies.chain_of_thought import GREEDY, SYSTEM, Thought

MAX_ROUNDS = 8
_CRITICISE = (
    "Check your answer: is each step right, and is the question answered? List its faults, none if it has none, and "
    "give it a score from 0 to 10."
)
_REVISE = "Answer the question again without these faults. End with one line: Answer: ..."
_CRITIQUE_SAMPLING = SamplingParams(temperature=0.0, max_tokens=400, repetition_penalty=1.05)
"""Room for three faults of a token a letter, as digits are."""

_NOTHING = re.compile(r"\W*(?:(?:none|nothing|no|no faults?|n/?a)\W*)?", re.IGNORECASE)
"""What a model writes in a list of faults when there are none."""

Fault = Annotated[str, msgspec.Meta(max_length=120)]


class Critique(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the model finds wrong with an answer, and how good it is."""

    faults: Annotated[list[Fault], msgspec.Meta(max_length=3)]
    score: Annotated[int, msgspec.Meta(ge=0, le=10)]


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with the steps to it, the faults found in it, and its score from 0 to 10; None where it has none."""

    answer: str
    steps: list[str] = []
    faults: list[str] = []
    score: int | None = None
    is_cut: bool = False
    is_repeat: bool = False


class Reflection(msgspec.Struct, frozen=True, kw_only=True):
    """The best draft's answer, all drafts, why there are no more, and what they took."""

    answer: str
    steps: list[str]
    drafts: list[Draft]
    end: End
    num_calls: int
    num_tokens: int
    is_cut: bool = False


async def reflection(
    context: Context, question: str, *, num_rounds: int = 2, max_tokens: int | None = None
) -> Reflection:
    """Answer, and revise at most `num_rounds` times, until no fault is found or an answer repeats an earlier one.

    `max_tokens` bounds prompts and answers of all calls together; where they are over it the best draft is returned.
    Raises what the first call fails by.
    """
    if not 1 <= num_rounds <= MAX_ROUNDS:
        raise RequestError(f"rounds goes from 1 to {MAX_ROUNDS}, got {num_rounds}", param="rounds")
    calls = Calls(context, "reflection", most_calls(num_rounds), max_tokens)
    messages = [Message("system", SYSTEM), Message("user", question)]
    said = await calls.ask(Ask(messages=list(messages), sampling=GREEDY))
    if isinstance(said, Lack):
        raise said.error
    messages += [Message("assistant", said.text)]
    drafts = [_draft(said.thought)]
    end = None
    while end is None:
        context.keep({"answer": best(drafts).answer})
        with context.phase(f"reflection {len(drafts)}"):
            end = await _reflected(calls, messages, drafts, num_rounds)
    chosen = best(drafts)
    return Reflection(
        answer=chosen.answer,
        steps=chosen.steps,
        drafts=drafts,
        end=end,
        num_calls=calls.num_calls,
        num_tokens=calls.num_tokens,
        is_cut=chosen.is_cut,
    )


def most_calls(num_rounds: int) -> int:
    """Return the most calls: an answer, its revisions, and of each a critique that may be asked for twice."""
    return (1 + num_rounds) + 2 * (1 + num_rounds)


async def _reflected(calls: Calls, messages: list[Message], drafts: list[Draft], num_rounds: int) -> End | None:
    """Judge the last draft and add a better one to the drafts; return why there is none."""
    messages += [Message("user", _CRITICISE)]
    said = await calls.ask(Ask(messages=list(messages), sampling=_CRITIQUE_SAMPLING, schema=Critique))
    if not isinstance(said, Said):
        return said.end
    critique = cast("Critique", said.output)
    faults = [fault.strip() for fault in critique.faults if not _NOTHING.fullmatch(fault)]
    drafts[-1] = msgspec.structs.replace(drafts[-1], faults=faults, score=critique.score)
    calls.report(critique.score)
    calls.context.progress(f"draft {len(drafts)}: {critique.score} of 10, faults: {len(faults) or 'none'}")
    if not faults:
        return End("no-faults", f"no fault was found in draft {len(drafts)}")
    if len(drafts) > num_rounds:
        return End("rounds", f"it was revised {num_rounds} times, and faults were still found")
    messages += [Message("assistant", said.text), Message("user", _REVISE)]
    revised = await calls.ask(Ask(messages=list(messages), sampling=GREEDY))
    if isinstance(revised, Lack):
        return revised.end
    messages += [Message("assistant", revised.text)]
    draft = _draft(revised.thought)
    seen = [normal_form(each.answer) for each in drafts]
    if normal_form(draft.answer) in seen:
        drafts += [msgspec.structs.replace(draft, is_repeat=True)]
        return End("repeated", f"draft {len(drafts)} says what draft {seen.index(normal_form(draft.answer)) + 1} said")
    drafts += [draft]
    return None


def best(drafts: list[Draft]) -> Draft:
    """Return the draft without faults, else the one with the highest score, of equal ones the first.

    One that is not judged yet was made without the faults of those before, and is better; not if it repeats one of
    them, or was cut off.
    """
    if drafts[-1].score is None and not (len(drafts) > 1 and (drafts[-1].is_repeat or drafts[-1].is_cut)):
        return drafts[-1]
    judged = [each for each in drafts if each.score is not None]
    return max(judged, key=lambda each: (not each.is_cut, not each.faults, each.score))


def _draft(thought: Thought) -> Draft:
    return Draft(answer=thought.answer, steps=thought.steps, is_cut=thought.is_cut)
