"""One engine on Ray as a backend: a link of the chain that the scheme `ray` makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import msgspec

from pyagent.plugin import (
    ABILITIES,
    BackendError,
    Capabilities,
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    Health,
    Hint,
    ModelInfo,
    RequestError,
    WireError,
)
from pyagent_ray.connection import rays_failures
from pyagent_ray.lazily import module
from pyagent_ray.placement import Engines
from pyagent_ray.protocol import (
    Failed,
    FromEngine,
    Healthy,
    Models,
    Pieces,
    Vectors,
    answers,
    embeddings,
    hints,
    requests,
)

_HEALTH_SECONDS = 5.0
_MAX_AHEAD = 64
"""Pieces that an engine may be ahead of the reader."""


class EngineLink:
    """The `number`th engine of a link. `num_running` requests are with it."""

    def __init__(self, name: str, number: int, model_names: list[str], engines: Engines) -> None:
        self.name = name
        self.num_running = 0
        self._number = number
        self._model_names = model_names
        self._engines = engines
        self._is_closed = False
        self.capabilities = Capabilities(
            abilities=ABILITIES - {"images", "chat_template"},
            gives_several=True,
            assistant_prefix="continued",
            load=self.load,
            hint=self.hint,
        )

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Answer as a stream; closing the iterator aborts the request in its engine."""
        actor = await self._engines.actor(self._number)
        payload = _encoded(request)
        self.num_running += 1
        try:
            with rays_failures(self.name):
                ahead = {"_generator_backpressure_num_objects": _MAX_AHEAD}
                stream = actor.chat.options(**ahead).remote(payload)
                is_whole = False
                try:
                    async for item in stream:
                        for delta in self._of(await item, Pieces).deltas:
                            yield msgspec.structs.replace(delta, backend=self.name)
                    is_whole = True
                finally:
                    if not is_whole:
                        _cancel(stream)
        finally:
            self.num_running -= 1

    async def models(self) -> list[ModelInfo]:
        """Return the models; starts no engine."""
        if not self._engines.is_started:
            return [ModelInfo(id=name, backend=self.name, is_loaded=False) for name in self._model_names]
        actor = await self._engines.actor(self._number)
        with rays_failures(self.name):
            found = self._of(await actor.models.remote(), Models).models
        return [msgspec.structs.replace(model, backend=self.name) for model in found]

    async def load(self) -> None:
        """Start the engine and load its first model."""
        actor = await self._engines.actor(self._number)
        with rays_failures(self.name):
            self._of(await actor.load.remote(), Models)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Embed texts."""
        actor = await self._engines.actor(self._number)
        with rays_failures(self.name):
            return self._of(await actor.embed.remote(embeddings.encode(request)), Vectors).result

    async def health(self) -> Health:
        """Return whether its engine can answer; one that was not asked yet starts on first use."""
        if not self._engines.is_started:
            return Health(is_ready=True, detail="starts on first use", models=self._model_names)
        try:
            actor = await self._engines.actor(self._number)
            with rays_failures(self.name):
                async with asyncio.timeout(_HEALTH_SECONDS):
                    return self._of(await actor.health.remote(), Healthy).health
        except TimeoutError:
            return Health(is_ready=False, detail=f"its engine has not answered for {_HEALTH_SECONDS:g} s")
        except (BackendError, WireError) as error:
            return Health(is_ready=False, detail=str(error))

    def hint(self, hint: Hint) -> None:
        """Take what the fleet knows of a prompt's future."""
        if self._engines.is_started:
            task = asyncio.ensure_future(self._hint(hint))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _hint(self, hint: Hint) -> None:
        actor = await self._engines.actor(self._number)
        actor.hint.remote(hints.encode(hint))

    async def close(self) -> None:
        """Give the engine up. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            await self._engines.release()

    def _of(self, said: bytes, kind: type[Any]) -> Any:
        """Return what the engine said; raise what it failed with, under this link's name."""
        try:
            message: FromEngine = answers.decode(said)
        except WireError as error:
            raise BackendError(f"{self.name}: {error}", backend=self.name) from error
        if isinstance(message, Failed):
            raise message.fault.error(self.name)
        if not isinstance(message, kind):
            raise BackendError(f"{self.name} gave a {type(message).__name__}", backend=self.name)
        return message


def _encoded(request: ChatRequest) -> bytes:
    try:
        return requests.encode(request)
    except WireError as error:
        raise RequestError(f"the request cannot be sent to Ray: {error}", param="messages") from error


def _cancel(stream: Any) -> None:
    with suppress(Exception):  # the actor may be gone, or the answer just over
        module().cancel(stream)
