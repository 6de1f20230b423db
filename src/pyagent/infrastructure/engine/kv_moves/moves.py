"""The connector of an engine, and the models that it moves KV for.

The weights of a model are hashed when it is loaded, in a thread beside everything else; then it is registered, and
until then its prompts are computed. It is forgotten when it is unloaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from pyagent.core.runners.kv_connector import KvConnector, KvLayout
from pyagent.infrastructure.engine.kv_moves.fingerprint import WeightFiles, hash_weights
from pyagent.infrastructure.engine.kv_moves.loader import KvLoader
from pyagent.infrastructure.engine.kv_moves.transfers import KvTransfers

if TYPE_CHECKING:
    from pyagent.core.messages import ChatRequest
    from pyagent.infrastructure.engine.models.loaded_model import LoadedModel
    from pyagent.infrastructure.engine.options import EngineOptions
    from pyagent.infrastructure.engine.request import Request
    from pyagent.infrastructure.engine.stats import KvMoveStats

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
"""How long a connector may take to close: models are unloaded after it."""


class KvMoves:
    """What moves of an engine's KV. `connector` is the settings' own, or None until a node of a cluster brings one."""

    def __init__(self, connector: KvConnector | None = None, *, is_open: bool = True) -> None:
        """`is_open` is whether a connector may be brought later."""
        self._connector = connector
        self._is_open = is_open and connector is None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._models: dict[str, LoadedModel] = {}
        self._hashes: dict[WeightFiles, str] = {}
        self._hashing = threading.Lock()  # one at a time, and each once
        self._registering = threading.Lock()
        self._loaders: dict[str, KvLoader] = {}
        self._staying: set[str] = set()

    @classmethod
    def of(cls, options: EngineOptions) -> KvMoves:
        """Return what the options say. A connector of the settings that cannot be made is named in the log."""
        if options.kv_connector is None:
            return cls(is_open=options.takes_kv_connector)
        try:
            return cls(options.kv_connector.open())
        except Exception as error:  # noqa: BLE001 - a plugin's, and without it prompts are computed
            logger.warning("the KV connector %s cannot be opened: %s", options.kv_connector.name, error)
            return cls(is_open=False)

    def use(self, connector: KvConnector) -> bool:
        """Take a connector, in the event loop that it is called in from now on; return whether it is used."""
        if self._is_open:
            self._connector, self._loop = connector, asyncio.get_running_loop()
            for name, model in list(self._models.items()):
                self._hash_beside(name, model)
        return self._is_open

    def drop(self, connector: KvConnector) -> None:
        """Use a connector no more: its owner ends."""
        if self._connector is connector:
            self._connector = self._loop = None
            self._loaders.clear()

    # -- models -------------------------------------------------------------------------------------------------------

    def loaded(self, name: str, model: LoadedModel) -> None:
        """Take note of a model that was loaded. Any thread may call."""
        if model.movable is None:
            if model.why_kv_stays and self._connector is not None:
                self._stay(name, model.why_kv_stays)
            return
        self._models[name] = model
        self._staying.discard(name)
        if not model.on_close(lambda: self._unloaded(name, model)):
            self._unloaded(name, model)
        elif self._connector is not None:
            self._hash_beside(name, model)

    def _unloaded(self, name: str, model: LoadedModel) -> None:
        if self._models.get(name) is model:
            del self._models[name]

    def _hash_beside(self, name: str, model: LoadedModel) -> None:
        threading.Thread(target=self._hash, args=(name, model), name=f"pyagent-hash-{name}", daemon=True).start()

    def _hash(self, name: str, model: LoadedModel) -> None:
        """Hash a model's weights, and have it registered where it is known in which event loop."""
        try:
            with self._hashing:
                if model.files not in self._hashes and (weights := hash_weights(model.files, lambda: model.is_closed)):
                    self._hashes[model.files] = weights
        except OSError as error:
            self._stay(name, f"what was loaded cannot be told: {error}")
            return
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # it is closed; the next request registers the model
                loop.call_soon_threadsafe(self._register, name, model)

    def _register(self, name: str, model: LoadedModel) -> KvLoader | None:
        """Register a model whose weights are known; return what loads its prompts. Called in an event loop."""
        with self._registering:
            connector, runner, weights = self._connector, model.movable, self._hashes.get(model.files)
            if (loader := self._loaders.get(name)) is not None:
                return loader
            if connector is None or runner is None or weights is None or name in self._staying or model.is_closed:
                return None
            layout, costs = KvLayout(weights=weights, shape=runner.kv_shape), model.engine.scheduler.costs
            transfers = KvTransfers(runner, layout, lambda: costs.prompt_token_seconds)
            runner.when_starved(transfers.give_up)
            try:
                connector.register(name, transfers)
            except Exception as error:  # noqa: BLE001 - a plugin's may be any
                transfers.close()
                self._stay(name, f"its connector does not take it: {str(error) or type(error).__name__}")
                return None
            self._loaders[name] = loader = KvLoader(name, transfers, connector)

        def end() -> None:
            transfers.close()
            self._forget(name, loader)

        if model.on_close(end):
            return loader
        end()
        return None

    def _stay(self, name: str, why: str) -> None:
        self._staying.add(name)  # it is not tried again at each request
        logger.warning("KV of %s does not move: %s", name, why)

    def _forget(self, name: str, loader: KvLoader) -> None:
        if self._loaders.get(name) is loader:
            del self._loaders[name]
            if self._connector is not None:
                try:
                    self._connector.forget(name)
                except Exception as error:  # noqa: BLE001 - a plugin's may be any, and the model is to be unloaded
                    logger.warning("the KV connector does not forget %s: %s", name, error)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def load(self, name: str, model: LoadedModel, chat: ChatRequest, request: Request) -> None:
        """Bring what is to be had of a request's prompt into the prefix cache; on any failure it is computed."""
        if self._connector is None:
            return
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.get_running_loop()
        if (loader := self._loaders.get(name) or self._register(name, model)) is not None:
            await loader.load(chat, request)

    def save(self, name: str, chat: ChatRequest, request: Request) -> None:
        """Note that what a request has computed so far can be had here."""
        if (loader := self._loaders.get(name)) is not None:
            loader.save(chat, request)

    def stats(self) -> dict[str, KvMoveStats]:
        """Return what was moved, by model."""
        return {name: loader.stats() for name, loader in list(self._loaders.items())}

    async def close(self) -> None:
        """Close the settings' own connector."""
        connector, self._connector = self._connector, None
        if connector is not None and not self._is_open:
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await connector.close()
            except Exception as error:  # noqa: BLE001 - a plugin's may be any, and the models are to be unloaded
                logger.warning("the KV connector does not close: %s", str(error) or type(error).__name__)
