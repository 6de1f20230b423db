"""Graphs on the command line: read from a file, and shown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pyagent.cli.output import for_terminal

if TYPE_CHECKING:
    from pyagent.core.fleet.steps import Step


class GraphForm(StrEnum):
    """How a graph is written."""

    TREE = "tree"
    MERMAID = "mermaid"


def read_graph_file(file: Path, task: str) -> list[Step]:
    """Return the steps of a graph in TOML; raises `RequestError` for a file that is none."""
    from pyagent.core.errors import RequestError
    from pyagent.core.fleet.graph_file import read_graph

    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}", param="graph") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{file} is not text in UTF-8", param="graph") from error
    return read_graph(text, task, file.parent)


def write_graph(steps: Sequence[Step] | None, form: GraphForm) -> None:
    """Write a graph."""
    from pyagent.core.fleet.graph_text import mermaid_lines, tree_lines

    if steps is None:
        raise typer.BadParameter("there is no graph to show; --graph FILE names one", param_hint="--show")
    lines = tree_lines(steps) if form is GraphForm.TREE else mermaid_lines(steps)
    sys.stdout.write("".join(f"{for_terminal(line)}\n" for line in lines))
