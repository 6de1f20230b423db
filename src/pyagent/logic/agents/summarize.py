"""The summarize agent: long texts in parts side by side, their summaries then made into one.

All parts share one system prompt, so that a prefix cache computes it once. The instruction is one sentence and
the message the bare text: small models then answer with the text's facts, otherwise with remarks about it. Answers are
bounded, and each prompt fits a context of 2,048 tokens, whatever the script. The number of sentences is kept by
counting them, as small models do not; a sentence that was cut off is left out. The summary is asked for in the text's
language, and each of its sentences has the words of the text that say so, where some were found.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import msgspec

from pyagent.core.errors import AgentError, ContextOverflowError, Decline, RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import short_path
from pyagent.core.fleet.scores import Score
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import SamplingParams
from pyagent.logic.agents.documents import PAGE_BREAK, Document, read_documents
from pyagent.logic.agents.languages import joins_without_space, language_of
from pyagent.logic.agents.parts import is_finished, sentences, split_text, weight
from pyagent.logic.agents.quotes import Point, QuoteFinder
from pyagent.logic.agents.typical_tasks import typical_tasks_of

PART_WEIGHT = 3_600
"""About 900 tokens: nine parts for 5,000 words of English. The last prompt may be half as long again."""
_LEAST_SHRINKING = 0.9
_MIN_TEXT_CHARACTERS = 200
"""What a wish for a summary brings along at least, when it is a text to be summarized and not a question."""

_SYSTEM = (
    "Provide a concise, objective summary of the input text in up to {num_sentences} sentences, "
    "focusing on the main facts and events{focus}."
)
_PART_SENTENCES = 3
_PART_SAMPLING = SamplingParams(temperature=0.0, max_tokens=72, repetition_penalty=1.1)
_TOKENS_PER_SENTENCE = 48
_OTHER_LANGUAGES = (
    r"\b(?:zusammenfass\w*|zusammen fassen|fasse?n?\b[^\n:]{1,60}\bzusammen|résum\w+|resume[nz]|resumir\w*|resuma"
    r"|resumo|riassum\w+|samenvat\w*|vat\b[^\n:]{1,60}\bsamen|sammanfatt\w*|streszcz\w*|özet\w*|резюм\w+"
    r"|кратк\w+ изложени\w+|перескаж\w+)\b|总结|總結|摘要|概括|要約|まとめて|요약|لخص|ملخص|تلخيص|सारांश|สรุป|סכם|סיכום"
)
"""How a summary is asked for in German, French, Spanish, Portuguese, Italian, Dutch, Swedish, Polish and others."""
_ASKS = re.compile(
    rf"\b(?:summar(?:y|i[sz]e\w*|ies)|tl;?dr|key points|shorten|sum up|gist)\b|{_OTHER_LANGUAGES}", re.IGNORECASE
)
_INSTRUCTION = re.compile(
    rf"^[^\n:：]{{0,120}}(?:\b(?:summar\w+|tl;?dr|shorten|sum up)\b|{_OTHER_LANGUAGES})"
    r"[^\n:：]{0,120}(?:[:：]|\n)\s*",
    re.IGNORECASE,
)
_PLAIN_WISH = re.compile(
    r"\b(?:please|can|could|you|give|me|make|write|an?|the|this|these|it|its|of|for|in|to|short|brief|quick|document|text"
    r"|file|files|summar\w*|tl;?dr|key points|shorten|sum up|gist|\w+ sentences?|\w+ words?)\b|[^\w\s]",
    re.IGNORECASE,
)
"""What a wish for a summary consists of when it names nothing to look for."""


class SummaryArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the summary may be, and whether each of its points has to have words of the text that say so.

    With `quotes` a sentence of the model that nothing in the text supports gives way to a sentence of the text.
    """

    num_sentences: int = 4
    quotes: bool = False


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The summary, those of the parts it was made from, and the length of what was read.

    `is_cut` says that the model did not come to the end of its first sentence. `points` are its sentences, each with a
    quote where one was found; with `quotes` all of them, and `num_unsupported` sentences of the model were left out.
    """

    text: str
    parts: list[str]
    num_words: int
    is_cut: bool = False
    points: list[Point] = []
    language: str = ""
    num_unsupported: int | None = None

    def __str__(self) -> str:
        if self.num_unsupported is not None:
            counted = (
                "1 sentence of the model is"
                if self.num_unsupported == 1
                else f"{self.num_unsupported} sentences of the model are"
            )
            left_out = f"{counted} left out: nothing in the text says so"
            return "\n".join([*map(str, self.points), *([f"({left_out})"] if self.num_unsupported else [])])
        return f"{self.text} […]" if self.is_cut else self.text


class _Wish(msgspec.Struct, frozen=True):
    """What a summary is to look for, and the language it is wanted in; both may be empty."""

    focus: str
    language: str

    def system(self, num_sentences: int) -> str:
        """Return what the model is told."""
        asked = _SYSTEM.format(num_sentences=num_sentences, focus=self.focus)
        return asked if self.language in {"", "English"} else f"{asked} Write it in {self.language}."


class SummarizeAgent:
    """Summarizes texts of any length."""

    name = "summarize"
    description = "Summarizes a long text or a document of any language: what it says, in a few sentences, with quotes."
    typical_tasks = typical_tasks_of("summarize")
    is_pure = True
    arguments = SummaryArguments

    def __init__(self, part_weight: int = PART_WEIGHT) -> None:
        self._part_weight = part_weight
        self._whole_weight = part_weight * 3 // 2

    def score(self, task: Task) -> float | None:
        """Asks for a summary of something that is there, or brings a text too long to be a question."""
        has_text = bool(task.files or task.results or len(task.text) > _MIN_TEXT_CHARACTERS)
        if has_text and (found := _ASKS.search(task.text[:300])):
            return Score(0.9, f"it asks for a summary ({found[0]!r})")
        if task.files and not task.text.strip():
            return Score(0.8, "it is a file, and nothing is asked about it")
        if len(task.text) > 4 * self._part_weight and not task.files:
            return Score(0.8, "it is a long text")
        return None

    async def run(self, context: Context, task: Task) -> Summary:
        """Return the summary of the files, else of the results handed on, else of the text."""
        asked = task.arguments_as(SummaryArguments)
        num_sentences = asked.num_sentences
        if not 1 <= num_sentences <= 50:
            raise RequestError(f"num_sentences goes from 1 to 50, got {num_sentences}", param="num_sentences")
        documents = await _documents(task)
        text = PAGE_BREAK.join(document.text for document in documents)
        if not text.strip():
            raise RequestError("there is nothing to summarize: give a text or a file", param="text")
        if text == task.text and len(text) <= _MIN_TEXT_CHARACTERS and _ASKS.search(text):
            raise Decline("it asks for a summary of something that is not there: give a text or a file")
        language, focus = language_of(text), _focus(task)
        wish = _Wish(focus, language)
        parts = await self._shrink(context, text, wish)
        max_tokens = _TOKENS_PER_SENTENCE * num_sentences * (2 if weight(text) > 2 * len(text) else 1) + 32
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, repetition_penalty=1.1)
        prompt = "\n".join(parts) if parts else text
        stream = context.stream(prompt, system=wish.system(num_sentences), sampling=sampling)
        said = "".join([piece async for piece in stream])
        if not said.strip():
            raise AgentError("the model's summary is empty", agent=self.name)
        told = _counted(said, num_sentences, is_cut=stream.is_cut)
        points, num_unsupported = await asyncio.to_thread(_points, told, documents, asked)
        summary = _joined([point.text for point in points], language)
        return Summary(
            text=summary,
            parts=parts,
            num_words=len(text.split()),
            is_cut=stream.is_cut and not is_finished(summary),
            points=points,
            language=language,
            num_unsupported=num_unsupported,
        )

    async def _shrink(self, context: Context, text: str, wish: _Wish) -> list[str]:
        """Summaries of the parts, and of these in turn, until they fit one prompt; none when the text does."""
        summaries: list[str] = []
        while weight(text) > self._whole_weight:
            parts = split_text(text, self._part_weight)
            context.progress(f"{len(parts)} parts in parallel")
            with context.phase(f"{len(parts)} parts"):
                summaries = await context.map(lambda part: self._part(context, part, wish), parts)
            shorter = "\n".join(summaries)
            if weight(shorter) > _LEAST_SHRINKING * weight(text):
                raise AgentError(
                    "the model's summaries are as long as their texts; use a larger model", agent=self.name
                )
            text = shorter
        return summaries

    async def _part(self, context: Context, part: str, wish: _Wish) -> str:
        """Return a part's summary; a part that is too long for the model after all is cut in two."""
        try:
            summary = await context.complete(part, system=wish.system(_PART_SENTENCES), sampling=_PART_SAMPLING)
        except ContextOverflowError:
            halves = split_text(part, max(1, -(-weight(part) // 2)))
            if len(halves) < 2:
                raise
            return "\n".join([await self._part(context, half, wish) for half in halves])
        if not summary.text.strip():
            raise AgentError("the model says nothing of a part of the text", agent=self.name)
        return _joined(_counted(summary.text, _PART_SENTENCES, is_cut=summary.is_cut), wish.language)


def _focus(task: Task) -> str:
    """Return what the summary is to look for, where the wish for one names it."""
    if not (task.files or task.results):
        return ""
    is_named = bool(_PLAIN_WISH.sub("", task.text).strip())
    return f"; above all on what it says to this: {' '.join(task.text.split())[:300]}" if is_named else ""


async def _documents(task: Task) -> list[Document]:
    if task.files:
        read = await read_documents(task.files)
        return [msgspec.structs.replace(document, path=short_path(document.path)) for document in read]
    if task.results:
        return [Document(f"step {step}", str(result)) for step, result in task.results.items()]
    return [Document("", _INSTRUCTION.sub("", task.text.strip(), count=1))]


def _points(
    told: Sequence[str], documents: Sequence[Document], asked: SummaryArguments
) -> tuple[list[Point], int | None]:
    """Return the points with their quotes; where each has to have one, also how many sentences were left out."""
    finder = QuoteFinder(documents)
    points = [finder.point(sentence) for sentence in told]
    if not asked.quotes:
        return points, None
    supported = [point for point in points if point.quote is not None]
    num_unsupported = len(points) - len(supported)
    return [*supported, *finder.central(num_unsupported, supported)] or points, num_unsupported


def _joined(told: Sequence[str], language: str) -> str:
    return ("" if joins_without_space(language) else " ").join(told)


def _counted(text: str, num_sentences: int, *, is_cut: bool) -> list[str]:
    """Return the first sentences, without the one an answer was cut in, unless there is no other."""
    found = sentences(text)
    is_last_broken = is_cut and len(found) > 1 and not is_finished(found[-1])
    return (found[:-1] if is_last_broken else found)[:num_sentences]


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The summarize agent."""
    return [SummarizeAgent()]
