"""The connector of an engine, and the models that it moves KV for.

A model is registered when its first request has come and its weights are hashed, which happens beside everything else:
until then its prompts are computed. It is forgotten when it is unloaded.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pyagent.core.runners.kv_connector import KvConnector, KvLayout
from pyagent.infrastructure.engine.kv_moves.counts import KvMoveStats
from pyagent.infrastructure.engine.kv_moves.fingerprint import hash_weights
from pyagent.infrastructure.engine.kv_moves.loader import KvLoader
from pyagent.infrastructure.engine.kv_moves.transfers import KvTransfers

if TYPE_CHECKING:
    from pyagent.core.messages import ChatRequest
    from pyagent.infrastructure.engine.models.loaded_model import LoadedModel
    from pyagent.infrastructure.engine.options import EngineOptions
    from pyagent.infrastructure.engine.request import Request

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
"""How long a connector may take to close: models are unloaded after it."""


class KvMoves:
    """What moves of an engine's KV. `connector` is the settings' own, or None until a node of a cluster brings one."""

    def __init__(self, connector: KvConnector | None = None, *, is_open: bool = True) -> None:
        """`is_open` is whether a connector may be brought later."""
        self._connector = connector
        self._is_open = is_open and connector is None
        self._loaders: dict[str, KvLoader] = {}
        self._preparing: dict[str, asyncio.Task[None]] = {}
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
        """Take a connector; return whether it is used."""
        if self._is_open:
            self._connector = connector
        return self._is_open

    def drop(self, connector: KvConnector) -> None:
        """Use a connector no more: its owner ends."""
        if self._connector is connector:
            self._connector = None
            self._loaders.clear()

    async def load(self, name: str, model: LoadedModel, chat: ChatRequest, request: Request) -> None:
        """Bring what is to be had of a request's prompt into the prefix cache; on any failure it is computed."""
        if self._connector is None:
            return
        if (loader := self._loaders.get(name)) is not None:
            await loader.load(chat, request)
        elif name not in self._preparing and name not in self._staying:
            task = asyncio.get_running_loop().create_task(self.prepare(name, model))
            self._preparing[name] = task
            task.add_done_callback(lambda _: self._preparing.pop(name, None))

    async def prepare(self, name: str, model: LoadedModel) -> None:
        """Register a model, if its runner lets KV be moved."""
        connector, runner = self._connector, model.movable
        if connector is None or runner is None or (shape := runner.kv_shape) is None:
            return
        try:
            weights = await asyncio.to_thread(hash_weights, model.path, lambda: model.is_closed)
        except OSError as error:
            self._stay(name, f"its weights cannot be read again: {error}")
            return
        if model.is_closed or self._connector is not connector or name in self._loaders:
            return
        costs = model.engine.scheduler.costs
        transfers = KvTransfers(runner, KvLayout(weights=weights, shape=shape), lambda: costs.prompt_token_seconds)
        runner.when_starved(transfers.give_up)
        try:
            connector.register(name, transfers)
        except Exception as error:  # noqa: BLE001 - a plugin's may be any
            transfers.close()
            self._stay(name, f"its connector does not take it: {str(error) or type(error).__name__}")
            return
        self._loaders[name] = loader = KvLoader(name, transfers, connector)

        def end() -> None:
            transfers.close()
            self._forget(name, loader)

        if not model.on_close(end):
            end()

    def _stay(self, name: str, why: str) -> None:
        self._staying.add(name)  # its weights are not read again at each request
        logger.warning("KV of %s does not move: %s", name, why)

    def _forget(self, name: str, loader: KvLoader) -> None:
        if self._loaders.get(name) is loader:
            del self._loaders[name]
            if self._connector is not None:
                try:
                    self._connector.forget(name)
                except Exception as error:  # noqa: BLE001 - a plugin's may be any, and the model is to be unloaded
                    logger.warning("the KV connector does not forget %s: %s", name, error)

    def save(self, name: str, chat: ChatRequest, request: Request) -> None:
        """Note that what a request has computed so far can be had here."""
        if (loader := self._loaders.get(name)) is not None:
            loader.save(chat, request)

    def stats(self) -> dict[str, KvMoveStats]:
        """Return what was moved, by model."""
        return {name: loader.stats() for name, loader in self._loaders.items()}

    async def close(self) -> None:
        """Close the settings' own connector."""
        connector, self._connector = self._connector, None
        if connector is not None and not self._is_open:
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await connector.close()
            except Exception as error:  # noqa: BLE001 - a plugin's may be any, and the models are to be unloaded
                logger.warning("the KV connector does not close: %s", str(error) or type(error).__name__)
