"""Reading: answers what is asked about documents from the passages that matter to it, and quotes them.

However long the documents, the model sees the question and only what fits a small context. An answer to a question is
compared with the passages: one that brings numbers or words of its own is not passed off as what the text says.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import msgspec

from pyagent.core.errors import AgentError
from pyagent.core.fleet.context import Context
from pyagent.core.messages import SamplingParams
from pyagent.logic.agents.documents import Document
from pyagent.logic.agents.parts import is_finished, sentences, weight
from pyagent.logic.agents.passages import STOP_STEMS, Found, Passage, find, passages_of, terms

MAX_WEIGHT = 4_800
"""What is shown to the model at once: about 1,200 tokens."""
_NUM_QUOTES = 3
_MAX_SENTENCES = 3
_MIN_OWN_WORDS = 0.5
"""The least share of an answer's words that the passages or the question have."""
_ANSWER = "Answer the question from the text. Use the words of the text. Answer in one or two sentences."
_TASK = "Do what is asked with the text."
_ANSWER_SAMPLING = SamplingParams(temperature=0.0, max_tokens=160, repetition_penalty=1.05)
_TASK_SAMPLING = SamplingParams(temperature=0.0, max_tokens=512, repetition_penalty=1.05)
_QUESTION = re.compile(
    r"\?\s*$|^\W*(?:what|when|where|which|who|whom|whose|why|how|is|are|was|were|does|do|did|can|could|may|must|should|has"
    r"|have|will|would)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


class Reading(msgspec.Struct, frozen=True):
    """What was answered, the passages to check it by, the best first, and what else to know."""

    answer: str
    quotes: list[Passage]
    note: str = ""


async def read(context: Context, text: str, documents: Sequence[Document], background: Sequence[str] = ()) -> Reading:
    """Do what `text` asks about the documents; `background` is shown to the model besides."""
    passages, found, shown = await asyncio.to_thread(_search, text, documents)
    if len(passages) > len(shown):
        context.progress(f"{len(shown)} of {len(passages):,} passages matter to it")
    prompt = "\n\n".join([*background, *(passage.text for passage in shown), text])
    note = "" if found.best or len(shown) == len(passages) else _only_beginning(shown, passages)
    if _QUESTION.search(text.strip()):
        answer = await context.generate(prompt, system=_ANSWER, sampling=_ANSWER_SAMPLING)
        return _checked(answer, text, [*background, *(passage.text for passage in shown)], _quotes(found), note)
    stream = context.stream(prompt, system=_TASK, sampling=_TASK_SAMPLING)
    answer = "".join([piece async for piece in stream]).strip()
    if not answer:
        raise AgentError("the model's answer is empty", agent=context.agent)
    cut = "the model was cut off: it had more to say" if stream.is_cut else ""
    return Reading(answer, _quotes(found), "; ".join(filter(None, [note, cut])))


async def matching(text: str, documents: Sequence[Document]) -> list[Passage]:
    """Return the passages of the documents to show beside `text`, in their order."""
    return (await asyncio.to_thread(_search, text, documents))[2]


def _search(text: str, documents: Sequence[Document]) -> tuple[list[Passage], Found, list[Passage]]:
    """Return all passages, what was found among them, and those to show."""
    passages = [passage for document in documents for passage in passages_of(document)]
    found = find(text, passages, max_weight=MAX_WEIGHT)
    return passages, found, _shown(found, passages)


def _shown(found: Found, passages: Sequence[Passage]) -> list[Passage]:
    """What the model sees: the passages that matter, or all in their order, as far as they fit, when few words help."""
    if found.is_sure:
        return found.passages
    shown, left = list(found.passages), MAX_WEIGHT - sum(weight(passage.text) for passage in found.passages)
    for passage in passages:
        left -= 0 if passage in shown else weight(passage.text)
        if left < 0:
            break
        shown += [] if passage in shown else [passage]
    return [passage for passage in passages if passage in shown]


def _only_beginning(shown: Sequence[Passage], passages: Sequence[Passage]) -> str:
    return f"the text is longer than a prompt: read were the first {len(shown)} of {len(passages):,} passages"


def _quotes(found: Found) -> list[Passage]:
    others = [passage for passage in found.passages if passage != found.best]
    return [found.best, *others][:_NUM_QUOTES] if found.best else []


def _checked(answer: str, question: str, texts: Sequence[str], quotes: list[Passage], note: str) -> Reading:
    """Return the answer, if it says what the texts say; else the passages alone."""
    said = sentences(answer)[:_MAX_SENTENCES]
    told = " ".join(said if is_finished(said[-1]) or len(said) == 1 else said[:-1]) if said else answer
    fault = _strange(told, " ".join([*texts, question]))
    if fault:
        fault = f"the model's own answer was left out, as it has {fault}: {told[:200]}"
        told = "The text says:" if quotes else "The text does not say it in the question's words."
    elif not quotes:
        fault = "no word of the question is in the text, so that nothing can be quoted for this answer"
    return Reading(told, quotes, "; ".join(filter(None, [note, fault])))


def _strange(answer: str, source: str) -> str:
    """Return what an answer has that its source does not; empty when it is made of the source's words and numbers."""
    numbers = set(_NUMBER.findall(answer)) - set(_NUMBER.findall(source))
    if numbers:
        return f"{', '.join(sorted(numbers))}, which the text has not"
    said = set(terms(answer)) - STOP_STEMS
    return "" if len(said & set(terms(source))) >= _MIN_OWN_WORDS * len(said) else "words that are not the text's"
