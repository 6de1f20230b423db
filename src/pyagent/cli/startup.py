"""What commands do before they begin: settings, logging, and the first download, with its progress.

Imports no parser of command lines: `pyagent serve` starts without one.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pyagent.core.sizes import format_bytes

if TYPE_CHECKING:
    from pyagent.core.settings import Settings
    from pyagent.infrastructure.models.store import Fetch, Watcher


def read_settings(
    config: Path | None = None, chain: str | None = None, model: str | None = None, **more: object
) -> Settings:
    """Return the settings with these flags on top, and logging set up by them, as `read_layers` has them."""
    return read_layers(config, chain, model, **more)[0]


def read_layers(
    config: Path | None = None, chain: str | None = None, model: str | None = None, **more: object
) -> tuple[Settings, dict[str, str]]:
    """Return the settings with these flags on top, and where each that is no default came from; logging set up by them.

    `--model M` alone means the embedded engine with M; with a chain it is the model of the chain's `native` link.
    """
    from pyagent.core.config import load_settings

    entries = None if chain is None else [entry.strip() for entry in chain.split(",") if entry.strip()]
    overrides: dict[str, object] = {"chain": entries, **{key.replace("__", "."): value for key, value in more.items()}}
    if model is not None:
        overrides["engine.models"] = [model]
        overrides["chain"] = ["native"] if entries is None else entries
    loaded = load_settings(config, overrides)
    if model is not None and (name := _model_name(model, loaded.settings)) != model:
        loaded = load_settings(config, overrides | {"engine.models": [name]})
    _log_later(loaded.settings)
    origins = {key: source for key, source in loaded.sources.items() if source != "default"}
    logging.getLogger("pyagent.settings").info("settings that are not defaults", extra={"origins": origins})
    return loaded.settings, origins


def _model_name(model: str, settings: Settings) -> str:
    """Return the name or path of the model that `--model` means, which may say less, as requests may."""
    from pyagent.cli.one_model import resolved_name
    from pyagent.infrastructure.models.names import is_path
    from pyagent.infrastructure.models.store import ModelStore

    return model if is_path(model) else resolved_name(model, ModelStore.of(settings))


class _First(logging.Handler):
    """Sets logging up when the first record comes: importing structlog costs what loading the model costs."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def emit(self, record: logging.LogRecord) -> None:
        """Log it as the settings say."""
        try:
            set_up_logging(self._settings)
        except OSError as error:  # no descriptors to read the modules with: the record must not be lost for it
            sys.stderr.write(f"{record.levelname.lower()}: {record.getMessage()} (logging: {error})\n")
        else:
            logging.getLogger(record.name).handle(record)


def _log_later(settings: Settings) -> None:
    logging.getLogger().addHandler(_First(settings))
    logging.getLogger("pyagent").setLevel(settings.log.level.upper())


def set_up_logging(settings: Settings) -> None:
    """Set up logging now. A server must not wait for its first record: it may come when no file can be opened."""
    from pyagent.infrastructure.observability.logging import configure_logging

    root = logging.getLogger()
    for first in [handler for handler in root.handlers if isinstance(handler, _First)]:
        root.removeHandler(first)
    configure_logging(settings.log.level, settings.log.format)


def fetch_first_model(settings: Settings) -> None:
    """Fetch the model of the chain's first link, shown on standard error, when that is `native` and lacks its model.

    For commands with a display of their own, before it begins. Links further down fetch theirs when they are reached.
    Raises `ConfigError` for a chain that cannot be made, before anything is fetched.
    """
    from pyagent.assembly import make_chain, make_host
    from pyagent.core.backends import LinkSpec
    from pyagent.infrastructure.models.names import is_path
    from pyagent.infrastructure.models.store import ModelStore

    link = LinkSpec.parse(_first_entry(settings)) if settings.chain else None
    if link is None or link.scheme != "native":
        return
    name = link.target or next(iter(settings.engine.models), "")
    if not name or is_path(name) or ModelStore.of(settings).find(name):
        return
    make_chain(settings, make_host(settings))
    with terminal_progress("the embedded engine needs a model; this happens once") as watch:
        ModelStore.of(settings, watch=watch).pull(name)


def _first_entry(settings: Settings) -> str:
    """Return the first link; of `auto`, the first that is there."""
    entry = settings.links[0].use
    if entry != "auto":
        return entry
    from pyagent.infrastructure.backends.found import is_before_native

    if not is_before_native():
        return "native"
    from pyagent.assembly import make_host, present_links

    return present_links(settings, make_host(settings))[0].use


@contextlib.contextmanager
def terminal_progress(reason: str) -> Generator[Watcher]:
    """A watcher for `ModelStore` that says what is fetched and why: a bar on a terminal, plain lines in a pipe.

    Writes to standard error, so that a command's output stays its own.
    """
    if not sys.stderr.isatty():
        yield PlainFetchProgress(reason).show
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def show(fetch: Fetch) -> None:
            if fetch.name not in tasks:
                console.print(_announcement(fetch, reason), markup=False, soft_wrap=True)
                tasks[fetch.name] = progress.add_task(fetch.name, total=fetch.total_bytes or None)
            progress.update(tasks[fetch.name], completed=fetch.done_bytes)

        yield show


@contextlib.contextmanager
def fetches_shown(show: Watcher) -> Generator[None]:
    """Tell `show` of the models that are fetched when something needs them, instead of the log."""
    logger = logging.getLogger("pyagent.models")

    class _Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(cast("Fetch", record.__dict__["fetch"]))

    handler, before = _Shown(), (logger.level, logger.propagate)
    handler.addFilter(lambda record: hasattr(record, "fetch"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class PlainFetchProgress:
    """What is fetched in a line, then a line for each quarter of it."""

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self._quarters: dict[str, int] = {}

    def show(self, fetch: Fetch) -> None:
        """Show a fetch's progress."""
        quarter = 4 * fetch.done_bytes // fetch.total_bytes if fetch.total_bytes else 0
        before = self._quarters.get(fetch.name)
        if before is None:
            sys.stderr.write(f"{_announcement(fetch, self._reason)}\n")
        elif quarter > before:
            sys.stderr.write(f"{fetch.name}: {format_bytes(fetch.done_bytes)} of {format_bytes(fetch.total_bytes)}\n")
        self._quarters[fetch.name] = max(quarter, before or 0)


def _announcement(fetch: Fetch, reason: str) -> str:
    size = f", {format_bytes(fetch.total_bytes)}" if fetch.total_bytes else ""
    about = f" ({fetch.about})" if fetch.about else ""
    return f"fetching {fetch.name}{about}{size}, from {fetch.origin} into {fetch.folder}: {reason}"
