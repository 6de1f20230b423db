"""Chain of thought: the model writes its steps before its answer (Wei et al. 2022, arXiv:2201.11903)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from pyagent.core.errors import AgentError
from pyagent.core.fleet.context import Context
from pyagent.core.messages import Message, SamplingParams

SYSTEM = "You solve problems. Think step by step, in short numbered steps. End with one line: Answer: ..."
GREEDY = SamplingParams(temperature=0.0, max_tokens=384, repetition_penalty=1.05)
_ANSWER = re.compile(r"^[^\w\n]*(?:final )?answer(?: is)?\W*[:=]\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_ANSWER_TOKENS = 48
_STEP = re.compile(r"^\W*(?:step\s+)?\d{1,2}\W", re.IGNORECASE)


class Thought(msgspec.Struct, frozen=True):
    """The steps written down, and the answer they came to.

    `is_cut` when the model had more to say; `doubt` is why the answer is doubtful.
    """

    steps: list[str]
    answer: str
    is_cut: bool = False
    doubt: str = ""


async def chain_of_thought(
    context: Context, question: str, *, sampling: SamplingParams = GREEDY, is_shown: bool = True
) -> Thought:
    """Return one line of thought. `is_shown` streams it to the run's watchers, unless it may be asked again."""
    doubt = ""
    if is_shown and not context.reconsiders:
        stream = context.stream(question, system=SYSTEM, sampling=sampling)
        text, is_cut = "".join([piece async for piece in stream]), stream.is_cut
        doubt = stream.doubt
    else:
        completion = await context.complete(question, system=SYSTEM, sampling=sampling)
        text, is_cut, doubt = completion.text, completion.is_cut, completion.doubt
    if not text.strip():
        raise AgentError("the model's answer is empty", agent=context.agent)
    thought = read_thought(text)
    if thought.answer:
        return msgspec.structs.replace(thought, doubt=doubt)
    if not _are_steps(thought.steps):  # a model that answers at once has answered, in the layout it chose
        return Thought([], text.strip(), is_cut=is_cut, doubt=doubt)
    short = msgspec.structs.replace(sampling, max_tokens=_ANSWER_TOKENS)
    messages = [
        Message("system", SYSTEM),
        Message("user", question),
        Message("assistant", text),
        Message("user", "Give only the final answer, without steps."),
    ]
    answer = await context.generate(messages, sampling=short)
    last = read_thought(answer).answer or answer.strip().splitlines()[0]
    return Thought(thought.steps, last, is_cut=is_cut, doubt=doubt)


def thought_of(text: str, *, is_cut: bool = False) -> Thought:
    """Return the steps and the answer in a text that is not asked about again: without an answer's line it is all.

    Of a list of steps the last one is the answer.
    """
    thought = read_thought(text)
    if thought.answer:
        return msgspec.structs.replace(thought, is_cut=is_cut)
    if _are_steps(thought.steps):
        return Thought(thought.steps[:-1], thought.steps[-1], is_cut=is_cut)
    return Thought([], text.strip(), is_cut=is_cut)


def _are_steps(lines: Sequence[str]) -> bool:
    """Whether a text without an answer's line is a list of steps towards one, and not a text of another kind."""
    return len(lines) > 1 and bool(_STEP.match(lines[0])) and sum(bool(_STEP.match(line)) for line in lines) > 1


def read_thought(text: str) -> Thought:
    """Return the steps and the answer in a text; the answer is empty when no line gives one."""
    found = list(_ANSWER.finditer(text))
    steps_text = text[: found[-1].start()] if found else text
    steps = [line.strip() for line in steps_text.splitlines() if line.strip()]
    return Thought(steps, found[-1][1].strip(" *_`") if found else "")
