"""Backends that answer from a script, for the tests of agents and chains. No network, no model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from pyagent.core.capabilities import Capabilities
from pyagent.core.errors import BackendError, RequestError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    FinishReason,
    Health,
    Hint,
    ModelInfo,
    ToolCall,
    Usage,
)
from pyagent.core.tool_call_deltas import as_deltas


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a script: `text` in pieces of a word each, or `pieces` as they are.

    With `error`, the stream raises it before the piece of index `fail_at`. `delay_seconds` passes before each piece.
    """

    text: str = ""
    pieces: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    error: Exception | None = None
    fail_at: int = 0
    delay_seconds: float = 0.0

    def deltas(self) -> tuple[str, ...]:
        """Return the pieces the answer comes in."""
        return self.pieces or tuple(re.findall(r"\s*\S+|\s+$", self.text))


Script = Sequence[Reply | str] | Callable[[ChatRequest], Reply | str]


class ScriptedBackend:
    """A `Backend` that gives its replies in turn, or what a function of the request says.

    `requests` holds what was asked, `hints` what was told besides, `num_aborted` counts the streams closed
    before their end. A request past the end of the script raises `BackendError`.
    """

    def __init__(self, script: Script, *, name: str = "scripted", models: Sequence[str] = ("scripted",)) -> None:
        self.name = name
        self.requests: list[ChatRequest] = []
        self.hints: list[Hint] = []
        self.num_aborted = 0
        self.is_closed = False
        self.is_ready = True
        self.capabilities = Capabilities(hint=self.hint)
        self._script = script
        self._models = tuple(models)

    async def models(self) -> list[ModelInfo]:
        """Return the models it was given."""
        return [ModelInfo(id=model, backend=self.name) for model in self._models]

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Give the next reply of the script."""
        self.requests.append(request)
        reply = self._next(request)
        model = request.model or (self._models[0] if self._models else "")
        is_complete = False
        pieces = reply.deltas()
        try:
            for index, piece in enumerate(pieces):
                await asyncio.sleep(reply.delay_seconds)
                if reply.error is not None and index == reply.fail_at:
                    raise reply.error
                yield ChatDelta(content=piece, model=model, backend=self.name)
            if reply.error is not None and reply.fail_at >= len(pieces):
                raise reply.error
            is_complete = True
            yield self._last(request, reply, model)
        except GeneratorExit:
            self.num_aborted += not is_complete
            raise
        except asyncio.CancelledError:
            self.num_aborted += 1
            raise

    def _last(self, request: ChatRequest, reply: Reply, model: str) -> ChatDelta:
        num_prompt = sum(len(message.text.split()) for message in request.messages) or len(
            (request.prompt or "").split()
        )
        num_pieces = len(reply.deltas())
        return ChatDelta(
            tool_calls=as_deltas(reply.tool_calls),
            finish_reason="tool_calls" if reply.tool_calls and reply.finish_reason == "stop" else reply.finish_reason,
            usage=Usage(prompt_tokens=num_prompt, completion_tokens=num_pieces, total_tokens=num_prompt + num_pieces),
            model=model,
            backend=self.name,
        )

    def _next(self, request: ChatRequest) -> Reply:
        if callable(self._script):
            reply = self._script(request)
        else:
            index = len(self.requests) - 1
            if index >= len(self._script):
                raise BackendError(
                    f"the script of {self.name} has {len(self._script)} replies, request {index + 1} came",
                    backend=self.name,
                    retryable=False,
                )
            reply = self._script[index]
        return Reply(text=reply) if isinstance(reply, str) else reply

    def hint(self, hint: Hint) -> None:
        """Remember it."""
        self.hints.append(hint)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Refuse: a script has no vectors."""
        raise RequestError(f"{self.name} cannot embed", param="model")

    async def health(self) -> Health:
        """Ready unless `is_ready` was set to False."""
        return Health(is_ready=self.is_ready and not self.is_closed, models=list(self._models))

    async def close(self) -> None:
        """Remember that it was closed."""
        self.is_closed = True


class EchoBackend(ScriptedBackend):
    """Answers with the last message."""

    def __init__(self, *, name: str = "echo", models: Sequence[str] = ("echo",)) -> None:
        super().__init__(_last_text, name=name, models=models)


def _last_text(request: ChatRequest) -> str:
    return request.messages[-1].text if request.messages else request.prompt or ""
