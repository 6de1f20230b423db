"""`pyagent runs mark`: a person or a program says how good a run was."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import for_terminal, write_json
from pyagent.cli.run_journal import Run, open_journal


def mark(
    run: Run,
    mark: Annotated[str, typer.Argument(metavar="MARK", help="good, bad or a number from 0 to 1.")],
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Say how good a run's result was; `[learning]` chooses agents, strategies, prompts and links by it."""
    from pyagent.core.fleet.marks import mark_run

    journal = open_journal(config)
    marked = mark_run(journal, journal.outcomes, run, mark)
    if as_json:
        write_json(marked)
        return
    agents = [*dict.fromkeys(marked.step_to_agent.values())]
    what = ", ".join([*agents, *(f"{kind} {option}" for kind, option in marked.choices.items())])
    sys.stdout.write(f"marked {run} with {marked.reward:g}: {for_terminal(what)}\n")
