"""Flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path | None, typer.Option("--config", help="Read this file of settings only.")]
Chain = Annotated[str | None, typer.Option("--chain", metavar="A,B", help="Backends to try, in order.")]
Model = Annotated[str | None, typer.Option("--model", help="Model for the embedded engine: a name or a file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
Files = Annotated[list[str] | None, typer.Option("--file", metavar="F", help="A file the task is about.")]
