"""One model's adapters in memory: loaded when a request names them, let go when others need the bytes.

What one takes is reserved in the ledger before it is loaded. Users are counted: one in use stays, an idle one goes when
the ledger asks, the one used longest ago first. One whose name is taken back goes when its last request ends.

Several that one request names, which add up, are one entry: it is there from its first request until it goes, since
there are more such names than can be counted for good.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.adapter_stacks import JOINT
from pyagent.core.errors import AdapterError, ModelError, RequestError, UnsupportedError
from pyagent.core.histogram import Histogram
from pyagent.core.runners.adapters import AdaptingRunner
from pyagent.infrastructure.engine.memory.shared_load import SharedLoad, arrived
from pyagent.infrastructure.engine.models.adapter_digest import stack_id_of
from pyagent.infrastructure.engine.models.adapter_names import TRIAL, own_name
from pyagent.infrastructure.engine.stats import AdapterStats
from pyagent.infrastructure.models.names import place_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pyagent.core.runners.adapters import OpenedAdapter
    from pyagent.core.runners.runner import ModelRunner
    from pyagent.infrastructure.engine.memory.ledger import Reclaim, Reservation
    from pyagent.infrastructure.engine.models.adapter_names import AdapterPaths

logger = logging.getLogger(__name__)

_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""By which requests that are over are counted: few, as each adapter has them all."""

Reserve = Callable[[str, int, "Reclaim | None"], "Reservation"]
"""Hold bytes in an account. Raises `CapacityError`."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """An adapter in memory, and what loading it took."""

    adapter_id: int
    held: Reservation
    rank: int
    seconds: float


@dataclass(slots=True, eq=False)
class _Entry:
    """An adapter, or several that add up. `claimed_id` is its id from before it is loaded until after it is removed."""

    keys: tuple[str, ...]
    load: SharedLoad[_Loaded]
    loaded: _Loaded | None = None
    claimed_id: int = 0
    users: int = 0
    is_forgotten: bool = False
    counts: AdapterStats = field(default_factory=AdapterStats)
    seconds: Histogram = field(default_factory=partial(Histogram, _SECONDS))

    @property
    def name(self) -> str:
        """The adapter's own name, without a model's; of several, `A+B`."""
        return JOINT.join(map(own_name, self.keys))

    def count(self, **more: float) -> None:
        """Add to its counts."""
        now = {name: getattr(self.counts, name) + value for name, value in more.items()}
        self.counts = msgspec.structs.replace(self.counts, **now)


class AdapterPool:
    """Adapters by their keys in `paths`, for one loaded model."""

    def __init__(
        self, model: str, runner: ModelRunner, paths: AdapterPaths, reserve: Reserve, most_tokens: int
    ) -> None:
        """`most_tokens` is the largest step's."""
        self._model = model
        self._runner = runner
        self._paths = paths
        self._reserve = reserve
        self._most_tokens = most_tokens
        self._entries: dict[tuple[str, ...], _Entry] = {}
        self._forgotten: list[_Entry] = []  # whose requests still run
        self._workspace: Reservation | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._growing = threading.Lock()
        self._moving = threading.Lock()  # what is loaded is not removed for one that had the same content before

    @contextlib.asynccontextmanager
    async def using(self, keys: tuple[str, ...]) -> AsyncGenerator[int]:
        """The id of an adapter, or of several that add up, loaded when it is not, and kept as long as the block runs.

        0 without any.

        Raises `AdapterError` for one that cannot be used with the model, `RequestError` for one that was unloaded since
        it was named, `CapacityError` when there is no room now.
        """
        if not keys:
            yield 0
            return
        started = time.perf_counter()
        entry, coming = self._enter(keys)
        try:
            yield (await arrived(coming)).adapter_id
        finally:
            with self._lock:
                entry.users -= 1
                entry.seconds.observe(time.perf_counter() - started)
                is_last = entry.is_forgotten and not entry.users
                if entry.load.running is None:
                    self._drop_idle(entry)
            if is_last:  # beside the event loop: a load may be moving in
                threading.Thread(target=self._unload, args=(entry,), name="pyagent-adapter", daemon=True).start()

    def ids(self) -> list[int]:
        """Return the ids of the adapters in memory."""
        with self._lock:
            return [entry.loaded.adapter_id for entry in self._all() if entry.loaded is not None]

    def stats(self) -> dict[str, AdapterStats]:
        """Return what was asked of each adapter that was, by its name. Any thread."""
        with self._lock:
            return {
                entry.name: msgspec.structs.replace(
                    entry.counts,
                    num_running=entry.users,
                    request_seconds=entry.seconds.total,
                    requests_within=dict(entry.seconds.buckets()),
                    num_bytes=0 if entry.loaded is None else entry.loaded.held.num_bytes,
                )
                for entry in self._entries.values()
                if not entry.keys[-1].endswith(TRIAL)
            }

    def forget(self, key: str) -> None:
        """Take back an adapter's name: what has it in memory goes, at once or when its last request ends. Blocks.

        A request that names it anew loads what the name is of then.
        """
        with self._lock:
            entries = [self._entries.pop(keys) for keys in [*self._entries] if key in keys]
            for entry in entries:
                entry.is_forgotten = True
            self._forgotten += entries
        for entry in entries:
            self._unload(entry)

    def release(self) -> None:
        """Give the bytes of all back: the model is closed."""
        with self._lock:
            self._is_closed = True
            all_held = [self._workspace, *(entry.loaded.held for entry in self._all() if entry.loaded is not None)]
            self._entries.clear()
            self._forgotten.clear()
        for reservation in all_held:
            if reservation is not None:
                reservation.release()

    def _all(self) -> list[_Entry]:
        return [*self._entries.values(), *self._forgotten]

    def _enter(self, keys: tuple[str, ...]) -> tuple[_Entry, _Loaded | Future[_Loaded]]:
        with self._lock:
            entry = self._entries.get(keys)
            if entry is None:
                load = SharedLoad[_Loaded](f"pyagent-load-{self._model}:{JOINT.join(keys)}", self._lock)
                entry = self._entries[keys] = _Entry(keys, load)
            entry.users += 1
            entry.count(num_requests=1)
            if entry.loaded is not None:
                entry.loaded.held.touch()
            steps = (partial(self._load, entry), partial(self._keep, entry), partial(self._keep_or_drop, entry))
            return entry, entry.loaded or entry.load.begin(*steps)

    def _keep(self, entry: _Entry, loaded: _Loaded) -> None:
        entry.loaded = loaded
        entry.count(num_loads=1, load_seconds=loaded.seconds)
        entry.counts = msgspec.structs.replace(entry.counts, rank=loaded.rank)

    def _keep_or_drop(self, entry: _Entry, loaded: _Loaded) -> None:
        """Let go what was loaded while its model was closed, or its name taken back and no request is left."""
        if self._is_closed:
            loaded.held.release()
        elif entry.is_forgotten:
            self._unload(entry)

    def _drop_idle(self, entry: _Entry) -> None:
        """Count several adapters no more that are neither used nor in memory; the caller holds the lock."""
        is_idle = not entry.users and entry.loaded is None
        if len(entry.keys) > 1 and is_idle and self._entries.get(entry.keys) is entry:
            del self._entries[entry.keys]

    def _load(self, entry: _Entry) -> _Loaded:
        started = time.perf_counter()
        try:
            adapter_id, held, rank = self._read(entry)
        except Exception as error:
            with self._lock:
                entry.count(num_failed_loads=1)
                self._drop_idle(entry)
            logger.warning("the adapter %s of %s is not loaded: %s", entry.name, self._model, error)
            if isinstance(error, ModelError):
                text = f"the adapter {entry.name!r} of native:{self._model} cannot be used: {error}"
                raise AdapterError(text, model=self._model, adapter=entry.name) from error
            raise
        seconds = time.perf_counter() - started
        logger.info("the adapter %s of %s is loaded in %.1f s", entry.name, self._model, seconds)
        return _Loaded(adapter_id, held, rank, seconds)

    def _read(self, entry: _Entry) -> tuple[int, Reservation, int]:
        runner, paths = self._runner, [self._path_of(key) for key in entry.keys]
        if not isinstance(runner, AdaptingRunner):
            name = entry.name
            text = f"native:{self._model} runs on a runner without adapters; set engine.runner to cpu for {name!r}"
            raise UnsupportedError(text, backend=f"native:{self._model}", fields=["model"])
        for key, path in zip(entry.keys, paths, strict=True):  # what is no adapter is not read to its end
            self._check(runner, key, path, is_alone=len(paths) == 1)
        paths, adapter_id = self._identified(paths)
        opened = runner.open_adapter(paths)
        held = self._reserve(f"adapter:{self._model}:{entry.name}", opened.num_bytes, partial(self._evict, entry))
        try:
            self._hold_workspace(opened.step_bytes(self._most_tokens))
            with self._moving:
                self._move_in(entry, runner, opened, paths, adapter_id)
        except BaseException:
            held.release()
            raise
        return adapter_id, held, opened.rank

    def _check(self, runner: AdaptingRunner, key: str, path: Path, *, is_alone: bool) -> None:
        """Open one adapter. Raises `ModelError`, which names it where it is one of several."""
        try:
            opened = runner.open_adapter([path])
        except ModelError as error:
            if is_alone:
                raise
            raise ModelError(f"{own_name(key)!r}: {error}", model=self._model) from error
        if opened.is_dora and not is_alone:
            text = f"{own_name(key)!r} is a DoRA, which resizes what others add and does not add up; name it alone"
            raise ModelError(text, model=self._model)

    def _path_of(self, key: str) -> Path:
        path = self._paths.all.get(key)
        if path is None:
            text = f"the adapter {own_name(key)!r} of native:{self._model} was unloaded"
            raise RequestError(text, param="model", code="model_not_found")
        return place_of(path)

    def _move_in(
        self, entry: _Entry, runner: AdaptingRunner, opened: OpenedAdapter, paths: Sequence[Path], adapter_id: int
    ) -> None:
        entry.claimed_id = adapter_id
        try:
            opened.load(adapter_id)
            if self._identified(paths)[1] == adapter_id:
                return
            runner.remove_adapter(adapter_id)
        except BaseException:
            entry.claimed_id = 0
            raise
        entry.claimed_id = 0
        shown = " or ".join(map(str, paths))
        raise ModelError(f"{shown} was changed while it was loaded; ask again", model=self._model)

    def _identified(self, paths: Sequence[Path]) -> tuple[list[Path], int]:
        """Return the files in the order in which they are loaded, and the id of their content."""
        try:
            return stack_id_of(paths)
        except OSError as error:
            raise ModelError(f"{' or '.join(map(str, paths))} cannot be read: {error}", model=self._model) from error

    def _hold_workspace(self, num_bytes: int) -> None:
        """Hold what steps take for adapters, once for all of them; it stays with the model."""
        with self._growing:
            if self._workspace is None:
                self._workspace = self._reserve(f"adapters:{self._model}", num_bytes, None)
            elif num_bytes > self._workspace.num_bytes:
                self._workspace.resize(num_bytes)

    def _evict(self, entry: _Entry, num_bytes: int) -> None:
        """Let an idle adapter go, as the ledger asks."""
        del num_bytes  # an adapter goes whole
        if self._unload(entry):
            with self._lock:
                entry.count(num_evictions=1)

    def _unload(self, entry: _Entry) -> bool:
        """Let an adapter go unless it is used; return whether it went."""
        with self._moving:
            with self._lock:
                if entry.users:
                    return False
                if entry in self._forgotten and entry.load.running is None:
                    self._forgotten.remove(entry)
                loaded, entry.loaded, entry.claimed_id = entry.loaded, None, 0
                self._drop_idle(entry)
                if loaded is None:
                    return False
                is_shared = any(other.claimed_id == loaded.adapter_id for other in self._all())
            if not is_shared and isinstance(self._runner, AdaptingRunner):
                self._runner.remove_adapter(loaded.adapter_id)
        loaded.held.release()
        return True
