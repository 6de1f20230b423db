"""`pyagent runs`: going on with a run, forking and cancelling it, and looking at one that another process runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.options import AsJson, Chain, Config, Model
from pyagent.cli.run_journal import Run, line_of, open_journal
from pyagent.cli.run_replay import replay
from pyagent.cli.startup import read_settings

if TYPE_CHECKING:
    from pyagent.core.fleet.journal import Journal

_POLL_SECONDS = 0.1
_CANCEL_SECONDS = 30.0


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this module to `pyagent runs`."""
    for command in (resume, fork, cancel, watch, replay):
        app.command()(command)


def resume(
    run: Run,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            "--answer",
            metavar="TEXT",
            help="Answer the question that the run waits with; ID=TEXT where there are several. Give several times.",
        ),
    ] = None,
    chain: Chain = None,
    model: Model = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Go on with a run that was killed, cancelled, failed or asks: what is finished is not run again."""
    from pyagent.cli.event_loop import run_to_end
    from pyagent.cli.run import show_run, waits_for_answers
    from pyagent.fleet import Fleet

    settings = read_settings(config, chain, model)

    async def work() -> None:
        async with Fleet(settings) as fleet:
            answers = _answers(fleet.journal, run, answer or [])
            waits = waits_for_answers(as_json=as_json)
            await show_run(fleet, fleet.resume(run, answers=answers, waits_for_answers=waits), as_json=as_json)

    run_to_end(work())


def _answers(journal: Journal, run: str, given: list[str]) -> Mapping[str, str]:
    """Return the answers by their questions' ids; raises `RequestError` for one that is not clear."""
    from pyagent.core.errors import RequestError
    from pyagent.core.fleet.past import Past

    if not given:
        return {}
    questions = Past.of(journal, run).open_questions
    answers: dict[str, str] = {}
    for text in given:
        question, _, answer = text.partition("=")
        if question in questions:
            answers[question] = answer
        elif len(questions) == 1:
            answers[questions[0]] = text
        else:
            waiting = (
                f"the questions {', '.join(questions)}: answer by --answer ID=TEXT" if questions else "no question"
            )
            raise RequestError(f"{run} waits with {waiting}", param="answer")
    return answers


def fork(
    run: Run,
    step: Annotated[str, typer.Argument(help="The step to run again, as `runs show` names it.")],
    task: Annotated[str | None, typer.Argument(help="What the step is to do instead; else the same.")] = None,
    chain: Chain = None,
    model: Model = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Make a new run of an old one: what came before a step is kept, the step and the rest are run again."""
    from pyagent.cli.event_loop import run_to_end
    from pyagent.cli.run import show_run, waits_for_answers
    from pyagent.fleet import Fleet

    settings = read_settings(config, chain, model)

    async def work() -> None:
        async with Fleet(settings) as fleet:
            waits = waits_for_answers(as_json=as_json)
            await show_run(fleet, fleet.fork(run, step, task, waits_for_answers=waits), as_json=as_json)

    run_to_end(work())


def cancel(run: Run, config: Config = None) -> None:
    """End a run, in whatever process it runs; it can be resumed."""
    from pyagent.core.errors import DeadlineError, RequestError

    journal = open_journal(config)
    journal.cancel(run)
    deadline = time.monotonic() + _CANCEL_SECONDS
    while (state := _state(journal, run)) == "running":
        if time.monotonic() > deadline:
            raise DeadlineError(f"{run} has not ended in {_CANCEL_SECONDS:g} s; it ends when its process can")
        time.sleep(_POLL_SECONDS)
    if state in {"done", "failed"}:
        raise RequestError(f"{run} ended by itself before it could be cancelled: {state}", param="run", code="over")
    sys.stdout.write(f"cancelled {run}; pyagent runs resume {run} goes on with it\n")


def _state(journal: Journal, run: str) -> str | None:
    return next((row.state for row in journal.runs() if row.run == run), None)


def watch(run: Run, as_json: AsJson = False, config: Config = None) -> None:
    """Show what a run did and does, until it ends; it may run in another process."""
    from pyagent.cli.output import write_json_line
    from pyagent.core.fleet.events import encode_event

    journal, number = open_journal(config), 0
    while True:
        is_running = any(row.run == run and row.state == "running" for row in journal.runs())
        for record in journal.replay(run, number):
            if as_json:
                write_json_line(encode_event(record.event))
            else:
                sys.stdout.write(line_of(record.event) + "\n")
            number = record.number + 1
        sys.stdout.flush()
        if not is_running:
            return
        time.sleep(_POLL_SECONDS)
