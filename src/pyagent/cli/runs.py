"""`pyagent runs`: what past runs did, from the journal; and which of them are kept."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import Colour, coloured, for_terminal, write_json, write_json_line
from pyagent.cli.run_control import add_commands
from pyagent.cli.run_gate import gate
from pyagent.cli.run_journal import Run, cut, open_journal, run_ids
from pyagent.cli.run_marks import mark
from pyagent.cli.run_show import show, warn_of_damage
from pyagent.cli.run_stats import stats
from pyagent.cli.startup import read_settings

app = typer.Typer(add_completion=False, help="Look at runs, go on with them, and delete them.", no_args_is_help=True)

_STATE_COLOURS: dict[str, Colour] = {"done": "green", "failed": "red", "damaged": "red", "running": "cyan"}


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many, newest first.")] = 20,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List the runs kept, newest first."""
    runs = open_journal(config).runs()[:limit]
    if as_json:
        write_json(runs)
        return
    if not runs:
        sys.stdout.write("no runs yet: pyagent run TASK\n")
    for run in runs:
        when = datetime.fromtimestamp(run.started_at).astimezone().strftime("%Y-%m-%d %H:%M")
        seconds = f"{run.totals.seconds:6.1f} s" if run.totals else "        "
        state = coloured(f"{run.state:<12}", _STATE_COLOURS.get(run.state, "yellow"))
        sys.stdout.write(f"{run.run:<12} {when}  {state} {seconds}  {cut(run.task, 80)}\n")


app.command()(show)


@app.command()
def result(
    run: Annotated[
        str | None, typer.Argument(help="The run's id; without one the newest.", autocompletion=run_ids)
    ] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Write the whole result of a run that is done, and nothing else."""
    from pyagent.cli.event_loop import run_to_end
    from pyagent.cli.progress import as_json as json_of
    from pyagent.cli.progress import as_text
    from pyagent.core.errors import RequestError
    from pyagent.fleet import Fleet

    settings = read_settings(config)

    async def work() -> None:
        async with Fleet(settings) as fleet:
            name = run or next((row.run for row in fleet.runs()), None)
            if name is None:
                raise RequestError("there are no runs yet: pyagent run TASK", param="run")
            output = fleet.result(name)
        if as_json:
            write_json_line(json_of(output))
        else:
            sys.stdout.write(f"{for_terminal(as_text(output))}\n")

    run_to_end(work())


@app.command()
def export(
    run: Run,
    file: Annotated[Path | None, typer.Argument(help="Where to; without one to standard output.")] = None,
    config: Config = None,
) -> None:
    """Write a run as JSON lines: first its summary and what it was asked, then its numbered events."""
    from pyagent.core.errors import RequestError
    from pyagent.infrastructure.private_files import opened_private

    journal = open_journal(config)
    kept = journal.read(run)
    summary = next((row for row in journal.runs() if row.run == run), None)
    head = {"run": run, "summary": summary, "spec": journal.spec(run), "missing": kept.missing}
    warn_of_damage(run, kept)
    if file is None:
        for part in (head, *kept.records):
            write_json_line(_json(part))
        return
    try:
        with open(file, "wb", opener=opened_private) as exported:
            exported.writelines(_json(part) + b"\n" for part in (head, *kept.records))
    except OSError as error:
        raise RequestError(f"{file} cannot be written: {error.strerror}", param="file") from error
    sys.stdout.write(f"wrote {run} to {file}: {len(kept.records)} records\n")


def _json(part: object) -> bytes:
    import msgspec

    return msgspec.json.encode(part, enc_hook=str)


@app.command("rm")
def remove(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids of runs.", autocompletion=run_ids)],
    config: Config = None,
) -> None:
    """Delete runs, with all that was asked and answered in them."""
    journal = open_journal(config)
    for run in runs:
        journal.remove(run)
        sys.stdout.write(f"deleted {run}\n")


@app.command()
def prune(
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=0, help="Keep the newest N; else as journal.max_runs says.")
    ] = None,
    days: Annotated[
        float | None,
        typer.Option("--days", metavar="D", min=0, help="Delete what is older; else as journal.max_age_days says."),
    ] = None,
    config: Config = None,
) -> None:
    """Delete old runs now; new runs do so by themselves, as the settings say."""
    settings = read_settings(config).journal
    max_runs = settings.max_runs if keep is None else keep
    max_age_days = settings.max_age_days if days is None else days
    deleted = open_journal(config).prune(max_runs, max_age_days)
    sys.stdout.write(f"deleted {len(deleted)} runs\n")


app.command()(stats)
app.command()(mark)
add_commands(app)
app.command()(gate)
