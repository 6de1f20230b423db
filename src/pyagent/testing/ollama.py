"""A fake Ollama server, true to its wire: NDJSON streams, its error shapes, its durations in nanoseconds.

Written from Ollama's REST reference and checked with the `ollama` client (tests/integration/test_fake_ollama.py).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from pyagent.testing.servers import DroppedConnectionError, Fault, serve

_CREATED = "2026-01-01T00:00:00.000000Z"
_DIGEST = "a80c4f17acd55265feec403c7aef86be0c25983ab279d83f3bcd3abbcb5b8b72"


@dataclass(slots=True)
class OllamaServer:
    """A running fake. Change `answer`, `fault` and `delay_seconds` between requests; read what came in `requests`."""

    models: tuple[str, ...] = ("llama3.2:latest",)
    answer: str = "Hello from the fake."
    thinking: str = ""
    tool_calls: Sequence[dict[str, object]] = ()
    fault: Fault | None = None
    delay_seconds: float = 0.0
    url: str = ""
    requests: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    num_left: int = 0
    """Streams whose client closed the connection before the end."""

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/", _greet, methods=["GET", "HEAD"]),
                Route("/api/version", _version),
                Route("/api/tags", self._tags, methods=["GET", "HEAD"]),
                Route("/api/show", self._show, methods=["POST"]),
                Route("/api/chat", self._chat, methods=["POST"]),
            ]
        )

    def _resolve(self, model: object) -> str | None:
        full = model if isinstance(model, str) and ":" in model else f"{model}:latest"
        return full if full in self.models else None

    def _tags(self, _: Request) -> Response:
        return JSONResponse({"models": [_tag(model) for model in self.models]})

    async def _body(self, request: Request) -> dict[str, object]:
        body = json.loads(await request.body())
        self.requests.append(body)
        return body

    async def _show(self, request: Request) -> Response:
        body = await self._body(request)
        if self._resolve(body.get("model")) is None:
            return _not_found(body.get("model"))
        info = {"general.architecture": "llama", "llama.context_length": 131072}
        return JSONResponse(
            {
                "modelfile": "",
                "template": "{{ .Prompt }}",
                "details": _DETAILS,
                "model_info": info,
                "capabilities": ["completion", "tools"],
            }
        )

    async def _chat(self, request: Request) -> Response:
        try:
            body = await self._body(request)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        if refusal := self._refusal(body.get("model")):
            return refusal
        model = str(body["model"])
        if not body.get("messages"):
            return JSONResponse(_chunk(model, {"role": "assistant", "content": ""}, done_reason="load"))
        if body.get("stream", True) is False:
            return JSONResponse(self._last(model, body, self.answer))
        return StreamingResponse(self._stream(model, body), media_type="application/x-ndjson")

    def _refusal(self, model: object) -> Response | None:
        """What is answered with a status, before any stream."""
        if not model:
            return JSONResponse({"error": "model is required"}, status_code=400)
        if self._resolve(model) is None:
            return _not_found(model)
        if self.fault is not None and self.fault.kind == "error" and self.fault.at == 0:
            return JSONResponse({"error": self.fault.text}, status_code=500)
        return None

    async def _stream(self, model: str, body: dict[str, object]) -> AsyncIterator[str]:
        is_complete = False
        try:
            for index, message in enumerate(self._messages()):
                await asyncio.sleep(self.delay_seconds)
                if self.fault is not None and index == self.fault.at:
                    if self.fault.kind == "error":
                        yield json.dumps({"error": self.fault.text}) + "\n"
                    await _break(self.fault)
                    is_complete = True
                    return
                yield json.dumps(_chunk(model, message)) + "\n"
            is_complete = True
            yield json.dumps(self._last(model, body, "")) + "\n"
        finally:
            self.num_left += not is_complete and (self.fault is None or self.fault.kind == "stall")

    def _messages(self) -> Iterator[dict[str, object]]:
        for piece in re.findall(r"\s*\S+", self.thinking):
            yield {"role": "assistant", "content": "", "thinking": piece}
        for piece in re.findall(r"\s*\S+|\s+$", self.answer):
            yield {"role": "assistant", "content": piece}
        if self.tool_calls:
            yield {"role": "assistant", "content": "", "tool_calls": list(self.tool_calls)}

    def _last(self, model: str, body: dict[str, object], content: str) -> dict[str, object]:
        options = cast("dict[str, object]", body.get("options") or {})
        num_pieces = len(self.answer.split())
        limit = options.get("num_predict", -1)
        reason = "length" if isinstance(limit, int) and 0 < limit <= num_pieces else "stop"
        return _chunk(model, {"role": "assistant", "content": content}, done_reason=reason) | {
            "total_duration": 250_000_000,
            "load_duration": 50_000_000,
            "prompt_eval_count": len(json.dumps(body.get("messages")).split()),
            "prompt_eval_duration": 40_000_000,
            "eval_count": num_pieces,
            "eval_duration": 160_000_000,
        }


@contextmanager
def ollama_server(**scripted: object) -> Generator[OllamaServer]:
    """A fake Ollama on a free port; takes the fields of `OllamaServer`."""
    server = OllamaServer(**scripted)  # pyright: ignore[reportArgumentType]
    with serve(server.app()) as url:
        server.url = url
        yield server


async def _break(fault: Fault) -> None:
    if fault.kind == "drop":
        raise DroppedConnectionError
    if fault.kind == "stall":
        await asyncio.sleep(3600)


_DETAILS: dict[str, object] = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "3.2B",
    "quantization_level": "Q4_K_M",
}


def _tag(model: str) -> dict[str, object]:
    size = 2_019_393_189
    return {
        "name": model,
        "model": model,
        "modified_at": _CREATED,
        "size": size,
        "digest": _DIGEST,
        "details": _DETAILS,
    }


def _chunk(model: str, message: dict[str, object], *, done_reason: str = "") -> dict[str, object]:
    chunk: dict[str, object] = {"model": model, "created_at": _CREATED, "message": message, "done": bool(done_reason)}
    return chunk | ({"done_reason": done_reason} if done_reason else {})


def _greet(_: Request) -> Response:
    return PlainTextResponse("Ollama is running")


def _version(_: Request) -> Response:
    return JSONResponse({"version": "0.13.1"})


def _not_found(model: object) -> Response:
    return JSONResponse({"error": f"model '{model}' not found"}, status_code=404)
