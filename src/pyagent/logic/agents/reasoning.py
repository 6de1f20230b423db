"""The reasoning agent: answers a question by a chosen strategy and shows the steps.

About files it reads: the passages that matter to the question are found first, and quoted under the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast

import msgspec

from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import short_path
from pyagent.core.hooks import hookimpl
from pyagent.logic.agents.documents import Document, read_documents
from pyagent.logic.agents.passages import Passage
from pyagent.logic.agents.reasoning_options import ReasoningArguments, Strategy
from pyagent.logic.agents.typical_tasks import typical_tasks_of
from pyagent.logic.strategies.chain_of_thought import chain_of_thought
from pyagent.logic.strategies.debate import debate
from pyagent.logic.strategies.reading import matching, read
from pyagent.logic.strategies.reflection import reflection
from pyagent.logic.strategies.self_consistency import self_consistency
from pyagent.logic.strategies.tool_use import use_tools
from pyagent.logic.strategies.tree_of_thoughts import tree_of_thoughts
from pyagent.logic.strategies.written import debate_lines, reflection_lines, tree_lines

_DEFAULT_SAMPLES = 5
_DEFAULT_DEBATERS = 3
_DEFAULT_ROUNDS = 2
_VOTERS = {"self-consistency": "samples", "debate": "debaters"}
_MAX_HISTORY_CHARACTERS = 3_000
_CUT = "the model was cut off: it had more to say"


class Reasoned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer, the steps that led to it, and, where answers voted, the votes; of files, the passages it rests on.

    `ended` is why a strategy of several rounds went no further, after so many calls and tokens.
    """

    answer: str
    strategy: str
    steps: list[str] = []
    votes: dict[str, int] = {}
    quotes: list[Passage] = []
    note: str = ""
    ended: str = ""
    num_calls: int = 0
    num_tokens: int = 0

    def __str__(self) -> str:
        num_votes = sum(self.votes.values())
        voters = _VOTERS.get(self.strategy, "samples")
        agreed = f"  ({max(self.votes.values())} of {num_votes} {voters} agree)" if num_votes else ""
        answer = f"Answer: {self.answer}{agreed}" if self.steps or agreed else self.answer
        quotes = [f"\n{short_path(quote.file)}:{quote.line}\n{_indented(quote.text)}" for quote in self.quotes]
        calls = f"{self.num_calls} call{'' if self.num_calls == 1 else 's'}"
        used = f"\n(ended: {self.ended}; {calls}, {self.num_tokens:,} tokens)" if self.ended else ""
        note = [f"\n({self.note})"] if self.note else []
        return "\n".join([*self.steps, f"{answer}{used}", *quotes, *note])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


class ReasoningAgent:
    """Answers questions."""

    name = "reasoning"
    description = "Answers a general question or problem in words, thinking step by step; knows documents given to it."
    typical_tasks = typical_tasks_of("reasoning")
    takes_rest = True
    is_pure = True
    arguments = ReasoningArguments

    async def run(self, context: Context, task: Task) -> Reasoned:
        """Return the answer to the text, about the files and results if there are any."""
        options = task.arguments_as(ReasoningArguments)
        strategy = await _strategy(context, task, options)
        text = options.asked(task)
        results = [*_conversation(task), *(f"{name}: {result}" for name, result in task.results.items())]
        documents = await read_documents(task.files)
        if options.tools:
            return await _with_tools(context, text, documents, results, options.tools)
        if documents and strategy == "chain-of-thought":
            reading = await read(context, text, documents, results)
            return Reasoned(answer=reading.answer, strategy="reading", quotes=reading.quotes, note=reading.note)
        found = await matching(text, documents)
        question = "\n\n".join([*results, *(passage.text for passage in found), text])
        reasoned = await _STRATEGIES[strategy](context, question, options)
        return msgspec.structs.replace(reasoned, quotes=[] if strategy == "chain-of-thought" else found)


async def _strategy(context: Context, task: Task, options: ReasoningArguments) -> Strategy:
    """Return the strategy that the options choose; where they leave it open, what earned most before."""
    strategy = options.chosen()
    if options != ReasoningArguments(question=options.question):
        return strategy
    learned = await context.learned_strategy([*_STRATEGIES], situation=_situation(task))
    return cast("Strategy", learned) if learned in _STRATEGIES else strategy


def _situation(task: Task) -> str:
    """Return what kind of question a task is, in a word: strategies are good at different ones."""
    if task.files:
        return "files"
    return "numbers" if any(sign.isdigit() for sign in task.text) else "words"


async def _in_one_line(context: Context, question: str, options: ReasoningArguments) -> Reasoned:
    thought = await chain_of_thought(context, question)
    note = _note(thought.is_cut, thought.doubt)
    return Reasoned(answer=thought.answer, strategy="chain-of-thought", steps=thought.steps, note=note)


async def _by_samples(context: Context, question: str, options: ReasoningArguments) -> Reasoned:
    num_samples = _DEFAULT_SAMPLES if options.samples is None else options.samples
    consensus = await self_consistency(context, question, num_samples=num_samples, seed=options.seed or 0)
    steps = next(thought.steps for thought in consensus.samples if thought.answer == consensus.answer)
    return Reasoned(answer=consensus.answer, strategy="self-consistency", steps=steps, votes=consensus.votes)


async def _by_reflection(context: Context, question: str, options: ReasoningArguments) -> Reasoned:
    num_rounds = _DEFAULT_ROUNDS if options.rounds is None else options.rounds
    found = await reflection(context, question, num_rounds=num_rounds, max_tokens=options.tokens)
    return Reasoned(
        answer=found.answer,
        strategy="reflection",
        steps=[*found.steps, *reflection_lines(found)],
        note=_CUT if found.is_cut else "",
        ended=found.end.text,
        num_calls=found.num_calls,
        num_tokens=found.num_tokens,
    )


async def _by_debate(context: Context, question: str, options: ReasoningArguments) -> Reasoned:
    found = await debate(
        context,
        question,
        num_debaters=_DEFAULT_DEBATERS if options.debaters is None else options.debaters,
        agents=options.agents,
        num_rounds=_DEFAULT_ROUNDS if options.rounds is None else options.rounds,
        settle=options.settle or "plurality",
        seed=options.seed or 0,
        max_tokens=options.tokens,
    )
    return Reasoned(
        answer=found.answer,
        strategy="debate",
        steps=[*found.steps, *debate_lines(found)],
        votes=found.votes,
        note=found.note,
        ended=found.end.text,
        num_calls=found.num_calls,
        num_tokens=found.num_tokens,
    )


async def _by_tree(context: Context, question: str, options: ReasoningArguments) -> Reasoned:
    found = await tree_of_thoughts(
        context,
        question,
        search=options.search or "beam",
        bounds=options.bounds(),
        seed=options.seed or 0,
        max_tokens=options.tokens,
    )
    return Reasoned(
        answer=found.answer,
        strategy="tree-of-thoughts",
        steps=[*tree_lines(found), *found.steps],
        note=_CUT if found.is_cut else "",
        ended=found.end.text,
        num_calls=found.num_calls,
        num_tokens=found.num_tokens,
    )


_STRATEGIES: Mapping[Strategy, Callable[[Context, str, ReasoningArguments], Awaitable[Reasoned]]] = {
    "chain-of-thought": _in_one_line,
    "self-consistency": _by_samples,
    "reflection": _by_reflection,
    "debate": _by_debate,
    "tree-of-thoughts": _by_tree,
}


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
