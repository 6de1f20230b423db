"""One engine on Ray, in its worker: PyAgent's embedded engine, asked over Ray's calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack

from pyagent.plugin import Backend, Fault, make_backend, make_host
from pyagent_ray.options import decoded_by_worker
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

_NAME = "native"


class EngineActor:
    """Ray's actor. Its methods take and give bytes; an error of ours is an answer, so that it arrives as itself."""

    def __init__(self, entry: str, settings: bytes) -> None:
        told = decoded_by_worker(settings)
        self._backend: Backend = make_backend(entry, told, make_host(told))

    async def chat(self, request: bytes) -> AsyncGenerator[bytes, None]:
        """Answer a chat request as a stream."""
        try:
            async with AsyncExitStack() as stack:
                stream = self._backend.chat(requests.decode(request))
                if isinstance(stream, AsyncGenerator):
                    stack.push_async_callback(stream.aclose)
                async for delta in stream:
                    yield answers.encode(Pieces([delta]))
        except Exception as error:  # noqa: BLE001 - whatever it is, the link is told
            yield answers.encode(Failed(Fault.of(error, _NAME)))

    async def models(self) -> bytes:
        """Return the engine's models."""
        return await self._answer(self._models)

    async def _models(self) -> FromEngine:
        return Models(await self._backend.models())

    async def embed(self, request: bytes) -> bytes:
        """Embed texts."""

        async def embedded() -> FromEngine:
            return Vectors(await self._backend.embed(embeddings.decode(request)))

        return await self._answer(embedded)

    async def health(self) -> bytes:
        """Return whether it can answer."""

        async def healthy() -> FromEngine:
            return Healthy(await self._backend.health())

        return await self._answer(healthy)

    async def load(self) -> bytes:
        """Load the model."""

        async def loaded() -> FromEngine:
            if (load := self._backend.capabilities.load) is not None:
                await load()
            return await self._models()

        return await self._answer(loaded)

    async def hint(self, hint: bytes) -> None:
        """Take a hint about what it computed."""
        if (take := self._backend.capabilities.hint) is not None:
            take(hints.decode(hint))

    async def _answer(self, make: Callable[[], Awaitable[FromEngine]]) -> bytes:
        try:
            return answers.encode(await make())
        except Exception as error:  # noqa: BLE001 - as above
            return answers.encode(Failed(Fault.of(error, _NAME)))
