"""`pyagent memory`: the notes that agents keep across runs."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import for_terminal, write_json
from pyagent.cli.run_journal import cut, open_journal

if TYPE_CHECKING:
    from pyagent.core.fleet.notes import Note

app = typer.Typer(
    add_completion=False, help="Look at what agents keep across runs, and delete it.", no_args_is_help=True
)
Tenant = Annotated[
    str, typer.Option("--tenant", metavar="NAME", help="Whose notes: the name of a server's key; without it your own.")
]
NoteId = Annotated[str, typer.Argument(metavar="NOTE", help="A note's id, as `pyagent memory list` shows it.")]


@app.command("list")
def list_notes(tenant: Tenant = "", as_json: AsJson = False, config: Config = None) -> None:
    """List the notes, oldest first, and say which other tenants have some."""
    memory = open_journal(config).memory
    notes = memory.notes(tenant)
    if as_json:
        write_json(notes)
        return
    for note in notes:
        when = datetime.fromtimestamp(note.at).astimezone().strftime("%Y-%m-%d %H:%M")
        sys.stdout.write(f"{note.id}  {when}  {note.importance:.1f}  {for_terminal(cut(note.text, 90))}\n")
    if not notes:
        sys.stdout.write("no notes: agents keep some by the tool `remember`, with scope `fleet`\n")
    if others := [name for name in memory.tenants() if name != tenant]:
        sys.stdout.write(f"others with notes (--tenant): {', '.join(name or '(your own)' for name in others)}\n")


@app.command()
def show(note: NoteId, tenant: Tenant = "", as_json: AsJson = False, config: Config = None) -> None:
    """Show a whole note."""
    found = _found(note, tenant, config)
    if as_json:
        write_json(found)
        return
    sys.stdout.write(
        f"by {found.agent} in {found.run}, importance {found.importance:.1f}\n{for_terminal(found.text)}\n"
    )


def _found(note: str, tenant: str, config: Path | None) -> Note:
    from pyagent.core.fleet.agent import unknown_name

    notes = {each.id: each for each in open_journal(config).memory.notes(tenant)}
    if note not in notes:
        raise unknown_name("note", note, list(notes))
    return notes[note]


@app.command("rm")
def remove(
    notes: Annotated[list[str], typer.Argument(metavar="NOTE...", help="Ids of notes.")],
    tenant: Tenant = "",
    config: Config = None,
) -> None:
    """Delete notes."""
    memory = open_journal(config).memory
    for note in notes:
        memory.remove(tenant, note)
        sys.stdout.write(f"deleted {note}\n")


@app.command()
def clear(tenant: Tenant = "", config: Config = None) -> None:
    """Delete all notes of a tenant."""
    sys.stdout.write(f"deleted {open_journal(config).memory.clear(tenant)} notes\n")
