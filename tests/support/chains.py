"""Chains from a pyagent.toml over scripted backends: `link:NAME` in the file is the backend called NAME here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import Answer, Backend, BackendFactory, LinkSpec, collect
from pyagent.core.capabilities import Capabilities
from pyagent.core.chain import Chain
from pyagent.core.config import Settings, load_settings
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import ChatDelta, ChatRequest, EmbedRequest, EmbedResult, Health, Message, ModelInfo

Play = Callable[[ChatRequest], AsyncIterator[ChatDelta]]
HI = [Message("user", "hi")]


class Played:
    """A backend that answers by a function; counts what is asked, under way and closed."""

    def __init__(self, name: str, play: Play, *, continues: bool = False) -> None:
        self.name = f"link:{name}"
        self.play = play
        self.capabilities = Capabilities(assistant_prefix="continued" if continues else "forwarded")
        self.requests: list[ChatRequest] = []
        self.num_running = 0
        self.most_running = 0

    async def models(self) -> list[ModelInfo]:
        return [ModelInfo(id=self.name)]

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        self.requests.append(request)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            async for delta in self.play(request):
                yield delta
        finally:
            self.num_running -= 1

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        return EmbedResult(vectors=[[1.0] for _ in request.input], model=self.name)

    async def health(self) -> Health:
        return Health(is_ready=True)

    async def close(self) -> None:
        return None


def says(*steps: str | float | Exception | ChatDelta, finish: str = "stop") -> Play:
    """Texts are pieces, numbers are seconds of silence, errors are raised."""

    async def play(_request: ChatRequest) -> AsyncIterator[ChatDelta]:
        for step in steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                yield step if isinstance(step, ChatDelta) else ChatDelta(content=step)
        yield ChatDelta(finish_reason=finish)  # type: ignore[arg-type]

    return play


def in_turn(*plays: Play) -> Play:
    """The first request gets the first, and so on; the last goes on."""
    left = list(plays)

    def play(request: ChatRequest) -> AsyncIterator[ChatDelta]:
        return (left.pop(0) if len(left) > 1 else left[0])(request)

    return play


class _Plugin:
    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = backends

    @hookimpl
    def pyagent_register_backends(self) -> dict[str, BackendFactory]:
        def make(link: LinkSpec, settings: Settings) -> Backend:
            return self._backends[link.target]

        return {"link": make}


def chain_of(folder: Path, text: str, *backends: Played, **more: Any) -> Chain:
    """The chain that a file of settings makes of these backends; `more` replaces fields of the chain."""
    file = folder / "pyagent.toml"
    file.write_text(text, encoding="utf-8")
    settings = load_settings(file).settings
    host = make_host(settings)
    host.register(_Plugin({backend.name.partition(":")[2]: backend for backend in backends}), "played")
    made = make_chain(settings, host)
    if not more:
        return made
    fields = {name: getattr(made, name) for name in made.__dataclass_fields__ if not name.startswith("_")}
    return Chain(**(fields | more))


def request(**fields: Any) -> ChatRequest:
    return ChatRequest(**({"messages": HI} | fields))


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def ask(chain: Chain, **fields: Any) -> Answer:
    return run(collect(chain.chat(request(**fields))))


async def quick(_seconds: float) -> None:
    """Stands for the chain's waits."""
    await asyncio.sleep(0)
