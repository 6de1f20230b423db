"""Questions of a run, answered at the terminal. A line is waited for without a thread, so that Ctrl+C ends the wait."""

from __future__ import annotations

import asyncio
import select
import sys
from typing import TYPE_CHECKING

from pyagent.cli.output import coloured
from pyagent.core.errors import RequestError
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.core.fleet.events import Question, QuestionAsked
    from pyagent.core.fleet.orchestrator import Fleet

_POLL_SECONDS = 0.05


def can_answer() -> bool:
    """Whether somebody sits at a terminal and can be asked."""
    return bool(sys.stdin and sys.stdin.isatty() and sys.stdout.isatty())


async def answer_at_terminal(fleet: Fleet, asked: QuestionAsked) -> None:
    """Show a question until an answer that it takes was typed, or the run no longer waits for it."""
    question = asked.question
    answers = f" [{'/'.join(map(printable, question.options))}]" if question.options else ""
    if question.kind == "approval":
        _forget_typed()
    while any(each.id == question.id for each in fleet.questions(asked.run)):
        sys.stdout.write(f"{coloured(asked.agent, 'cyan')} asks: {printable(question.text)}{answers} ")
        sys.stdout.flush()
        line = await _line(fleet, asked)
        if line is None:
            sys.stdout.write("\n(the run no longer waits for an answer)\n")
            return
        try:
            fleet.answer(asked.run, question.id, _meant(question, line.strip()))
        except RequestError as error:
            sys.stdout.write(f"{printable(str(error))}\n")


def _forget_typed() -> None:
    """Drop what was typed before the question was there: it approves nothing."""
    try:
        import termios
    except ImportError:  # Windows
        return
    termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _meant(question: Question, line: str) -> str:
    """Return the one option that begins with the line, else the line."""
    matching = [option for option in question.options if line and option.startswith(line.lower())]
    return matching[0] if len(matching) == 1 else line


async def _line(fleet: Fleet, asked: QuestionAsked) -> str | None:
    """Return the next line typed; None when the question is no longer open, or the terminal is gone."""
    if sys.platform == "win32":  # select takes sockets only there
        return await asyncio.to_thread(sys.stdin.readline)
    while not select.select([sys.stdin], [], [], 0)[0]:
        if not any(each.id == asked.question.id for each in fleet.questions(asked.run)):
            return None
        await asyncio.sleep(_POLL_SECONDS)
    return sys.stdin.readline() or None
