"""The reasoning agent: answers a question by a chosen strategy and shows the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.hooks import hookimpl
from pyagent.logic.agents.documents import read_documents
from pyagent.logic.strategies.chain_of_thought import chain_of_thought
from pyagent.logic.strategies.self_consistency import self_consistency

MAX_DOCUMENT_CHARACTERS = 4_800
"""What stands before a question as it is; longer documents are summarized first."""


class ReasoningArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to go about it. `samples` and `seed` are for self-consistency."""

    strategy: Literal["chain-of-thought", "self-consistency"] = "chain-of-thought"
    samples: int = 5
    seed: int = 0


class Reasoned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer, the steps that led to it, and, where answers voted, the votes."""

    answer: str
    strategy: str
    steps: list[str]
    votes: dict[str, int] = {}

    def __str__(self) -> str:
        num_votes = sum(self.votes.values())
        agreed = f"  ({max(self.votes.values())} of {num_votes} samples agree)" if num_votes else ""
        return "\n".join([*self.steps, f"Answer: {self.answer}{agreed}"]) if self.steps or agreed else self.answer


class ReasoningAgent:
    """Answers questions."""

    name = "reasoning"
    description = "Answers a general question or problem in words, thinking step by step; knows documents given to it."
    arguments = ReasoningArguments
    needs = ("summarize",)

    async def run(self, context: Context, task: Task) -> Reasoned:
        """The answer to the text, about the files and results if there are any."""
        options = task.arguments_as(ReasoningArguments)
        if not task.text.strip():
            raise RequestError("reasoning needs a question", param="text")
        question = await self._question(context, task)
        if options.strategy == "chain-of-thought":
            thought = await chain_of_thought(context, question)
            return Reasoned(answer=thought.answer, strategy=options.strategy, steps=thought.steps)
        consensus = await self_consistency(context, question, num_samples=options.samples, seed=options.seed)
        steps = next(thought.steps for thought in consensus.samples if thought.answer == consensus.answer)
        return Reasoned(answer=consensus.answer, strategy=options.strategy, steps=steps, votes=consensus.votes)

    async def _question(self, context: Context, task: Task) -> str:
        """The question under what it is about."""
        results = [f"{name}: {result}" for name, result in task.results.items()]
        if task.files:
            document = await read_documents(task.files)
            if len(document) > MAX_DOCUMENT_CHARACTERS:
                document = str(await context.spawn("summarize", Task(text=document)))
            results.append(document)
        return "\n\n".join([*results, task.text])


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The reasoning agent."""
    return [ReasoningAgent()]
