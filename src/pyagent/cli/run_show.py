"""`pyagent runs show`: a run as a tree, or its events as lines; and the question it waits with."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import coloured, write_json_line
from pyagent.cli.run_journal import line_of, open_journal, run_ids
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.infrastructure.storage.journal import KeptRun, SqliteJournal


def show(
    run: Annotated[
        str | None, typer.Argument(help="The run's id; without one the newest.", autocompletion=run_ids)
    ] = None,
    unfolded: Annotated[
        bool, typer.Option("--all", help="Show each step and call on a line of its own, also those that are alike.")
    ] = False,
    events: Annotated[
        bool, typer.Option("--events", help="Show everything that happened, in order, a line an event.")
    ] = False,
    notes: Annotated[bool, typer.Option("--notes", help="Show only the notes that agents took.")] = False,
    activations: Annotated[
        bool,
        typer.Option("--activations", help="Show what is behind each token of the answers, where it was recorded."),
    ] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show a run's steps as a tree, with what they took and what they wait for; with --events all that happened."""
    journal = open_journal(config)
    if run is None:
        run = next((row.run for row in journal.runs()), None)
        if run is None:
            sys.stdout.write("no runs yet: pyagent run TASK\n")
            return
    kept = journal.read(run)
    if as_json or notes or events:
        _write_events(kept, only_notes=notes, as_json=as_json)
    elif activations:
        _write_activations(kept)
    else:
        _write_tree(journal, run, kept, is_folded=not unfolded)
    if not (as_json or notes or activations):
        _write_questions(journal, run)
    warn_of_damage(run, kept)


def _write_events(kept: KeptRun, *, only_notes: bool, as_json: bool) -> None:
    import msgspec

    from pyagent.core.fleet.events import NoteTaken

    expected = 0
    for record in kept.records:
        if only_notes and not isinstance(record.event, NoteTaken):
            continue
        if as_json:
            write_json_line(msgspec.json.encode(record.event, enc_hook=str))
            continue
        if record.number > expected and not only_notes:
            sys.stdout.write(coloured(f"{'':8}  {record.number - expected} records are damaged\n", "red"))
        expected = record.number + 1
        sys.stdout.write(line_of(record.event) + "\n")


def _write_activations(kept: KeptRun) -> None:
    from pyagent.cli.run_activations import activation_lines
    from pyagent.cli.run_tree import tree_width

    lines = [*activation_lines((record.event for record in kept.records), tree_width())]
    hint = "no answer of this run has its activations recorded: run the task with `pyagent run --activations N`"
    for line in lines or [hint]:
        sys.stdout.write(f"{line}\n")


def _write_tree(journal: SqliteJournal, run: str, kept: KeptRun, *, is_folded: bool) -> None:
    from pyagent.cli.run_tree import head_lines, tree_lines, tree_width
    from pyagent.core.fleet.events import RunFailed
    from pyagent.core.fleet.run_tree import run_tree

    row, spec, now = journal.summary(run), journal.spec(run), time.time()
    is_running = row is not None and row.state == "running"
    tree = run_tree(spec, (record.event for record in kept.records), is_running=is_running, now=now)
    for line in head_lines(run, row, spec, tree, now):
        sys.stdout.write(f"{line}\n")
    sys.stdout.write("\n")
    for line in tree_lines(tree.nodes, tree_width(), is_folded=is_folded):
        sys.stdout.write(f"{line}\n")
    if row is not None and row.state == "done":
        sys.stdout.write(f"\nits result: pyagent runs result {run}\n")
    elif isinstance(tree.end, RunFailed) and row is not None and row.state != "needs_answer":
        sys.stdout.write(f"\n{coloured('ended without a result', 'red')}: {printable(tree.end.error)}\n")
        sys.stdout.write(f"go on with it: pyagent runs resume {run}\n")
    elif row is not None and row.state == "unfinished":
        sys.stdout.write(f"\nits process died; go on with it: pyagent runs resume {run}\n")


def _write_questions(journal: SqliteJournal, run: str) -> None:
    """Write what a run waits for a person to answer, whole, and how to answer it."""
    from pyagent.core.fleet.run_view import view_of

    if (row := journal.summary(run)) is None or not (questions := view_of(journal, row).questions):
        return
    for question in questions:
        options = f" [{'/'.join(map(printable, question.options))}]" if question.options else ""
        sys.stdout.write(f"\n{coloured('asks', 'yellow')} ({question.id}): {_lines(question.text)}{options}\n")
        answer = f"{question.id}=ANSWER" if len(questions) > 1 else "ANSWER"
        if row.state != "running":
            sys.stdout.write(f"answer it: pyagent runs resume {run} --answer {answer}\n")
    if row.state == "running":
        url = f"POST /v1/runs/{run}/answer"
        sys.stdout.write(f"answer it at the terminal or by the program that runs it; of a server by {url}\n")


def _lines(text: str) -> str:
    """Return a text of others in its lines, as the plan that a person is asked about."""
    return "\n".join(map(printable, text.splitlines()))


def warn_of_damage(run: str, kept: KeptRun) -> None:
    """Warn on standard error of records that are lost."""
    if not kept.is_whole:
        num_lost = len(kept.missing)
        sys.stderr.write(f"warning: the journal of {run} is damaged: {num_lost} records are lost\n")
