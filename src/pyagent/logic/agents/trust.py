"""The trust agent: signs that a text is to steer a model or press a person, its mood, and trust over a conversation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Agent, Task, text_of
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import short_path
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.core.one_line import printable
from pyagent.core.trust.findings import Finding, Level, level_of
from pyagent.core.trust.scan import MAX_CHARACTERS, scan
from pyagent.logic.agents.documents import read_documents
from pyagent.logic.agents.typical_tasks import typical_tasks_of
from pyagent.logic.trust.mood import Mood, mood_of
from pyagent.logic.trust.standing import KEPT, Standing
from pyagent.logic.trust.transcript import Form, Turn, read_turns

_MAX_SPEAKER_CHARACTERS = 80
_ASKED = re.compile(
    r"\b(?:is|are|does|do|check|look|scan)\b.{0,60}\b(?:prompt injections?|manipulative|manipulat\w{1,5}|a scam|"
    r"phishing|jailbreak|trustworthy|to be trusted)\b",
    re.IGNORECASE | re.DOTALL,
)


class Look(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is looked at: `form` says whether the text is a conversation; `top` findings are told, the heaviest first.

    `kept` is the share of what is known of a speaker that one more turn leaves.
    """

    text: str = ""
    form: Form = "auto"
    top: int = 10
    kept: float = KEPT

    def check(self) -> None:
        """Raise `RequestError` for a number that makes no sense."""
        if not 0.0 <= self.kept < 1.0:
            raise RequestError(f"expected kept from 0 to below 1, got {self.kept}", param="kept")
        if not 1 <= self.top <= 1000:
            raise RequestError(f"expected top from 1 to 1000, got {self.top}", param="top")


class TurnSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One turn: its scores, its mood, and how far its speaker is trusted after it."""

    turn: int
    speaker: str
    injection: float
    manipulation: float
    level: Level
    mood: Mood
    trust: float


class SpeakerSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A speaker at the conversation's end: trust is `alpha / (alpha + beta)`."""

    speaker: str
    trust: float
    alpha: float
    beta: float
    num_turns: int


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """What a text or a conversation shows: the scores are those of its worst turn."""

    level: Level
    injection: float
    manipulation: float
    mood: Mood
    findings: list[Finding]
    num_findings: int
    turns: list[TurnSeen]
    speakers: list[SpeakerSeen]

    def __str__(self) -> str:
        mood = f"valence {self.mood.valence:+.2f}, arousal {self.mood.arousal:.2f}"
        lines = [f"{self.level}: injection {self.injection:.2f}, manipulation {self.manipulation:.2f}; mood: {mood}"]
        is_talk = len(self.turns) > 1
        lines += [_line(finding, is_talk=is_talk) for finding in self.findings]
        if (num_more := self.num_findings - len(self.findings)) > 0:
            lines.append(f"  and {num_more} more")
        if is_talk:
            lines += [f"{each.speaker}: trust {each.trust:.2f} after {each.num_turns} turns" for each in self.speakers]
        return "\n".join(lines)


class TrustAgent:
    """Looks at texts and conversations by rules."""

    name = "trust"
    description = (
        "Says whether a text or conversation shows prompt injection or manipulation, quotes the signs, and tells mood "
        "and trust in each speaker."
    )
    typical_tasks = typical_tasks_of("trust")
    is_pure = True
    arguments = Look

    def score(self, task: Task) -> float | None:
        """Asks whether something is an injection, a scam or manipulation."""
        if _ASKED.search(task.text[:1000]):
            return Score(0.8, "it asks whether a text is to be trusted")
        return None

    async def run(self, context: Context, task: Task) -> Trust:
        """Return what the text, the files, the conversation so far or the results of earlier steps show."""
        look = task.arguments_as(Look)
        look.check()
        turns = await _turns(task, look)
        context.progress(f"{len(turns):,} texts, {sum(len(turn.text) for turn in turns):,} characters")
        return await asyncio.to_thread(seen, turns, look)


def seen(turns: Sequence[Turn], look: Look) -> Trust:
    """Return what turns show, in their order."""
    findings: list[Finding] = []
    told: list[TurnSeen] = []
    standings: dict[str, Standing] = {}
    for nth, turn in enumerate(turns, 1):
        found = scan(turn.text)
        speaker = " ".join(printable(turn.speaker).split())[:_MAX_SPEAKER_CHARACTERS] or "unknown"
        standing = standings.get(speaker, Standing(speaker)).after(found.score, look.kept)
        standings[speaker] = standing
        findings += [msgspec.structs.replace(each, turn=nth) for each in found.findings]
        told.append(
            TurnSeen(
                turn=nth,
                speaker=speaker,
                injection=found.injection,
                manipulation=found.manipulation,
                level=found.level,
                mood=mood_of(turn.text),
                trust=standing.trust,
            )
        )
    findings.sort(key=lambda each: -each.weight)
    injection = max(each.injection for each in told)
    manipulation = max(each.manipulation for each in told)
    return Trust(
        level=level_of(max(injection, manipulation)),
        injection=injection,
        manipulation=manipulation,
        mood=mood_of("\n".join(turn.text for turn in turns)),
        findings=findings[: look.top],
        num_findings=len(findings),
        turns=told,
        speakers=[
            SpeakerSeen(
                speaker=each.speaker,
                trust=each.trust,
                alpha=round(each.alpha, 3),
                beta=round(each.beta, 3),
                num_turns=each.num_turns,
            )
            for each in standings.values()
        ],
    )


async def _turns(task: Task, look: Look) -> list[Turn]:
    """Return all that is to be looked at: what was said before, the text, files, and results of earlier steps."""
    turns = [Turn(message.role, text_of(message.content)) for message in task.history if message.content]
    for text in (task.text, look.text):
        if text.strip():
            turns += read_turns(_bounded(text, "text"), look.form, speaker="user" if task.history else "text")
    for document in await read_documents(task.files):
        name = short_path(document.path)
        turns += read_turns(_bounded(document.text, name), look.form, speaker=name)
    turns += [Turn(step, text_of(result)) for step, result in task.results.items()]
    if not turns:
        raise RequestError("there is nothing to look at: give a text, a file or a conversation", param="text")
    return turns


def _bounded(text: str, name: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise RequestError(f"{name} has more than {MAX_CHARACTERS:,} characters", param="text")
    return text


def _line(finding: Finding, *, is_talk: bool) -> str:
    place = f"turn {finding.turn}, character {finding.start}" if is_talk else f"character {finding.start}"
    inside = f" (in {finding.inside})" if finding.inside else ""
    return f"  {finding.weight:.2f} {finding.kind} at {place}{inside}: {printable(finding.quote)!r} {finding.why}"


async def _tool(arguments: Look) -> Trust:
    arguments.check()
    turns = read_turns(_bounded(arguments.text, "text"), arguments.form)
    return await asyncio.to_thread(seen, turns, arguments)


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The trust agent."""
    return [TrustAgent()]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """The look at a text as a tool."""
    function: Callable[[Look], Awaitable[object]] = _tool
    description = "Looks for prompt injection and manipulation in a text and quotes the signs."
    return [FleetTool("check_trust", description, Look, function, effect="none")]
