"""Two models: a small one answers first, and what it is not sure of goes to a larger one.

python examples/fleets/two_models.py
python examples/fleets/two_models.py messages.txt --larger openai:https://api.example.com/v1#large --tokens 5000

The small model is asked three times, with the kinds in another order each time: one that goes by the order, and not by
the message, contradicts itself. Where its answers are the same, that is the answer; where they are not, the larger
model is asked once. Each model has a fleet of its own, so that the larger one has a budget of its own: when that is
used up, or the model is not there, the answer is the small one's majority, and marked as doubtful.
"""

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path

import msgspec

from pyagent import (
    AgentError,
    Backend,
    BudgetError,
    Context,
    Fleet,
    PyAgentError,
    SamplingParams,
    Settings,
    Task,
    follow,
    load_settings,
)

SAMPLE = Path(__file__).parent / "samples" / "messages.txt"
KINDS = ("delivery", "refund", "technical", "other")
NUM_VOTES, MAX_MESSAGES, MAX_CHARACTERS = 3, 500, 1_000
LIMITS = {"budget.run.tokens": 5_000, "budget.run.seconds": 120}
QUESTION = "A customer wrote:\n{text}\n\nWhat is it about: {kinds}?"


class Votes(msgspec.Struct, frozen=True):
    """The answers of one model to one question."""

    votes: dict[str, int]

    @property
    def answer(self) -> str:
        return max(self.votes, key=lambda kind: self.votes[kind], default=KINDS[-1])

    @property
    def is_sure(self) -> bool:
        return len(self.votes) == 1


class Answer(msgspec.Struct, frozen=True):
    """What a message is about, and which model said so."""

    text: str
    kind: str
    by: str
    is_doubtful: bool = False

    def __str__(self) -> str:
        return f"{self.kind + '?' * self.is_doubtful:<11} {self.by:<7} {self.text[:80]}"


class Classifier:
    """Says what a message is about, so many times."""

    name = "classifier"
    description = "Says what a customer's message is about."

    def __init__(self, num_votes: int) -> None:
        self.num_votes = num_votes

    async def run(self, context: Context, task: Task) -> Votes:
        async def vote(turn: int) -> str:
            kinds = KINDS[turn:] + KINDS[:turn]
            question = QUESTION.format(text=task.text, kinds=" or ".join(kinds))
            sampling = SamplingParams(temperature=0.0, max_tokens=8)
            return await context.generate(question, choice=kinds, sampling=sampling)

        return Votes(dict(Counter(await context.map(vote, range(self.num_votes)))))


class Escalation:
    """Asks the small model, then the larger one where that is worth it."""

    def __init__(self, small: Fleet, larger: Fleet) -> None:
        self.small, self.larger = small, larger
        self.closed = ""

    async def answer(self, text: str) -> Answer:
        """Return the answer that is sure, or the best there is."""
        try:
            votes = await follow(self.small.run(text, agent="classifier"), Votes, show=quiet)
        except AgentError:  # none of the kinds, twice
            votes = Votes({})
        if votes.is_sure:
            return Answer(text, votes.answer, "small")
        print(f"  not sure ({told(votes)}): {text}")
        if not self.closed:
            try:
                found = await follow(self.larger.run(text, agent="classifier"), Votes, show=quiet)
                return Answer(text, found.answer, "larger")
            except PyAgentError as error:
                self.closed = f"{error}" if is_final(error) else ""
                print(f"  the larger model does not answer: {error}")
        return Answer(text, votes.answer, "small", is_doubtful=True)


def is_final(error: PyAgentError) -> bool:
    """Whether the larger model need not be asked again: its budget is used up, or it is not there."""
    return isinstance(error, BudgetError) or not isinstance(error, AgentError)


def quiet(_: str) -> None:
    """Show no line of the runs: there is one for each message."""


def told(votes: Votes) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in votes.votes.items()) or "no answer"


def messages_in(file: Path) -> list[str]:
    """Return a file's lines; ends the program where there are none."""
    try:
        lines = [line.strip()[:MAX_CHARACTERS] for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"two_models: {file} cannot be read: {error}")
    return [line for line in lines if line][:MAX_MESSAGES] or sys.exit(f"two_models: {file} has no lines")


def settings_for(link: str, **limits: object) -> Settings:
    """Return the settings with a chain of one link; without one, that of pyagent.toml."""
    overrides: dict[str, object] = {**LIMITS, **{f"budget.fleet.{name}": limit for name, limit in limits.items()}}
    return load_settings(overrides=overrides | ({"chain": [link]} if link else {})).settings


async def main(
    messages: list[str],
    small: Settings,
    larger: Settings,
    backends: tuple[Backend | None, Backend | None] = (None, None),
) -> list[Answer]:
    async with (
        Fleet(small, backend=backends[0], agents=[Classifier(NUM_VOTES)], tools=[]) as quick,
        Fleet(larger, backend=backends[1], agents=[Classifier(1)], tools=[]) as slow,
    ):
        escalation = Escalation(quick, slow)
        return [await escalation.answer(message) for message in messages]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Say what messages are about, with two models.")
    options.add_argument("file", type=Path, nargs="?", default=SAMPLE, help="a message a line")
    options.add_argument("--small", default="native:smollm2:135m", help="the link that is asked first")
    options.add_argument("--larger", default="", help="the link that is asked then (the chain of pyagent.toml)")
    options.add_argument("--tokens", type=int, default=20_000, help="what the larger model may use in all")
    given = options.parse_args()
    try:
        asked = messages_in(given.file), settings_for(given.small), settings_for(given.larger, tokens=given.tokens)
        answers = asyncio.run(main(*asked))
    except PyAgentError as error:
        sys.exit(f"two_models: {error}")
    print("\n".join(str(answer) for answer in answers))
    num_larger = sum(answer.by == "larger" for answer in answers)
    print(f"{num_larger} of {len(answers)} went to the larger model")
