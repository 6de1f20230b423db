"""What the `pyagent runs` commands share: the journal, a run's id as an argument, and an event as a line."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.startup import read_settings
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.infrastructure.storage.journal import SqliteJournal


def open_journal(config: Path | None = None) -> SqliteJournal:
    """Return the journal that the settings name."""
    from pyagent.assembly import make_journal

    return make_journal(read_settings(config))


def run_ids(incomplete: str) -> list[str]:
    """Return the ids of runs for the shell to complete."""
    return [run.run for run in open_journal().runs() if run.run.startswith(incomplete)]


Run = Annotated[str, typer.Argument(help="The run's id, as `pyagent runs list` shows it.", autocompletion=run_ids)]


def line_of(event: object) -> str:
    """Return an event as a line: its time, kind, step and fields."""
    import msgspec

    facts: dict[str, object] = msgspec.to_builtins(event, enc_hook=str)
    when = datetime.fromtimestamp(float(str(facts.pop("at")))).astimezone().strftime("%H:%M:%S")
    kind, step = str(facts.pop("event")), printable(str(facts.pop("step", "")))
    for name in ("run", "asked", "is_restorable"):
        facts.pop(name, None)
    shown = "  ".join(f"{name}={_short(value)}" for name, value in facts.items() if value not in (None, [], (), {}, ""))
    return f"{when}  {kind:<14} {step:<28} {shown}"


def _short(value: object) -> str:
    import msgspec

    if isinstance(value, float):
        value = round(value, 3)
    return cut(value if isinstance(value, str) else msgspec.json.encode(value).decode(), 100)


def cut(text: str, width: int) -> str:
    """Return a text on one line, no longer than `width` characters, and without what a terminal would obey."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= width else text[: width - 1] + "…"
