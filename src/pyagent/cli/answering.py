"""Questions of a run, answered at the terminal. A line is waited for without a thread, so that Ctrl+C ends the wait."""

from __future__ import annotations

import asyncio
import select
import sys
from typing import TYPE_CHECKING

from pyagent.cli.output import coloured, for_terminal
from pyagent.core.errors import RequestError
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.core.fleet.events import Question, QuestionAsked
    from pyagent.core.fleet.orchestrator import Fleet

_POLL_SECONDS = 0.05
ACCEPT, EDIT, REFUSE = "accept", "edit", "refuse"


def can_answer() -> bool:
    """Whether somebody sits at a terminal and can be asked."""
    return bool(sys.stdin and sys.stdin.isatty() and sys.stdout.isatty())


async def answer_at_terminal(fleet: Fleet, asked: QuestionAsked) -> None:
    """Show a question until an answer that it takes was typed, or the run no longer waits for it."""
    question = asked.question
    options = (ACCEPT, EDIT, REFUSE) if question.kind == "plan" else question.options
    answers = f" [{'/'.join(map(printable, options))}]" if options else ""
    if question.kind == "approval":
        _forget_typed()
    while any(each.id == question.id for each in fleet.questions(asked.run)):
        text = for_terminal(question.text) if question.kind == "plan" else printable(question.text)
        sys.stdout.write(f"{coloured(asked.agent, 'cyan')} asks: {text}{answers} ")
        sys.stdout.flush()
        line = await _line(fleet, asked)
        if line is None:
            sys.stdout.write("\n(the run no longer waits for an answer)\n")
            return
        answer = _meant(question, line.strip())
        if question.kind == "plan" and answer == EDIT and (answer := _edited(question)) is None:
            sys.stdout.write("(the plan was not changed)\n")
            continue
        try:
            fleet.answer(asked.run, question.id, answer)
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
    options = (ACCEPT, EDIT, REFUSE) if question.kind == "plan" else question.options
    matching = [option for option in options if line and option.startswith(line.lower())]
    return matching[0] if len(matching) == 1 else line


def _edited(question: Question) -> str | None:
    """Return the plan as it is after an editor (`$VISUAL`, `$EDITOR`) was closed; None when it was not saved."""
    import click

    plan = question.text[question.text.index("[[steps]]") :] if "[[steps]]" in question.text else question.text
    try:
        return click.edit(plan, extension=".toml")
    except click.ClickException as error:
        sys.stdout.write(f"{printable(str(error))}; EDITOR names the editor to use\n")
        return None


async def _line(fleet: Fleet, asked: QuestionAsked) -> str | None:
    """Return the next line typed; None when the question is no longer open, or the terminal is gone."""
    if sys.platform == "win32":  # select takes sockets only there
        return await asyncio.to_thread(sys.stdin.readline)
    while not select.select([sys.stdin], [], [], 0)[0]:
        if not any(each.id == asked.question.id for each in fleet.questions(asked.run)):
            return None
        await asyncio.sleep(_POLL_SECONDS)
    return sys.stdin.readline() or None
