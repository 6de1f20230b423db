"""The reasoning agent: answers a question by a chosen strategy and shows the steps.

About files it reads: the passages that matter to the question are found first, and quoted under the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import short_path
from pyagent.core.hooks import hookimpl
from pyagent.logic.agents.documents import Document, read_documents
from pyagent.logic.agents.passages import Passage
from pyagent.logic.strategies.chain_of_thought import chain_of_thought
from pyagent.logic.strategies.reading import matching, read
from pyagent.logic.strategies.self_consistency import self_consistency
from pyagent.logic.strategies.tool_use import use_tools

_DEFAULT_SAMPLES = 5


class ReasoningArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to go about it. `samples` and `seed` are of self-consistency: without a strategy they choose it.

    `tools` names the fleet's tools that the model may call; without them it calls none.
    """

    strategy: Literal["chain-of-thought", "self-consistency"] | None = None
    samples: int | None = None
    seed: int | None = None
    tools: tuple[str, ...] = ()

    def chosen(self) -> Literal["chain-of-thought", "self-consistency"]:
        """Return the strategy; raises `RequestError` for samples or tools of one that takes none."""
        draws = "samples" if self.samples is not None else "seed" if self.seed is not None else ""
        if self.strategy == "chain-of-thought" and draws:
            raise RequestError(f"{draws} is for the strategy self-consistency", param=draws)
        if self.tools and (draws or self.strategy == "self-consistency"):
            raise RequestError("tools is for the strategy chain-of-thought", param="tools")
        return self.strategy or ("self-consistency" if draws else "chain-of-thought")


_MAX_HISTORY_CHARACTERS = 3_000
_CUT = "the model was cut off: it had more to say"


class Reasoned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer, the steps that led to it, and, where answers voted, the votes; of files, the passages it rests on."""

    answer: str
    strategy: str
    steps: list[str] = []
    votes: dict[str, int] = {}
    quotes: list[Passage] = []
    note: str = ""

    def __str__(self) -> str:
        num_votes = sum(self.votes.values())
        agreed = f"  ({max(self.votes.values())} of {num_votes} samples agree)" if num_votes else ""
        answer = f"Answer: {self.answer}{agreed}" if self.steps or agreed else self.answer
        quotes = [f"\n{short_path(quote.file)}:{quote.line}\n{_indented(quote.text)}" for quote in self.quotes]
        note = [f"\n({self.note})"] if self.note else []
        return "\n".join([*self.steps, answer, *quotes, *note])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


class ReasoningAgent:
    """Answers questions."""

    name = "reasoning"
    description = "Answers a general question or problem in words, thinking step by step; knows documents given to it."
    is_pure = True
    arguments = ReasoningArguments

    async def run(self, context: Context, task: Task) -> Reasoned:
        """Return the answer to the text, about the files and results if there are any."""
        options = task.arguments_as(ReasoningArguments)
        strategy = options.chosen()
        if not task.text.strip():
            raise RequestError("reasoning needs a question", param="text")
        results = [*_conversation(task), *(f"{name}: {result}" for name, result in task.results.items())]
        documents = await read_documents(task.files)
        if options.tools:
            return await _with_tools(context, task.text, documents, results, options.tools)
        if documents and strategy == "chain-of-thought":
            reading = await read(context, task.text, documents, results)
            return Reasoned(answer=reading.answer, strategy="reading", quotes=reading.quotes, note=reading.note)
        found = await matching(task.text, documents)
        question = "\n\n".join([*results, *(passage.text for passage in found), task.text])
        if strategy == "chain-of-thought":
            thought = await chain_of_thought(context, question)
            note = _note(thought.is_cut, thought.doubt)
            return Reasoned(answer=thought.answer, strategy=strategy, steps=thought.steps, note=note)
        num_samples = _DEFAULT_SAMPLES if options.samples is None else options.samples
        consensus = await self_consistency(context, question, num_samples=num_samples, seed=options.seed or 0)
        steps = next(thought.steps for thought in consensus.samples if thought.answer == consensus.answer)
        return Reasoned(answer=consensus.answer, strategy=strategy, steps=steps, votes=consensus.votes, quotes=found)


def _note(is_cut: bool, doubt: str) -> str:
    """Say what is to be known of an answer."""
    return "; ".join(filter(None, [_CUT if is_cut else "", f"this is not sure: {doubt}" if doubt else ""]))


async def _with_tools(
    context: Context, text: str, documents: Sequence[Document], results: Sequence[str], tools: Sequence[str]
) -> Reasoned:
    found = await matching(text, documents)
    question = "\n\n".join([*results, *(passage.text for passage in found), text])
    thought = await use_tools(context, question, tools)
    note = _CUT if thought.is_cut else ""
    return Reasoned(answer=thought.answer, strategy="tool-use", steps=thought.steps, quotes=found, note=note)


def _conversation(task: Task) -> list[str]:
    """Return the end of what was said before, as a text, for questions that go on from it; empty when nothing was."""
    turns = [f"{message.role}: {message.text.strip()}" for message in task.history if message.role != "system"]
    told = "\n".join(turns)[-_MAX_HISTORY_CHARACTERS:]
    return [f"The conversation so far:\n{told}"] if told else []


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The reasoning agent."""
    return [ReasoningAgent()]
