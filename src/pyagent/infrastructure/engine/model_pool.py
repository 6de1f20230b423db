"""The models of this process: loaded when asked for, shared by all who ask, and let go when others need the memory.

A model's weights and KV memory are reserved in the ledger before it is loaded. Users are counted; a model nobody uses
may be unloaded by the ledger, the one used longest ago first, and one in use never is. Loading runs in a thread of its
own: a caller who gives up, or whose event loop ends, does not make the next one load again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyagent import _rust
from pyagent.core.errors import CapacityError, ModelError
from pyagent.infrastructure.engine.ledger import Ledger, Reservation, megabytes
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.slabs import SLAB_BYTES
from pyagent.infrastructure.models.describe import ModelDescription, describe

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.model import LoadedModel

_LEAST_KV_TOKENS = 512
"""A model is not loaded with room for fewer tokens than this, or than its context."""
_PATIENCE_SECONDS = 30.0
"""How long loading waits for other models to become idle when memory is short."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A model by name. `users` counts those who wait for it too."""

    name: str
    model: LoadedModel | None = None
    loading: Future[LoadedModel] | None = None
    users: int = 0
    held: list[Reservation] = field(default_factory=list[Reservation])


class ModelPool:
    """Models by name, in the memory of one ledger."""

    def __init__(self, locate: Callable[[str], Path], options: EngineOptions, ledger: Ledger) -> None:
        """`locate` finds a model's file, fetching it if need be; it may block and raise `ModelError`."""
        self.ledger = ledger
        self._locate = locate
        self._options = options
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Condition()
        self._is_closed = False

    def loaded(self) -> dict[str, LoadedModel]:
        """The models in memory now, by name."""
        with self._lock:
            return {name: entry.model for name, entry in self._entries.items() if entry.model is not None}

    @contextlib.asynccontextmanager
    async def using(self, name: str) -> AsyncGenerator[LoadedModel]:
        """The model, loaded when it is not, and kept as long as the block runs.

        Raises `ModelError` when its file cannot be run or can never fit, `CapacityError` when there is no room now.
        """
        entry, coming = self._enter(name)
        try:
            if isinstance(coming, Future):
                # Shielded: whoever is cancelled here leaves the load to those who wait with it.
                coming = await asyncio.shield(asyncio.wrap_future(coming))
            yield coming
        finally:
            self._leave(entry)

    def give_back(self, level: int) -> None:
        """Free the KV memory of models that nobody uses (1), or unload them (2)."""
        with self._lock:
            entries = list(self._entries.values())
        for entry in entries:
            if level > 1:
                self._unload(entry)
            elif entry.model is not None and not entry.users:
                entry.model.drop_kv()

    def close(self) -> None:
        """Unload everything, also what is in use (its requests end); waits for what is loading. Safe to call twice."""
        with self._lock:
            self._is_closed = True
            entries = list(self._entries.values())
            self._lock.notify_all()
        for entry in entries:
            if entry.loading is not None:
                entry.loading.exception()
            self._unload(entry, is_forced=True)

    def _enter(self, name: str) -> tuple[_Entry, LoadedModel | Future[LoadedModel]]:
        with self._lock:
            if self._is_closed:
                raise CapacityError("the engine is closed; make a new one")
            entry = self._entries.setdefault(name, _Entry(name))
            entry.users += 1
            for reservation in entry.held:
                reservation.touch()
            if entry.model is not None:
                return entry, entry.model
            if entry.loading is None:
                entry.loading = Future()
                entry.loading.set_running_or_notify_cancel()
                threading.Thread(
                    target=self._fulfil, args=(entry, entry.loading), name=f"pyagent-load-{name}", daemon=True
                ).start()
            return entry, entry.loading

    def _leave(self, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            self._lock.notify_all()

    def _fulfil(self, entry: _Entry, loading: Future[LoadedModel]) -> None:
        """Load, in a thread of its own."""
        held: list[Reservation] = []
        try:
            model = self._load(entry, held)
        except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
            self._give_back(held)
            with self._lock:
                entry.loading = None
            loading.set_exception(error)
            return
        with self._lock:
            entry.model, entry.held, entry.loading = model, held, None
        loading.set_result(model)

    def _load(self, entry: _Entry, held: list[Reservation]) -> LoadedModel:
        path = self._locate(entry.name)
        options = self._options
        about = describe(path, kv_type=options.cpu.kv_type)
        most_kv = _most_kv(about, options, self.ledger.total_bytes)
        least_kv = min(most_kv, about.kv_bytes(min(_LEAST_KV_TOKENS, about.context_length)))
        if about.weight_bytes + least_kv > self.ledger.total_bytes:
            raise ModelError(
                f"{entry.name} needs {megabytes(about.weight_bytes)} for its weights and {megabytes(least_kv)} for KV, "
                f"but the engine may use {megabytes(self.ledger.total_bytes)}; raise engine.memory or take a smaller "
                "model",
                model=entry.name,
            )
        # KV memory comes first in `held`, and so is asked before the whole model goes.
        kv = self._reserve(f"kv:{entry.name}", least_kv, partial(self._shrink_kv, entry), held)
        weights = self._reserve(f"weights:{entry.name}", about.weight_bytes, partial(self._unload_if_idle, entry), held)
        kv.try_resize(min(most_kv, max(least_kv, SLAB_BYTES)))
        grammars = self._reserve(f"grammars:{entry.name}", 0, partial(self._forget_grammars, entry), held)
        runner = CpuRunner(path, replace(options.cpu, kv_bytes=most_kv), kv)
        # Imported only now: a server that starts has the interpreter for itself while the weights are read.
        from pyagent.infrastructure.engine.model import LoadedModel

        model = LoadedModel(runner, path, options, grammars)
        _rust.trim_memory()  # reading a vocabulary leaves 5 MiB that nobody uses
        try:
            weights.resize(model.runner.info["weight_bytes"])  # the header's size is an estimate
        except CapacityError:
            model.close()
            raise
        return model

    def _reserve(
        self, account: str, num_bytes: int, reclaim: Callable[[int], None], held: list[Reservation]
    ) -> Reservation:
        """Memory, waited for until other models are idle, for a while."""
        patience_ends = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                reservation = self.ledger.reserve(account, num_bytes, reclaim)
            except CapacityError:
                with self._lock:
                    left = patience_ends - time.monotonic()
                    if self._is_closed or left <= 0:
                        raise
                    self._lock.wait(min(left, 1.0))
                continue
            held.append(reservation)
            return reservation

    def _shrink_kv(self, entry: _Entry, num_bytes: int) -> None:
        model = entry.model
        if model is not None:
            model.runner.give_back(num_bytes)

    def _forget_grammars(self, entry: _Entry, num_bytes: int) -> None:
        del num_bytes  # they go whole
        model = entry.model
        if model is not None:
            model.grammars.give_back()

    def _unload_if_idle(self, entry: _Entry, num_bytes: int) -> None:
        del num_bytes  # a model goes whole
        self._unload(entry)

    def _unload(self, entry: _Entry, *, is_forced: bool = False) -> None:
        with self._lock:
            if entry.model is None or (entry.users and not is_forced):
                return
            model, entry.model = entry.model, None
            held, entry.held = entry.held, []
        model.close()
        del model  # the memory is free when nobody refers to the model
        self._give_back(held)

    def _give_back(self, held: list[Reservation]) -> None:
        for reservation in held:
            reservation.release()
        with self._lock:
            self._lock.notify_all()


def _most_kv(about: ModelDescription, options: EngineOptions, total_bytes: int) -> int:
    """What KV memory may grow to: twice what all sequences can hold, as far as the ledger and the options go."""
    whole = about.kv_bytes(about.context_length) * options.limits.max_num_seqs * 2
    room = max(total_bytes - about.weight_bytes, 1)
    return min(whole, room) if options.cpu.kv_bytes is None else min(options.cpu.kv_bytes, room)
