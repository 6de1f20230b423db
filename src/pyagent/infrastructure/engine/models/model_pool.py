"""The models of this process: loaded when asked for, shared by all who ask, and let go when others need the memory.

What a model takes is reserved in the ledger before it is loaded, and before the first one what the process has
without any. Users are counted; an unused model may be unloaded by the ledger, the one used longest ago first, and
one in use never is. Loading runs in a thread of its own: a caller who gives up, or whose event loop ends, does not make
the next one load again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyagent import _rust
from pyagent.core.errors import CapacityError, ConfigError, ModelError, UnsupportedError
from pyagent.core.messages import ModelTask
from pyagent.core.sizes import format_bytes
from pyagent.infrastructure.engine.encoders.encoder_pool import EncoderPool
from pyagent.infrastructure.engine.kv_moves.fingerprint import WeightFiles, find_weights
from pyagent.infrastructure.engine.load_times import LoadTimes, told
from pyagent.infrastructure.engine.load_watch import Load, LoadWatch
from pyagent.infrastructure.engine.memory.garbage import collect_frozen, freeze_heap
from pyagent.infrastructure.engine.memory.ledger import Ledger, Reclaim, Reservation
from pyagent.infrastructure.engine.memory.process import return_large_blocks
from pyagent.infrastructure.engine.memory.shared_load import SharedLoad, arrived
from pyagent.infrastructure.engine.models.adapter_names import AdapterPaths, split_name
from pyagent.infrastructure.engine.models.draft_loading import DraftFault
from pyagent.infrastructure.engine.models.drafter_loading import Found, Loaded, find_drafter
from pyagent.infrastructure.engine.models.memory_estimate import Estimates, ModelMemory
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.models.describe import task_of

if TYPE_CHECKING:
    from pyagent.core.runners.factory import DeviceMemory, ModelNeeds, RunnerFactory
    from pyagent.core.runners.runner import ModelRunner
    from pyagent.infrastructure.engine.models.loaded_model import LoadedModel

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 30.0
"""How long loading waits for other models to become idle when memory is short."""
_CLOSED = "the engine is closed; make a new one"


@dataclass(slots=True, eq=False)
class _Entry:
    """A model by name. `users` counts those who wait for it too; a load `beside` the others unloads none of them."""

    name: str
    load: SharedLoad[LoadedModel]
    model: LoadedModel | None = None
    users: int = 0
    beside: bool = False
    held: list[Reservation] = field(default_factory=list[Reservation])


class ModelPool:
    """Models by name, in the memory of one ledger."""

    def __init__(
        self,
        locate: Callable[[str], Path],
        options: EngineOptions,
        ledger: Ledger,
        *,
        measure_process: Callable[[], int] = lambda: 0,
    ) -> None:
        """`locate` finds a model's file, fetching it if need be; it may block and raise `ModelError`.

        `measure_process` tells the process's resident bytes, models included.
        """
        self.ledger = ledger
        self.watch = LoadWatch()
        self.encoders = EncoderPool(locate, options, ledger, self.watch)
        self._device_ledgers: dict[str, Ledger] = {}
        self._measure_process = measure_process
        self._process = ledger.reserve("process", 0)
        self._num_loaded = 0
        self._loads = threading.Lock()  # one at a time, so that what memory grows by can be told apart
        self._locate = locate
        self._options = options
        self.adapters = AdapterPaths(options.adapters)
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Condition()
        self._is_closed = False
        self._when_loaded: Callable[[str, LoadedModel], None] | None = None

    def when_loaded(self, tell: Callable[[str, LoadedModel], None]) -> None:
        """Have each model told, with its name, that is loaded from now on: in the thread that loaded it."""
        self._when_loaded = tell

    def loaded(self) -> dict[str, LoadedModel]:
        """Return the models in memory now, by name."""
        with self._lock:
            return {name: entry.model for name, entry in self._entries.items() if entry.model is not None}

    def split_name(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Return the model that a name is of, and the keys of its adapters, none for the bare model."""
        return split_name(name, self.adapters.all)

    def name_adapter(self, key: str, path: str) -> None:
        """Have a key name the adapter at a path, or none where that is empty; what it named before goes. Blocks."""
        self.adapters.put(key, path)
        for model in self.loaded().values():
            model.adapters.forget(key)

    def accounts(self) -> dict[str, int]:
        """Return bytes by account, of this machine's memory and then of devices', whose names stand before theirs."""
        of_devices = {
            f"{device}/{account}": num_bytes
            for device, ledger in self._device_ledgers.items()
            for account, num_bytes in ledger.accounts().items()
        }
        return self.ledger.accounts() | of_devices

    def loading(self) -> list[str]:
        """Return the models that are on their way into memory, by name."""
        with self._lock:
            return [name for name, entry in self._entries.items() if entry.load.running is not None]

    @contextlib.asynccontextmanager
    async def using(self, name: str, *, beside: bool = False) -> AsyncGenerator[LoadedModel]:
        """The model, loaded when it is not, and kept as long as the block runs.

        With `beside` it is loaded only where there is room for it with the others, and none is waited for.

        Raises `ModelError` when its file cannot be run or can never fit, `CapacityError` when there is no room now.
        """
        entry = self._enter(name)
        try:
            yield await self._model_of(entry, beside)
        finally:
            self._leave(entry)

    async def _model_of(self, entry: _Entry, beside: bool) -> LoadedModel:
        while True:
            coming, is_beside = self._coming(entry, beside)
            try:
                return await arrived(coming)
            except CapacityError:
                if beside or not is_beside:
                    raise  # else it was refused to who asked for less: this one may have others unloaded

    def give_back(self, level: int) -> None:
        """Free the KV memory of unused models (1), or unload them (2)."""
        with self._lock:
            entries = list(self._entries.values())
        self.encoders.give_back(level)
        for entry in entries:
            if level > 1:
                self._unload(entry)
            elif entry.model is not None and not entry.users:
                entry.model.drop_kv()
        _rust.trim_memory()

    def unload(self, name: str) -> None:
        """Unload a model that no request uses. Blocks."""
        with self._lock:
            entry = self._entries.get(name)
        if entry is not None:
            self._unload(entry)
        self.encoders.unload(name)

    def close(self) -> None:
        """Unload everything, also what is in use (its requests end); waits for what is loading. Safe to call twice."""
        with self._lock:
            self._is_closed = True
            entries = list(self._entries.values())
            self._lock.notify_all()
        for entry in entries:
            if (loading := entry.load.running) is not None:
                loading.exception()
            self._unload(entry, is_forced=True)
        self.encoders.close()

    def _enter(self, name: str) -> _Entry:
        with self._lock:
            if self._is_closed:
                raise CapacityError(_CLOSED)
            entry = self._entries.setdefault(name, _Entry(name, SharedLoad(f"pyagent-load-{name}", self._lock)))
            entry.users += 1
            for reservation in entry.held:
                reservation.touch()
            return entry

    def _coming(self, entry: _Entry, beside: bool) -> tuple[LoadedModel | Future[LoadedModel], bool]:
        """Return an entry's model, or the load that gives it, and whether that is one beside the others."""
        with self._lock:
            if entry.model is not None and entry.model.engine.fault is None:
                return entry.model, entry.beside
            if entry.load.running is None:
                if self._is_closed:
                    raise CapacityError(_CLOSED)
                entry.beside = beside
            return self._loading(entry), entry.beside

    def _leave(self, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            self._lock.notify_all()

    def _loading(self, entry: _Entry) -> Future[LoadedModel]:
        held: list[Reservation] = []

        def load() -> LoadedModel:
            try:
                self._unload(entry, is_forced=True)  # one whose loop failed: its requests have ended
                with self.watch.watching(entry.name) as watched:
                    return self._load(entry, held, watched)
            except BaseException:
                self._give_back(held)
                raise

        def keep(model: LoadedModel) -> None:
            entry.model, entry.held = model, held

        def tell(model: LoadedModel) -> None:
            if self._when_loaded is not None:
                self._when_loaded(entry.name, model)
            freeze_heap()

        return entry.load.begin(load, keep, tell)

    def _load(self, entry: _Entry, held: list[Reservation], watched: Load) -> LoadedModel:
        path = self._locate_decoder(entry.name)
        options, times = self._options.of_model(entry.name).counting(watched.counter), LoadTimes()
        with times.phase("look"):
            draft, fault = None, DraftFault(entry.name, () if options.drafts is None else options.drafts.faults_told)
            with fault.noted():
                draft = find_drafter(entry.name, path, options, self._locate)
            options, factory, needs = _chosen(path, options, None if draft is None else draft.head)
        with self._loads:
            return_large_blocks()
            process = self._count_process()
            ledger, process = (self.ledger, process) if needs.device is None else (self._ledger_of(needs.device), 0)
        most = Estimates.of(needs, options, ledger.total_bytes - process)
        _check_fit(entry.name, most, ledger.total_bytes, process, needs.device)
        fitted = self._fitted(draft, fault, options, most.least_bytes if needs.device is None else 0)
        if fitted is None and options.runner.head is not None:  # pages need no room for it then
            options, factory, needs = _chosen(path, options, None)
            most = Estimates.of(needs, options, ledger.total_bytes - process)
        memory = self._reserve_for(entry, most, fitted, held, ledger)
        kv_bytes = most.take_kv(memory.kv, can_grow=needs.device is None)
        with self._loads:
            chosen = replace(options.runner, kv_bytes=kv_bytes or None)
            files = _weights_of(path, options.runner.head)
            watched.expect(needs.weight_bytes + (fitted.weights if fitted is not None else 0))
            start = time.perf_counter()
            runner = factory.load(path, chosen, options.largest_step, memory.kv)
            times.add(runner.info.load_seconds or {"load": time.perf_counter() - start})
            # Imported only now: a server that starts has the interpreter for itself while the weights are read.
            from pyagent.infrastructure.engine.models.loaded_model import LoadedModel

            drafting: Loaded | None = None
            try:
                with self._keeping(entry):  # what is larger than its estimate grows now
                    memory.weights.resize(runner.info.weight_bytes)
                    if fitted is not None:
                        with times.phase("draft model"), fault.noted():
                            drafting = fitted.load(runner, options, memory.draft)
                    start = time.perf_counter()
                    model = LoadedModel(
                        runner, path, options, memory, factory.name, files, self.adapters, drafting, fault
                    )
                _rust.trim_memory()  # what building the tokenizer left
                own_bytes = memory.weights.num_bytes if needs.device is None else 0
                self._count_process(own_bytes + memory.tokenizer.num_bytes + memory.draft_weight_bytes)
            except BaseException:
                for made in (drafting, runner):
                    _close(made, entry.name)
                raise
            with self._lock:
                self._num_loaded += 1
        times.add({"tokenizer": time.perf_counter() - start})
        model.load_seconds = times.seconds
        text, whole = "the model %s runs on %s, loaded in %.1f s: %s", sum(times.seconds.values())
        logger.info(text, entry.name, factory.name, whole, told(times.seconds), extra={"seconds": times.seconds})
        return model

    def _fitted(self, draft: Found | None, fault: DraftFault, options: EngineOptions, beside: int) -> Found | None:
        """Return what drafts, fitted into the memory beside its model's; None, and noted, where that is too little."""
        if draft is not None:
            with fault.noted():
                return draft.fitted(options, self.ledger.total_bytes - self._process.num_bytes - beside)
        return None

    def _locate_decoder(self, name: str) -> Path:
        path = self._locate(name)
        if (task := task_of(path)) != "generate":
            raise answers_nothing(name, task)
        return path

    def _ledger_of(self, device: DeviceMemory) -> Ledger:
        """Return the ledger of a device's memory, with what can be had of it now: other programs come and go."""
        ledger = self._device_ledgers.setdefault(device.name, Ledger(0, "engine.gpu_memory_utilization"))
        ledger.total_bytes = device.total_bytes
        return ledger

    def _count_process(self, model_bytes: int = 0) -> int:
        """Hold what the process has beside models; returns how much that is. Called with `_loads` held.

        Measured while no model is in memory, and again when the only one, of `model_bytes`, has just been loaded: what
        came with it and is not its own is libraries, and the interpreter's.
        """
        if self._num_loaded:
            return self._process.num_bytes
        measured = max(0, self._measure_process() - model_bytes - self.encoders.num_bytes)
        if measured > self.ledger.total_bytes:
            raise ConfigError(
                f"the process holds {format_bytes(measured)} beside models, but the engine may use "
                f"{format_bytes(self.ledger.total_bytes)}; raise engine.memory",
                key="engine.memory",
            )
        self._process.resize(measured)
        return measured

    def _reserve_for(
        self, entry: _Entry, most: Estimates, draft: Found | None, held: list[Reservation], ledger: Ledger
    ) -> ModelMemory:
        """Return a model's reservations: estimates, until it is loaded. Waits for other models to be idle, for a while.

        What waits holds nothing: two models that load at once cannot keep each other from what both need.
        """
        patience_ends = time.monotonic() + (0.0 if entry.beside else _PATIENCE_SECONDS)
        while True:
            try:
                with self._keeping(entry):
                    return self._try_reserve(entry, most, draft, held, ledger)
            except CapacityError:
                while held:
                    held.pop().release()
                with self._lock:
                    left = patience_ends - time.monotonic()
                    if self._is_closed or left <= 0:
                        raise
                    self._lock.wait(min(left, 1.0))

    @contextlib.contextmanager
    def _keeping(self, loading: _Entry) -> Generator[None]:
        """For one that is loaded beside the others, keep all models that are in memory there, as if they were used."""
        with self._lock:
            others = self._entries.values() if loading.beside else ()
            kept = [entry for entry in others if entry.model is not None]
            for entry in kept:
                entry.users += 1
        try:
            yield
        finally:
            for entry in kept:
                self._leave(entry)

    def _try_reserve(
        self, entry: _Entry, most: Estimates, draft: Found | None, held: list[Reservation], ledger: Ledger
    ) -> ModelMemory:
        def reserve(
            account: str, num_bytes: int, reclaim: Reclaim | None = None, ledger: Ledger = self.ledger
        ) -> Reservation:
            held.append(ledger.reserve(f"{account}:{entry.name}", num_bytes, reclaim))
            return held[-1]

        # In the order in which they are asked to give back: KV memory before the whole model goes.
        return ModelMemory(
            model=entry.name,
            kv=reserve("kv", most.least_kv, partial(self._shrink_kv, entry), ledger),
            weights=reserve("weights", most.weights, partial(self._unload_if_idle, entry), ledger),
            tokenizer=reserve("tokenizer", most.tokenizer),
            workspace=reserve("workspace", most.workspace, None, ledger),
            grammars=reserve("grammars", 0, partial(self._forget_grammars, entry)),
            sessions=reserve("sessions", 0),
            prompts=reserve("prompts", 0),
            drafts=reserve("drafts", 0),
            kv_settings=(*most.kv_settings, ledger.setting),
            reserve=self.ledger.reserve,
            draft=None if draft is None else draft.reserve(reserve, partial(self._shrink_draft_kv, entry)),
        )

    def _shrink_kv(self, entry: _Entry, num_bytes: int) -> None:
        model = entry.model
        if model is not None:
            model.runner.give_back(num_bytes)

    def _shrink_draft_kv(self, entry: _Entry, num_bytes: int) -> None:
        model = entry.model
        if model is not None and model.draft is not None:
            model.draft.give_back(num_bytes)

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
        _close(model, entry.name)
        del model  # the memory is free when nothing refers to the model, not even in a cycle
        collect_frozen()
        _rust.trim_memory()
        self._give_back(held)
        with self._lock:
            self._num_loaded -= 1
        if self._loads.acquire(blocking=False):  # a model that loads will count for itself
            try:
                with contextlib.suppress(CapacityError, ConfigError):  # said when the next model loads
                    self._count_process()
            finally:
                self._loads.release()

    def _give_back(self, held: list[Reservation]) -> None:
        for reservation in held:
            reservation.release()
        with self._lock:
            self._lock.notify_all()


def _chosen(path: Path, options: EngineOptions, head: Path | None) -> tuple[EngineOptions, RunnerFactory, ModelNeeds]:
    """Return the options of a model that has room for a head, or for none; what runs it, and what it takes there."""
    options = options.with_head(head)
    return (options, *options.runner_for(path))


def _weights_of(path: Path, head: Path | None) -> WeightFiles:
    """Return the files that KV depends on: the model's, and those of a head whose KV lies with the model's."""
    return find_weights(path) if head is None else (*find_weights(path), *find_weights(head))


def _close(held: LoadedModel | ModelRunner | Loaded | None, name: str) -> None:
    """Close a model or its runner; one that fails is named in the log, and what it held in the ledger is free."""
    try:
        if held is not None:
            held.close()
    except BaseException:  # a runner of a plugin, maybe
        logger.exception("closing the model %s failed", name)


def _check_fit(name: str, most: Estimates, total_bytes: int, process: int, device: DeviceMemory | None) -> None:
    """Raise `ModelError` where a model can never be loaded."""
    if process + most.least_bytes <= total_bytes:
        return
    text = f"{name} needs {format_bytes(most.least_bytes)} for its weights, tokenizer, workspace and the least KV"
    if device is None:
        text += f", the process itself has {format_bytes(process)}, but the engine may use {format_bytes(total_bytes)}"
        raise ModelError(f"{text}; raise engine.memory or take a smaller model", model=name)
    text += f", but of {device.name} the engine may use {format_bytes(total_bytes)}"
    raise ModelError(f"{text}; end what else uses it, or take a smaller model", model=name)


_ASKED_AT = {"embed": "/v1/embeddings", "rank": "/v1/rerank", "classify": "/v1/classify", "token_classify": "/pooling"}


def answers_nothing(name: str, task: ModelTask) -> UnsupportedError:
    """Return the error of a chat with an encoder, which says where to ask that."""
    text = f"native:{name} is an encoder, which answers nothing; name another model to chat with"
    if task in _ASKED_AT:
        text += f", and ask this one at {_ASKED_AT[task]}"
    return UnsupportedError(text, backend=f"native:{name}", fields=["messages"])
