"""`pyagent runs`: what past runs did, from the journal."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import write_json
from pyagent.cli.startup import read_settings

app = typer.Typer(add_completion=False, help="Look at past runs.", no_args_is_help=True)


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many, newest first.")] = 20,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List the runs kept, newest first."""
    from pyagent.assembly import make_journal

    runs = make_journal(read_settings(config)).runs()[:limit]
    if as_json:
        write_json(runs)
        return
    if not runs:
        sys.stdout.write("no runs yet: pyagent run TASK\n")
    for run in runs:
        when = datetime.fromtimestamp(run.started_at).astimezone().strftime("%Y-%m-%d %H:%M")
        seconds = f"{run.totals.seconds:6.1f} s" if run.totals else "        "
        sys.stdout.write(f"{run.run:<12} {when}  {run.state:<10} {seconds}  {' '.join(run.task.split())[:80]}\n")


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="The run's id, as `pyagent runs list` shows it.")],
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show everything a run did, in order."""
    import msgspec

    from pyagent.assembly import make_journal

    records = make_journal(read_settings(config)).replay(run)
    for record in records:
        line = msgspec.json.encode(record.event, enc_hook=str).decode() if as_json else _line(record.event)
        sys.stdout.write(line + "\n")


def _line(event: object) -> str:
    """An event for people: when, what, who, and its facts."""
    import msgspec

    facts: dict[str, object] = msgspec.to_builtins(event, enc_hook=str)
    when = datetime.fromtimestamp(float(str(facts.pop("at")))).astimezone().strftime("%H:%M:%S")
    kind, step = str(facts.pop("event")), str(facts.pop("step", ""))
    facts.pop("run", None)
    shown = "  ".join(f"{name}={_short(value)}" for name, value in facts.items() if value not in (None, [], {}, ""))
    return f"{when}  {kind:<14} {step:<28} {shown}"


def _short(value: object) -> str:
    import msgspec

    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:99] + "…"
