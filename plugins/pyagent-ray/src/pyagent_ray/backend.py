"""The scheme `ray`: engines on a Ray cluster behind one link, a chain of them inside.

Being a chain, it continues an answer whose engine died with another engine from the text already sent, passes a broken
engine by until it is back, and retries within the caller's deadline.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from pyagent.plugin import (
    Balancer,
    Capabilities,
    Chain,
    ChatDelta,
    ChatRequest,
    ConfigError,
    EmbedRequest,
    EmbedResult,
    Health,
    LinkSpec,
    ModelInfo,
    Settings,
)
from pyagent_ray.engine_link import EngineLink
from pyagent_ray.engine_router import EngineRouter
from pyagent_ray.options import Options, encoded_for_workers
from pyagent_ray.placement import Engines


class RayBackend:
    """The engines of one chain entry. They start when the first is asked."""

    def __init__(self, link: LinkSpec, settings: Settings, options: Options) -> None:
        names = [link.target] if link.target else list(settings.engine.models)
        if not names:
            raise ConfigError("engine.models is empty, so `ray` needs a model: ray:NAME", key="engine.models")
        self.name = str(link)
        entry = f"native:{link.target}" if link.target else "native"
        engines = Engines(self.name, entry, encoded_for_workers(settings, options), options)
        links = [EngineLink(f"{self.name}#{number}", number, names, engines) for number in range(options.engines)]
        router = EngineRouter(links, Balancer(options.routing))
        self._chain = Chain(links, private=[link.scheme], router=router, name=self.name)

    @property
    def capabilities(self) -> Capabilities:
        """What an engine can do."""
        return self._chain.capabilities

    async def models(self) -> list[ModelInfo]:
        """Return the models on offer, each once."""
        return list({model.id: model for model in reversed(await self._chain.models())}.values())[::-1]

    def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Answer as a stream; closing the iterator aborts the request."""
        return self._chain.chat(request)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Embed texts."""
        return await self._chain.embed(request)

    async def health(self) -> Health:
        """Return whether an engine can answer now."""
        return await self._chain.health()

    async def close(self) -> None:
        """End the engines. Safe to call twice."""
        await self._chain.close()
