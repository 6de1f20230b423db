"""Follow a run to its result: what happens is shown a line at a time, as a program's user wants to read it.

The command line has views of its own, which change in place; this is for programs, and knows events only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar, overload

from pyagent.core.errors import AgentError
from pyagent.core.fleet.events import (
    AgentFailed,
    AnswerDoubted,
    Event,
    HistoryCompacted,
    OptionChosen,
    Progress,
    QuestionAsked,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    ScoreReported,
    StepSkipped,
    ToolResultFlagged,
)
from pyagent.core.one_line import printable

T = TypeVar("T")
_MAX_CHARACTERS = 200


@overload
async def follow(events: AsyncGenerator[Event, None], *, show: Callable[[str], object] = print) -> object: ...


@overload
async def follow(events: AsyncGenerator[Event, None], kind: type[T], *, show: Callable[[str], object] = print) -> T: ...


async def follow(
    events: AsyncGenerator[Event, None], kind: type[object] = object, *, show: Callable[[str], object] = print
) -> object:
    """Return the result of `fleet.run(...)`, `resume` or `fork`, which has to be a `kind`; `show` a line of each event.

    Raises what the run ends with, after its last line.
    """
    result: object = None
    async with aclosing(events):
        async for event in events:
            if line := line_of(event):
                show(line)
            if isinstance(event, RunFinished):
                result = event.output
    if not isinstance(result, kind):
        raise AgentError(f"the run gave a {type(result).__name__}; a {kind.__name__} was expected", agent="")
    return result


def line_of(event: Event) -> str:
    """Return an event as a line; nothing for those that programs read and people do not."""
    line = ""
    match event:
        case RunStarted():
            line = f"{event.run}: {event.task}"
        case RunResumed():
            line = f"  goes on: {event.num_agents} agents and {event.num_calls} calls are done already"
        case Progress():
            line = f"  {event.agent}: {event.text}"
        case HistoryCompacted() | ToolResultFlagged():
            line = f"  {event.agent}: {event.line}"
        case AnswerDoubted():
            line = f"  {event.agent} is not sure: {event.reason}"
        case ScoreReported() | OptionChosen():
            line = f"  {event.agent} {_said(event)}"
        case QuestionAsked():
            return f"  {event.agent} asks: {printable(event.question.text)}"
        case AgentFailed():
            line = f"  {event.agent} failed: {event.error}"
        case StepSkipped():
            line = f"  {event.step} is skipped, as {event.cause} failed"
        case RunFinished():
            totals = event.totals
            used = f"{totals.prompt_tokens:,} tokens in, {totals.completion_tokens:,} out"
            line = f"{event.run}: done in {totals.seconds:.1f} s, {totals.model_calls} model calls, {used}"
        case RunFailed():
            line = f"{event.run}: {event.reason} after {event.totals.seconds:.1f} s, {_done(event)}"
        case _:
            pass
    return _short(line)


def _said(event: ScoreReported | OptionChosen) -> str:
    if isinstance(event, ScoreReported):
        return f"reports a score of {event.score:g}"
    return f"takes the {event.kind} {event.option}: {event.reason}"


def _done(event: RunFailed) -> str:
    done = ", ".join(event.partial)
    return f"with what there is of {done}" if done else "with no part done"


def _short(text: str) -> str:
    text = printable(text.replace("\n", " "))
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"
