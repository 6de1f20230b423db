"""Has a model word paragraphs from notes, and keeps of its sentences those that a note supports.

What the model leaves out or gets wrong stands as the source has it: with a small model an essay is made of quotes, and
is true all the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyagent.core.fleet.context import Context
from pyagent.core.messages import SamplingParams
from pyagent.logic.agents.parts import sentences
from pyagent.logic.web_essay.notes import Note
from pyagent.logic.web_essay.styles import Sentence
from pyagent.logic.web_essay.support import supports

_SYSTEM = (
    "Write one paragraph from the notes, {tone}. Use only what the notes say, with their figures and names. "
    "Keep one sentence for each note. Add nothing. Do not cite, do not list, do not comment."
)
_TOKENS_PER_NOTE = 96
_CITATION = re.compile(r"\s*[\[(]\d{1,3}[\])]")


async def worded(context: Context, notes: Sequence[Note], tone: str) -> tuple[list[Sentence], int]:
    """Return a paragraph of the notes, and how many sentences of the model were left out."""
    prompt = "\n".join(f"Note {number}: {note.statement.quote}" for number, note in enumerate(notes, 1))
    sampling = SamplingParams(temperature=0.0, max_tokens=_TOKENS_PER_NOTE * len(notes), repetition_penalty=1.05)
    answer = await context.complete(prompt, system=_SYSTEM.format(tone=tone), sampling=sampling)
    return held(notes, sentences(_CITATION.sub("", answer.text)))


def held(notes: Sequence[Note], said: Sequence[str]) -> tuple[list[Sentence], int]:
    """Return a sentence for each note, the model's where it is supported, else the source's; and how many failed."""
    chosen: dict[int, str] = {}
    num_dropped = 0
    for sentence in said:
        plain = re.sub(r"^Note \d+:\s*", "", " ".join(sentence.split()))
        fitting = next((place for place, note in enumerate(notes) if place not in chosen and _fits(note, plain)), None)
        if fitting is None:
            num_dropped += 1
        else:
            chosen[fitting] = plain
    told = [
        *chosen.items(),
        *((place, note.statement.quote) for place, note in enumerate(notes) if place not in chosen),
    ]
    return [Sentence(text, notes[place].sources) for place, text in sorted(told, key=lambda each: each[0])], num_dropped


def as_they_stand(notes: Sequence[Note]) -> list[Sentence]:
    """Return the notes as sentences of their sources."""
    return [Sentence(note.statement.quote, note.sources) for note in notes]


def _fits(note: Note, sentence: str) -> bool:
    is_sentence = sentence[:1].isalnum() and sentence.isprintable() and not re.search(r"[\[\]<>{}|`#*_]", sentence)
    return is_sentence and supports(note.statement.quote, sentence)
