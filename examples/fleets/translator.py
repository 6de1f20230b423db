"""Translate a text by debate: two translators, each sees the other's version, and a judge chooses.

python examples/fleets/translator.py
python examples/fleets/translator.py letter.txt --to French --rounds 2
python examples/fleets/translator.py letter.txt --to French --resume r-7f3a

What can be checked is checked before the judge is asked: a version that lost a number, is cut off, is empty or is the
text itself has lost. Where both have, the paragraph is marked `(?)`: a person has to look at it.
"""

import argparse
import asyncio
import re
import sys
from pathlib import Path
from typing import Annotated

import msgspec

from pyagent import (
    AgentError,
    Backend,
    Context,
    Fleet,
    PyAgentError,
    SamplingParams,
    Task,
    follow,
    load_settings,
)

SAMPLE = Path(__file__).parent / "samples" / "letter.txt"
LIMITS = {"budget.run.tokens": 200_000, "budget.run.seconds": 900}
MAX_CHARACTERS, MAX_PARAGRAPH = 50_000, 2_000
STYLES = {
    "literal": "You translate word by word where you can, and keep the order of the sentence.",
    "fluent": "You translate as a native speaker would say it.",
}


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The language to translate into, and how often the translators may answer each other."""

    language: str
    rounds: Annotated[int, msgspec.Meta(ge=0, le=5)] = 1


class Argument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a translator is told beside the text: its last version, and the other's."""

    language: str
    own: str = ""
    other: str = ""


class Version(msgspec.Struct, frozen=True):
    """A translation, and what is wrong with it as far as that can be checked."""

    text: str
    fault: str = ""


class Paragraph(msgspec.Struct, frozen=True):
    """A paragraph, the version that won, and why."""

    source: str
    text: str
    why: str
    is_doubtful: bool = False


class Translation(msgspec.Struct, frozen=True):
    """All paragraphs in order."""

    paragraphs: list[Paragraph]

    def __str__(self) -> str:
        return "\n\n".join(f"{'(?) ' if each.is_doubtful else ''}{each.text}" for each in self.paragraphs)


class Translator:
    """Translates in one style; shown another's version, it may think again."""

    def __init__(self, name: str, style: str) -> None:
        self.name = name
        self.description = f"A translator. {style}"
        self.arguments = Argument
        self._style = style

    async def run(self, context: Context, task: Task) -> Version:
        given = task.arguments_as(Argument)
        question = f"Translate into {given.language}:\n\n{task.text}"
        if given.other:
            question += f"\n\nYou wrote: {given.own}\nAnother wrote: {given.other}\n\nGive your best translation."
        max_tokens = 60 + len(task.text) // 2
        sampling = SamplingParams(temperature=0.3, seed=1, max_tokens=max_tokens, stop=["\n\n"])
        answer = await context.complete(question, system=self._style, sampling=sampling)
        text = answer.text.strip()
        return Version(text, fault_of(text, task.text, is_cut=answer.is_cut))


class Judge:
    """Chooses between two versions that have no fault."""

    name = "judge"
    description = "Chooses the better of two translations."
    arguments = Argument

    async def run(self, context: Context, task: Task) -> str:
        given = task.arguments_as(Argument)
        question = (
            f"Text: {task.text}\n\nfirst: {given.own}\n\nsecond: {given.other}\n\nWhich {given.language} is better?"
        )
        return await context.generate(question, choice=["first", "second"])


class Desk:
    """Gives each paragraph to the translators, and keeps what wins."""

    name = "desk"
    description = "Translates a text by debate."
    arguments = Order
    needs = (*STYLES, "judge")

    async def run(self, context: Context, task: Task) -> Translation:
        order = task.arguments_as(Order)
        done: dict[int, Paragraph] = {}

        async def translate(numbered: tuple[int, str]) -> Paragraph:
            number, source = numbered
            done[number] = await self.debate(context, source, order)
            context.keep(Translation([done[key] for key in sorted(done)]))
            context.progress(f"paragraph {number}: {done[number].why}")
            return done[number]

        numbered = list(enumerate(paragraphs_of(task.text), 1))
        return Translation(await context.map(translate, numbered, max_concurrency=2))

    async def debate(self, context: Context, source: str, order: Order) -> Paragraph:
        first, second = Version(""), Version("")
        for _ in range(order.rounds + 1):
            first, second = [
                await self.version(context, style, source, Argument(order.language, own.text, other.text))
                for style, own, other in zip(STYLES, (first, second), (second, first), strict=True)
            ]
            if first.text == second.text:
                break
        if first.fault and second.fault:
            return Paragraph(source, first.text or source, f"both are at fault: {first.fault}", is_doubtful=True)
        if first.fault or second.fault or first.text == second.text:
            better = second if first.fault else first
            return Paragraph(source, better.text, first.fault or second.fault or "both agree")
        return await self.judged(context, source, Argument(order.language, first.text, second.text))

    async def version(self, context: Context, style: str, source: str, argument: Argument) -> Version:
        task = Task(text=source, arguments=msgspec.to_builtins(argument))
        try:
            return msgspec.convert(await context.spawn(style, task), Version)
        except AgentError as error:
            return Version("", str(error))

    async def judged(self, context: Context, source: str, versions: Argument) -> Paragraph:
        try:
            chosen = await context.spawn("judge", Task(text=source, arguments=msgspec.to_builtins(versions)))
        except AgentError as error:  # it named neither, twice
            return Paragraph(source, versions.own, str(error), is_doubtful=True)
        is_first = chosen == "first"
        return Paragraph(source, versions.own if is_first else versions.other, f"the judge took the {chosen}")


def fault_of(text: str, source: str, *, is_cut: bool) -> str:
    """Return what is certainly wrong with a translation."""
    lost = [number for number in re.findall(r"\d+", source) if number not in re.findall(r"\d+", text)]
    if not text or text == source:
        return "it is empty" if not text else "it is the text itself"
    return f"it lost {', '.join(lost)}" if lost else "it was cut off" * is_cut


def paragraphs_of(text: str) -> list[str]:
    """Return the paragraphs of a text, long ones in pieces."""
    blocks = [block.strip() for block in re.split(r"\n\s*\n", text[:MAX_CHARACTERS]) if block.strip()]
    return [block[at : at + MAX_PARAGRAPH] for block in blocks for at in range(0, len(block), MAX_PARAGRAPH)]


def read(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"translator: {file} cannot be read: {error}")
    return text if text.strip() else sys.exit(f"translator: {file} has no text")


async def main(
    text: str, language: str, rounds: int = 1, *, backend: Backend | None = None, resume: str = ""
) -> Translation:
    team = [Desk(), Judge(), *(Translator(name, style) for name, style in STYLES.items())]
    settings = load_settings(overrides=LIMITS).settings
    async with Fleet(settings, backend=backend, agents=team, tools=[]) as fleet:
        task = Task(text=text, arguments={"language": language, "rounds": rounds})
        return await follow(fleet.resume(resume) if resume else fleet.run(task, agent="desk"), Translation)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Translate a text by debate.")
    options.add_argument("file", type=Path, nargs="?", default=SAMPLE)
    options.add_argument("--to", default="German", help="the language to translate into")
    options.add_argument("--rounds", type=int, default=1, help="how often the translators answer each other")
    options.add_argument("--resume", metavar="RUN", default="", help="go on with a translation that did not end")
    given = options.parse_args()
    try:
        print(asyncio.run(main(read(given.file), given.to, given.rounds, resume=given.resume)))
    except PyAgentError as error:
        sys.exit(f"translator: {error}")
