"""A research team: a librarian finds texts, readers quote what answers the question, a writer writes from the quotes.

python examples/fleets/research_team.py
python examples/fleets/research_team.py "When did the last one fall?" ~/notes --resume r-7f3a

A reader may only quote: its answer is one of the text's own sentences, or none. What the writer says beside its
sources is checked: a number that no quote has is not let through. The run goes on after a crash with `--resume`.
"""

import argparse
import asyncio
import re
import sys
from pathlib import Path

import msgspec

from pyagent import (
    AgentError,
    Backend,
    Context,
    Fleet,
    PyAgentError,
    SamplingParams,
    Step,
    Task,
    follow,
    load_settings,
    tool,
)

SAMPLE = Path(__file__).parent / "samples" / "notes"
LIMITS = {"budget.run.tokens": 40_000, "budget.run.seconds": 300}
MAX_TEXTS, MAX_SENTENCES, MAX_FILES, MAX_CHARACTERS = 4, 5, 1_000, 20_000
NOTHING = "none of these"


class Where(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the librarian is told beside the question."""

    folder: str


class Quote(msgspec.Struct, frozen=True):
    """A sentence, word by word as the text has it."""

    file: str
    sentence: str


class Quotes(msgspec.Struct, frozen=True):
    """What the readers found."""

    quotes: list[Quote]


class Answer(msgspec.Struct, frozen=True):
    """The answer, and the quotes it rests on."""

    text: str
    quotes: list[Quote]

    def __str__(self) -> str:
        sources = [f"  [{number}] {quote.sentence} ({quote.file})" for number, quote in enumerate(self.quotes, 1)]
        return "\n".join([self.text, *sources])


@tool(effect="none")
async def find_texts(folder: str, question: str) -> list[str]:
    """Return the texts below a folder that share most words with a question, the best first."""
    wanted = rare_words(question)
    files = await asyncio.to_thread(lambda: sorted(Path(folder).rglob("*.txt"))[:MAX_FILES])
    scored = [(len(wanted & words(await read_text(str(file)))), str(file)) for file in files]
    return [file for score, file in sorted(scored, key=lambda row: (-row[0], row[1]))[:MAX_TEXTS] if score]


@tool(name="read_text", effect="none")
async def read_text_tool(file: str) -> str:
    """Return the beginning of a text."""
    return await read_text(file)


async def read_text(file: str) -> str:
    return (await asyncio.to_thread(Path(file).read_text, encoding="utf-8", errors="replace"))[:MAX_CHARACTERS]


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def rare_words(text: str) -> set[str]:
    return {word for word in words(text) if len(word) > 4}


def candidates(text: str, question: str) -> list[str]:
    """Return the sentences that share a word with the question, those with most words first."""
    wanted = rare_words(question)
    sentences = dict.fromkeys(found.strip() for found in re.split(r"(?<=[.!?])\s+", text))
    scored = sorted(sentences, key=lambda sentence: -len(wanted & words(sentence)))
    return [sentence for sentence in scored if wanted & words(sentence)][:MAX_SENTENCES]


class Librarian:
    """Finds the texts that are worth reading; knows no model."""

    name = "librarian"
    description = "Finds texts about a question."
    arguments = Where

    async def run(self, context: Context, task: Task) -> list[str]:
        folder = task.arguments_as(Where).folder
        found = await context.call_tool("find_texts", {"folder": folder, "question": task.text})
        files = msgspec.convert(found, list[str])
        if not files:
            raise AgentError(f"no text below {folder} has words of the question", agent=self.name)
        context.progress(f"{len(files)} texts: {', '.join(Path(file).name for file in files)}")
        return files


class Reader:
    """Quotes the sentence of each text that answers the question best."""

    name = "reader"
    description = "Quotes what texts say about a question."

    async def run(self, context: Context, task: Task) -> Quotes:
        async def read(file: str) -> Quote | None:
            text = str(await context.call_tool("read_text", {"file": file}))
            choice = [*candidates(text, task.text), NOTHING]
            question = "\n".join([*choice, "", f"Which line answers the question: {task.text}"])
            try:
                found = await context.generate(question, choice=choice)
            except AgentError as error:  # no sentence of the text, twice
                context.progress(f"{Path(file).name}: {error}")
                return None
            context.progress(f"{Path(file).name}: {found}")
            return None if found == NOTHING else Quote(Path(file).name, found)

        files = msgspec.convert(task.results["find"], list[str])
        found = await context.map(read, files, max_concurrency=4)
        return Quotes([quote for quote in found if quote is not None])


class Writer:
    """Writes an answer from quotes, and lets no number through that they do not have."""

    name = "writer"
    description = "Writes an answer from quotes."

    async def run(self, context: Context, task: Task) -> Answer:
        quotes = msgspec.convert(task.results["read"], Quotes).quotes
        if not quotes:
            return Answer("The texts do not say.", [])
        known = " ".join(quote.sentence for quote in quotes)
        sampling = SamplingParams(temperature=0.0, max_tokens=80)
        text = await context.generate(f"{known}\n\nAnswer in one sentence: {task.text}", sampling=sampling)
        invented = set(re.findall(r"\d+", text)) - set(re.findall(r"\d+", known))
        if invented:
            context.progress(f"the quotes do not have {', '.join(sorted(invented))}: they stand alone")
            text = quotes[0].sentence
        return Answer(text.strip(), quotes)


async def main(question: str, folder: Path, *, backend: Backend | None = None, resume: str = "") -> Answer:
    steps = [
        Step(name="find", agent="librarian", task=Task(text=question, arguments={"folder": str(folder)})),
        Step(name="read", agent="reader", task=Task(text=question), after=("find",)),
        Step(name="write", agent="writer", task=Task(text=question), after=("read",)),
    ]
    team = [Librarian(), Reader(), Writer()]
    settings = load_settings(overrides=LIMITS).settings
    async with Fleet(settings, backend=backend, agents=team, tools=[find_texts, read_text_tool]) as fleet:
        return await follow(fleet.resume(resume) if resume else fleet.run(steps), Answer)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Answer a question from a folder of texts.")
    options.add_argument("question", nargs="?", default="When was the lighthouse of Alexandria built?")
    options.add_argument("folder", type=Path, nargs="?", default=SAMPLE)
    options.add_argument("--resume", metavar="RUN", default="", help="go on with a run that did not end")
    given = options.parse_args()
    try:
        print(asyncio.run(main(given.question, given.folder, resume=given.resume)))
    except PyAgentError as error:
        sys.exit(f"research_team: {error}")
