"""The loads under way in an engine, told again and again while there are any, and once more when each is over.

Knows nothing of models or files: who loads counts bytes to a `_rust.LoadProgress`, most of it in Rust, where the
interpreter's lock is free. A load that is over before it is first told is never told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from pyagent import _rust
from pyagent.core.load_progress import LoadProgress

logger = logging.getLogger("pyagent.loads")

_TELL_SECONDS = 0.5
_LOG_SECONDS = 5.0

LoadWatcher = Callable[[LoadProgress], None]
"""Takes how far a load is, in a thread of the engine's, which it must not hold up."""


@dataclass(slots=True, eq=False)
class Load:
    """A load under way. Its seconds are those since its weights are loaded; before that, since it was asked for."""

    model: str
    counter: _rust.LoadProgress = field(default_factory=_rust.LoadProgress)
    since: float = field(default_factory=time.monotonic)
    is_told: bool = False

    def expect(self, num_bytes: int) -> None:
        """Begin to load so many bytes of weights."""
        self.counter.expect(num_bytes)
        self.since = time.monotonic()

    def now(self) -> LoadProgress:
        """Return how far it is."""
        done, total = self.counter.bytes_done, self.counter.bytes_total
        seconds = time.monotonic() - self.since
        left = seconds * (total - done) / done if done else None
        return LoadProgress(model=self.model, bytes_done=done, bytes_total=total, seconds=seconds, seconds_left=left)


class LoadWatch:
    """Counts loads, and has `watch` told of them by a thread that ends with the last."""

    def __init__(self, tell_seconds: float = _TELL_SECONDS) -> None:
        """Tell the log so often, until `watch` is another."""
        self.watch: LoadWatcher = LoadLog().watch
        self._tell_seconds = tell_seconds
        self._loads: list[Load] = []
        self._is_telling = False
        self._changed = threading.Condition()

    def now(self) -> dict[str, LoadProgress]:
        """Return how far each load under way is, by its model."""
        with self._changed:
            return {load.model: load.now() for load in self._loads}

    @contextmanager
    def watching(self, model: str) -> Generator[Load]:
        """Count a load for as long as the block runs."""
        load = Load(model)
        with self._changed:
            self._loads.append(load)
            # One that has not noticed yet that all loads were over goes on with this one.
            if not self._is_telling:
                self._is_telling = True
                threading.Thread(target=self._tell, name="pyagent-load-watch", daemon=True).start()
        try:
            yield load
            load.counter.finish()
        finally:
            with self._changed:
                self._loads.remove(load)
                if load.is_told:
                    self._show(msgspec.structs.replace(load.now(), is_over=True))
                self._changed.notify_all()

    def _tell(self) -> None:
        with self._changed:
            try:
                while not self._changed.wait_for(lambda: not self._loads, self._tell_seconds):
                    for load in self._loads:
                        load.is_told = True
                        self._show(load.now())
            finally:
                self._is_telling = False

    def _show(self, load: LoadProgress) -> None:
        with suppress(Exception):  # one that cannot be told, by a handler of the log that fails, is loaded all the same
            self.watch(load)


class LoadLog:
    """Logs loads: a line for each five seconds of one, and for those who show them in another way all that is told."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}

    def watch(self, load: LoadProgress) -> None:
        """Take in how far a load is."""
        num_lines = int(load.seconds / _LOG_SECONDS)
        is_due = num_lines > self._lines.get(load.name, 0) and not load.is_over
        self._lines[load.name] = 0 if load.is_over else num_lines
        level = logging.INFO if is_due else logging.DEBUG
        logger.log(level, "loading %s: %s", load.name, load.told, extra={"load": load})
