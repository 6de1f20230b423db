"""The summarize agent: long texts in parts side by side, their summaries then made into one.

All parts share one system prompt, so that a prefix cache computes it once. The instruction is one sentence and
the message the bare text: small models then answer with the text's facts, otherwise with remarks about it. Answers are
bounded, and each prompt fits a context of 2,048 tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from pyagent.core.errors import AgentError, RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.scores import Score
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import SamplingParams
from pyagent.logic.agents.documents import read_documents

PART_CHARACTERS = 3_600
"""About 900 tokens of English: nine parts for 5,000 words. The last prompt may be half as long again."""
_LEAST_SHRINKING = 0.9
_SHORT_CHARACTERS = 400

_SYSTEM = (
    "Provide a concise, objective summary of the input text in up to {num_sentences} sentences, "
    "focusing on the main facts and events."
)
_PART_SENTENCES = 3
_PART_SAMPLING = SamplingParams(temperature=0.0, max_tokens=72, repetition_penalty=1.1)
_WHOLE_SAMPLING = SamplingParams(temperature=0.0, max_tokens=192, repetition_penalty=1.1)
_ASKS = re.compile(r"\b(summar(y|i[sz]e\w*|ies)|tl;?dr|key points|shorten|sum up|gist)\b", re.IGNORECASE)
_INSTRUCTION = re.compile(
    r"^[^\n:]{0,120}\b(?:summar\w+|tl;?dr|shorten|sum up)\b[^\n:]{0,120}(?::|\n)\s*", re.IGNORECASE
)


class SummaryArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the summary may be."""

    num_sentences: int = 4


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary, those of the parts it was made from, and the length of what was read."""

    text: str
    parts: list[str]
    num_words: int

    def __str__(self) -> str:
        return self.text


class SummarizeAgent:
    """Summarizes texts of any length."""

    name = "summarize"
    description = "Summarizes a long text or a document: what it says, in a few sentences."
    arguments = SummaryArguments

    def __init__(self, part_characters: int = PART_CHARACTERS) -> None:
        self._part_characters = part_characters
        self._whole_characters = part_characters * 3 // 2

    def score(self, task: Task) -> float | None:
        """Asks for a summary, or is a text too long to be a question; never a short text alone."""
        if found := _ASKS.search(task.text[:300]):
            return Score(0.9, f"it asks for a summary ({found[0]!r})")
        if len(task.text) > 4 * self._part_characters:
            return Score(0.7, "it is a long text")
        return None if task.files or task.results or len(task.text) > _SHORT_CHARACTERS else 0.0

    async def run(self, context: Context, task: Task) -> Summary:
        """The summary of the files, else of the results handed on, else of the text."""
        num_sentences = task.arguments_as(SummaryArguments).num_sentences
        if not 1 <= num_sentences <= 50:
            raise RequestError(f"num_sentences goes from 1 to 50, got {num_sentences}", param="num_sentences")
        text = await self._text(task)
        if not text.strip():
            raise RequestError("there is nothing to summarize: give a text or a file", param="text")
        parts = await self._shrink(context, text)
        system = _SYSTEM.format(num_sentences=num_sentences)
        prompt = "\n".join(parts) if parts else text
        pieces = [piece async for piece in context.stream(prompt, system=system, sampling=_WHOLE_SAMPLING)]
        return Summary(text="".join(pieces).strip(), parts=parts, num_words=len(text.split()))

    async def _text(self, task: Task) -> str:
        if task.files:
            return await read_documents(task.files)
        if task.results:
            return "\n\n".join(str(result) for result in task.results.values())
        return _INSTRUCTION.sub("", task.text.strip(), count=1)

    async def _shrink(self, context: Context, text: str) -> list[str]:
        """Summaries of the parts, and of these in turn, until they fit one prompt; none when the text does."""
        summaries: list[str] = []
        while len(text) > self._whole_characters:
            parts = split_text(text, self._part_characters)
            context.progress(f"{len(parts)} parts in parallel")
            with context.phase(f"{len(parts)} parts"):
                summaries = await context.map(lambda part: self._part(context, part), parts)
            shorter = "\n".join(summaries)
            if len(shorter) > _LEAST_SHRINKING * len(text):
                raise AgentError(
                    "the model's summaries are as long as their texts; use a larger model", agent=self.name
                )
            text = shorter
        return summaries

    async def _part(self, context: Context, part: str) -> str:
        system = _SYSTEM.format(num_sentences=_PART_SENTENCES)
        return await context.generate(part, system=system, sampling=_PART_SAMPLING)


def split_text(text: str, max_characters: int) -> list[str]:
    """The text in parts of about equal length, none above the maximum; cut at paragraphs, else sentences, else words.

    Joined, the parts hold every word of the text in its order.
    """
    text = text.strip()
    num_parts = -(-len(text) // max_characters)
    parts: list[str] = []
    while num_parts > 1:
        end = _cut(text, min(max_characters, -(-len(text) // num_parts)))
        parts.append(text[:end].rstrip())
        text = text[end:].lstrip()
        num_parts = max(num_parts - 1, -(-len(text) // max_characters))
    return [part for part in [*parts, text] if part]


def _cut(text: str, limit: int) -> int:
    """Where to cut within the limit: the last border of the best kind in its last third."""
    for border in ("\n\n", "\n", ". ", "? ", "! ", " "):
        place = text.rfind(border, limit - limit // 3, limit - len(border) + 1)
        if place > 0:
            return place + len(border)
    return limit


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The summarize agent."""
    return [SummarizeAgent()]
