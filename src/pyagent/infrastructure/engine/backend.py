"""The embedded engine as a `Backend`: what agents, the server and chains talk to.

Says which models there are and chooses the one a request is for; the engine does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from difflib import get_close_matches
from pathlib import Path

import msgspec

from pyagent.core.errors import PyAgentError, RequestError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    Health,
    ModelInfo,
)
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.ledger import Ledger
from pyagent.infrastructure.engine.machine_memory import total_for
from pyagent.infrastructure.engine.model import EngineOptions, LoadedModel
from pyagent.infrastructure.engine.model_pool import ModelPool

_SCHEME = "native:"


class NativeBackend:
    """Answers with models run by the embedded engine; the first is the one a request gets that names none."""

    def __init__(self, model_names: Sequence[str], engine: LocalEngine, *, look: Callable[[str], str]) -> None:
        """`look` says in words what loading a model would do, or raises `ModelError`; it fetches nothing.

        The backend closes its share of the engine when it is closed.
        """
        self.name = f"{_SCHEME}{model_names[0]}" if len(model_names) == 1 else "native"
        self.model_names = tuple(model_names)
        self.engine = engine
        self._look = look
        self._is_closed = False

    @classmethod
    def of(
        cls,
        model_name: str,
        locate: Callable[[], Path],
        options: EngineOptions | None = None,
        *,
        look: Callable[[], str] | None = None,
    ) -> NativeBackend:
        """A backend of one model with an engine of its own. `locate` finds the file; it may block."""
        pool = ModelPool(lambda _: locate(), options or EngineOptions(), Ledger(total_for(None)))
        look = look or (lambda: "loads on first use")
        return cls([model_name], LocalEngine(pool), look=lambda _: look())

    async def load(self) -> LoadedModel:
        """The first model, loaded on the first call. Raises `ModelError` naming what is wrong with its file."""
        return await self.engine.load(self.model_names[0])

    def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Answer as a stream; closing the iterator aborts the request."""
        return self.engine.stream(msgspec.structs.replace(request, model=self._chosen(request.model)))

    def _chosen(self, asked: str) -> str:
        if asked in {"", self.name}:
            return self.model_names[0]
        name = asked if asked in self.model_names else asked.removeprefix(_SCHEME)
        if name in self.model_names:
            return name
        near = get_close_matches(asked, self.model_names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it offers {', '.join(self.model_names)} (engine.models)"
        raise RequestError(f"{self.name} does not offer model {asked!r}; {hint}", param="model", code="model_not_found")

    async def models(self) -> list[ModelInfo]:
        """The models offered, with their sizes once they are loaded."""
        return [self._info(name) for name in self.model_names]

    def _info(self, name: str) -> ModelInfo:
        model = self.engine.models.loaded().get(name)
        if model is None:
            return ModelInfo(id=name, backend=_SCHEME + name, is_loaded=False)
        return ModelInfo(
            id=name,
            backend=_SCHEME + name,
            context_length=model.context_length,
            architecture=model.runner.info["architecture"],
            size_bytes=model.runner.info["weight_bytes"],
            is_loaded=True,
        )

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Refused: this engine runs no embedding models yet."""
        raise RequestError(f"{self.name} cannot embed; use a backend with an embedding model", param="model")

    async def health(self) -> Health:
        """Ready when a model is loaded or can be; fetches nothing."""
        loaded = self.engine.models.loaded()
        states = [(name, *await asyncio.to_thread(self._state, name, loaded)) for name in self.model_names]
        ready = [name for name, is_ready, _ in states if is_ready]
        is_alone = len(states) == 1
        detail = "; ".join(text if is_alone else f"{name} {text}" for name, _, text in states)
        return Health(is_ready=bool(ready), detail=detail, models=ready)

    def _state(self, name: str, loaded: dict[str, LoadedModel]) -> tuple[bool, str]:
        if name in loaded:
            return True, "loaded"
        try:
            return True, self._look(name)
        except PyAgentError as error:
            return False, str(error)

    async def close(self) -> None:
        """Leave the engine to those who share it, or end it when nobody does. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            await self.engine.close()
