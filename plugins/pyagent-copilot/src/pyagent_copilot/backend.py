"""The GitHub Copilot CLI as a `Backend`: one run of the program for each answer, four at a time at most."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pyagent.plugin import (
    BackendError,
    Capabilities,
    ChatDelta,
    ChatRequest,
    Deadline,
    EmbedRequest,
    EmbedResult,
    Health,
    ModelInfo,
    RequestError,
    Unsupported,
    estimated_usage,
    fulfil,
)
from pyagent_copilot.events import INSTALL, arguments, decode_event, error_of, exit_error, prompt_of
from pyagent_copilot.process import Run

_MOST_AT_ONCE = 4


class CopilotBackend:
    """The program `copilot`. `read_seconds` bounds the silence between two lines that it writes."""

    capabilities = Capabilities(gives_several=True)

    def __init__(
        self,
        *,
        program: str = "copilot",
        model: str = "",
        name: str = "copilot",
        read_seconds: float = 120.0,
        unsupported: Unsupported = "emulate",
    ) -> None:
        self.name = name
        self._program = program
        self._model = model
        self._read_seconds = read_seconds
        self._unsupported: Unsupported = unsupported
        self._turns: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    async def models(self) -> list[ModelInfo]:
        """The one of the link; the program lists none."""
        return [ModelInfo(id=self._model or "copilot", backend=self.name)]

    def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Stream the answer; closing the iterator ends the program."""
        return fulfil(
            request, self._answer, self.capabilities.abilities, backend=self.name, unsupported=self._unsupported
        )

    async def _answer(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        deadline = Deadline.after(request.timeout_seconds)
        if request.model and self._model and request.model != self._model:
            text = f"{self.name} serves {self._model!r}, not {request.model!r}"
            raise RequestError(text, param="model", code="model_not_found")
        asked = "" if request.model == "copilot" else request.model or self._model
        run = Run([self._found(), *arguments(asked)], _environment(), self.name, self._read_seconds)
        text, model, is_done = "", asked or "copilot", False
        turns = self._semaphore()
        await deadline.bound(turns.acquire(), f"a turn at {self.name}")
        try:
            async with aclosing(run.lines(prompt_of(request))) as lines:
                while (line := await deadline.bound(anext(lines, None), self.name)) is not None:
                    event = decode_event(line, self.name)
                    match event.type:
                        case "assistant.message_delta":
                            text += event.data.delta_content
                            yield ChatDelta(content=event.data.delta_content, model=model, backend=self.name)
                        case "assistant.message" if event.data.content.startswith(text):
                            rest, text, model = event.data.content[len(text) :], event.data.content, event.data.model
                            if rest:
                                yield ChatDelta(content=rest, model=model, backend=self.name)
                        case "session.error":
                            raise error_of(event, self.name)
                        case "result":
                            is_done = event.exit_code == 0
                        case _:
                            pass
        finally:
            turns.release()
        if not is_done:
            raise exit_error(run.code, run.stderr, self.name)
        yield ChatDelta(
            finish_reason="stop",
            usage=estimated_usage(request, text),
            model=model or asked or "copilot",
            backend=self.name,
        )

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Refused: the program has no embeddings."""
        raise RequestError(f"{self.name} does not embed; use a backend with an embedding model", param="model")

    async def health(self) -> Health:
        """Ready when the program is there. Whether it is signed in shows when it is asked."""
        if shutil.which(self._program) is None:
            return Health(is_ready=False, detail=f"the GitHub Copilot CLI is not installed; {INSTALL}")
        return Health(is_ready=True, models=[self._model or "copilot"])

    async def close(self) -> None:
        """Nothing is kept between answers."""

    def _found(self) -> str:
        if (found := shutil.which(self._program)) is None:
            text = f"{self.name}: the GitHub Copilot CLI is not installed; {INSTALL}"
            raise BackendError(text, backend=self.name, retryable=False)
        return found

    def _semaphore(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._turns is None or self._turns[0] is not loop:
            self._turns = (loop, asyncio.Semaphore(_MOST_AT_ONCE))
        return self._turns[1]


def _environment() -> dict[str, str]:
    """This process's, but what would let the program's tools run unasked."""
    return {**os.environ, "COPILOT_ALLOW_ALL": "", "NO_COLOR": "1"}
