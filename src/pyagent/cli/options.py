"""Flags that several commands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer


def _positive(seconds: float | None) -> float | None:
    """Refuse a time that is none; typer's own bounds let NaN and zero pass."""
    if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
        raise typer.BadParameter(f"expected seconds above 0, got {seconds:g}")
    return seconds


Config = Annotated[Path | None, typer.Option("--config", help="Read this file of settings only.")]
Chain = Annotated[str | None, typer.Option("--chain", metavar="A,B", help="Backends to try, in order.")]
ChatTemplate = Annotated[
    str | None,
    typer.Option("--chat-template", help="Chat template of the embedded engine's models: a name, a file or a text."),
]
DataParallel = Annotated[
    str | None,
    typer.Option("--data-parallel", metavar="N", help="Copies of the embedded engine, each a process; auto by layout."),
]
Port = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")]
Model = Annotated[str | None, typer.Option("--model", help="Model for the embedded engine: a name or a file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
Files = Annotated[
    list[str] | None,
    typer.Option("--file", metavar="F", help="A file the task is about; - is standard input. May be repeated."),
]
Private = Annotated[bool, typer.Option("--private", help="Only backends that stay on this machine; keeps no journal.")]
Seconds = Annotated[
    float | None, typer.Option("--seconds", metavar="S", callback=_positive, help="Longest time the run may take.")
]
