"""`pyagent runs replay`: a past run shown again as it happened, or its agents' code checked against its journal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.run_journal import Run, open_journal
from pyagent.cli.startup import read_settings
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.core.fleet.events import Event
    from pyagent.core.fleet.replay_check import ReplayReport


def replay(
    run: Run,
    speed: Annotated[
        float, typer.Option("--speed", min=0, help="How many times as fast as it happened; 0 shows it at once.")
    ] = 1.0,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Show nothing, but run the agents' code again on the journal and tell the first difference."
        ),
    ] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show a run again as it happened, and its result; with --check, whether its agents' code still does the same."""
    if check:
        _check(run, as_json=as_json, config=config)
        return
    from pyagent.cli.run import write_results
    from pyagent.cli.view import make_view
    from pyagent.core.fleet.events import RunFailed

    journal = open_journal(config)
    events = [record.event for record in journal.replay(run)]
    view = make_view(as_json=as_json)
    with view:
        for event in _in_time(events, speed):
            view.show(event)
    if as_json:
        return
    write_results(view.progress)
    end = events[-1] if events else None
    if isinstance(end, RunFailed):
        sys.stdout.write(f"\n{run} ended without a result: {printable(end.error)}\n")


def _in_time(events: Iterable[Event], speed: float) -> Iterable[Event]:
    """Yield each event as long after the one before it as it came."""
    before: float | None = None
    for event in events:
        if speed and before is not None and event.at > before:
            time.sleep((event.at - before) / speed)
        before = event.at
        yield event


def _check(run: str, *, as_json: bool, config: Path | None) -> None:
    from pyagent.cli.event_loop import run_to_end
    from pyagent.fleet import Fleet

    settings = read_settings(config)

    async def work() -> None:
        async with Fleet(settings) as fleet:
            _tell(await fleet.check_replay(run), as_json=as_json)

    run_to_end(work())


def _tell(report: ReplayReport, *, as_json: bool) -> None:
    """Write what was found; raises `ReplayError` where there is a difference."""
    from pyagent.cli.output import for_terminal, write_json
    from pyagent.core.errors import ReplayError

    if as_json:
        write_json(report)
    elif not report.difference:
        did = f"{report.num_agents} agents ran again, {report.num_calls} calls were answered by the journal"
        sys.stdout.write(f"{report.run}: the code does what it did: {did}\n")
        for what in report.unchecked:
            sys.stdout.write(f"  not checked, as only a server could say: {for_terminal(what)}\n")
    if report.difference:
        where = f" (step {report.step})" if report.step else ""
        raise ReplayError(f"{report.run}{where}: {report.difference}", agent="", step=report.step, call="")
