"""Flags that several commands share, and the settings they lead to."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pyagent.core.settings import Settings

Config = Annotated[Path | None, typer.Option("--config", help="Read this file of settings only.")]
Chain = Annotated[str | None, typer.Option("--chain", metavar="A,B", help="Backends to try, in order.")]
Model = Annotated[str | None, typer.Option("--model", help="Model for the embedded engine: a name or a file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
Files = Annotated[list[str] | None, typer.Option("--file", metavar="F", help="A file the task is about.")]


def read_settings(
    config: Path | None = None, chain: str | None = None, model: str | None = None, **more: object
) -> Settings:
    """The settings with these flags on top, and logging set up by them.

    `--model M` alone means the embedded engine with M; with a chain it is the model of the chain's `native` link.
    """
    from pyagent.core.config import load_settings

    entries = None if chain is None else [entry.strip() for entry in chain.split(",") if entry.strip()]
    overrides: dict[str, object] = {"chain": entries, **{key.replace("__", "."): value for key, value in more.items()}}
    if model is not None:
        overrides["engine.models"] = [model]
        overrides["chain"] = ["native"] if entries is None else entries
    settings = load_settings(config, overrides).settings
    _log_later(settings)
    return settings


def _log_later(settings: Settings) -> None:
    """Set up logging when the first record comes: importing structlog costs what loading the model costs."""
    root, ours = logging.getLogger(), logging.getLogger("pyagent")

    class _First(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            from pyagent.infrastructure.observability.logging import configure_logging

            root.removeHandler(self)
            configure_logging(settings.log.level, settings.log.format)
            logging.getLogger(record.name).handle(record)

    root.addHandler(_First())
    ours.setLevel(settings.log.level.upper())
