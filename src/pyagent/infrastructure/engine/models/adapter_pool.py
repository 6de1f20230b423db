"""One model's adapters in memory: loaded when a request names them, let go when others need the bytes.

What one takes is reserved in the ledger before it is loaded. Users are counted: one in use stays, an idle one goes when
the ledger asks, the one used longest ago first. Loading runs in a thread of its own: a caller who gives up leaves the
load to the others that wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyagent.core.errors import ModelError, UnsupportedError
from pyagent.core.runners.adapters import AdaptingRunner
from pyagent.infrastructure.engine.models.adapter_digest import adapter_id_of
from pyagent.infrastructure.engine.stats import AdapterStats

if TYPE_CHECKING:
    from pyagent.core.runners.adapters import OpenedAdapter
    from pyagent.core.runners.runner import ModelRunner
    from pyagent.infrastructure.engine.memory.ledger import Reclaim, Reservation

logger = logging.getLogger(__name__)

Reserve = Callable[[str, int, "Reclaim | None"], "Reservation"]
"""Hold bytes in an account. Raises `CapacityError`."""


@dataclass(slots=True, eq=False)
class _Entry:
    """An adapter. `claimed_id` is its id from before it is loaded until after it is removed."""

    key: str
    adapter_id: int = 0
    claimed_id: int = 0
    loading: Future[int] | None = None
    users: int = 0
    num_requests: int = 0
    num_loads: int = 0
    load_seconds: float = 0.0
    rank: int = 0
    held: Reservation | None = None


class AdapterPool:
    """Adapters by their keys in `engine.adapters`, for one loaded model."""

    def __init__(
        self, model: str, runner: ModelRunner, paths: Mapping[str, str], reserve: Reserve, most_tokens: int
    ) -> None:
        """`most_tokens` is the largest step's."""
        self._model = model
        self._runner = runner
        self._paths = paths
        self._reserve = reserve
        self._most_tokens = most_tokens
        self._entries: dict[str, _Entry] = {}
        self._workspace: Reservation | None = None
        self._lock = threading.Lock()
        self._growing = threading.Lock()
        self._moving = threading.Lock()  # what is loaded is not removed for one that had the same content before

    @contextlib.asynccontextmanager
    async def using(self, key: str) -> AsyncGenerator[int]:
        """The id of an adapter, loaded when it is not, and kept as long as the block runs; 0 without one.

        Raises `ModelError` for one that cannot be used with the model, `CapacityError` when there is no room now.
        """
        if not key:
            yield 0
            return
        entry, coming = self._enter(key)
        try:
            # Shielded: a request that is cancelled here leaves the load to the others that wait for it.
            is_coming = isinstance(coming, Future)
            yield await asyncio.shield(asyncio.wrap_future(coming)) if is_coming else coming
        finally:
            with self._lock:
                entry.users -= 1

    def ids(self) -> list[int]:
        """Return the ids of the adapters in memory."""
        with self._lock:
            return [entry.adapter_id for entry in self._entries.values() if entry.adapter_id]

    def stats(self) -> dict[str, AdapterStats]:
        """Return what was asked of each adapter that was, by its name. Any thread."""
        with self._lock:
            return {
                key.rpartition(":")[2]: AdapterStats(
                    num_requests=entry.num_requests,
                    num_running=entry.users,
                    num_loads=entry.num_loads,
                    load_seconds=entry.load_seconds,
                    rank=entry.rank,
                    num_bytes=0 if entry.held is None else entry.held.num_bytes,
                )
                for key, entry in self._entries.items()
            }

    def release(self) -> None:
        """Give the bytes of all back: the model is closed."""
        with self._lock:
            held = [
                one for one in (self._workspace, *(entry.held for entry in self._entries.values())) if one is not None
            ]
            self._entries.clear()
        for reservation in held:
            reservation.release()

    def _enter(self, key: str) -> tuple[_Entry, int | Future[int]]:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry(key))
            entry.users += 1
            entry.num_requests += 1
            if entry.held is not None:
                entry.held.touch()
            return entry, entry.adapter_id or self._load_of(entry)

    def _load_of(self, entry: _Entry) -> Future[int]:
        if entry.loading is None:
            entry.loading = Future()
            entry.loading.set_running_or_notify_cancel()
            name = f"pyagent-load-{self._model}:{entry.key}"
            threading.Thread(target=self._fulfil, args=(entry, entry.loading), name=name, daemon=True).start()
        return entry.loading

    def _fulfil(self, entry: _Entry, loading: Future[int]) -> None:
        started = time.perf_counter()
        try:
            adapter_id, held, rank = self._load(entry)
        except BaseException as error:  # noqa: BLE001 - the requests that wait must get it
            with self._lock:
                entry.loading = None
            loading.set_exception(error)
            return
        with self._lock:
            entry.adapter_id, entry.held, entry.loading, entry.rank = adapter_id, held, None, rank
            entry.num_loads += 1
            entry.load_seconds = time.perf_counter() - started
            is_gone = self._entries.get(entry.key) is not entry
        if is_gone:  # the model was closed meanwhile
            held.release()
        logger.info("the adapter %s of %s is loaded in %.1f s", entry.key, self._model, entry.load_seconds)
        loading.set_result(adapter_id)

    def _load(self, entry: _Entry) -> tuple[int, Reservation, int]:
        runner, path = self._runner, Path(self._paths[entry.key]).expanduser()
        if not isinstance(runner, AdaptingRunner):
            text = f"native:{self._model} runs on a runner without adapters; set engine.runner to cpu for {entry.key!r}"
            raise UnsupportedError(text, backend=f"native:{self._model}", fields=["model"])
        runner.open_adapter(path)  # what is no adapter is not read to its end
        adapter_id = self._id_of(path)
        opened = runner.open_adapter(path)
        account = f"adapter:{self._model}:{entry.key.rpartition(':')[2]}"
        held = self._reserve(account, opened.num_bytes, partial(self._unload, entry))
        try:
            self._hold_workspace(opened.step_bytes(self._most_tokens))
            with self._moving:
                self._move_in(entry, runner, opened, adapter_id)
        except BaseException:
            held.release()
            raise
        return adapter_id, held, opened.rank

    def _move_in(self, entry: _Entry, runner: AdaptingRunner, opened: OpenedAdapter, adapter_id: int) -> None:
        entry.claimed_id = adapter_id
        opened.load(adapter_id)
        path = Path(self._paths[entry.key]).expanduser()
        if self._id_of(path) != adapter_id:
            entry.claimed_id = 0
            runner.remove_adapter(adapter_id)
            raise ModelError(f"{path} was changed while it was loaded; ask again", model=self._model)

    def _id_of(self, path: Path) -> int:
        try:
            return adapter_id_of(path)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error}", model=self._model) from error

    def _hold_workspace(self, num_bytes: int) -> None:
        """Hold what steps take for adapters, once for all of them; it stays with the model."""
        with self._growing:
            if self._workspace is None:
                self._workspace = self._reserve(f"adapters:{self._model}", num_bytes, None)
            elif num_bytes > self._workspace.num_bytes:
                self._workspace.resize(num_bytes)

    def _unload(self, entry: _Entry, num_bytes: int) -> None:
        """Let an idle adapter go, as the ledger asks."""
        del num_bytes  # an adapter goes whole
        with self._moving:
            with self._lock:
                if entry.users or entry.held is None:
                    return
                held, entry.held, adapter_id, entry.adapter_id, entry.claimed_id = (
                    entry.held,
                    None,
                    entry.adapter_id,
                    0,
                    0,
                )
                is_shared = any(other.claimed_id == adapter_id for other in self._entries.values())
            if not is_shared and isinstance(self._runner, AdaptingRunner):
                self._runner.remove_adapter(adapter_id)
        held.release()
