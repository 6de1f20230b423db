"""A fake Ollama server, true to its wire: NDJSON streams, its error shapes, its durations in nanoseconds.

Written from Ollama's REST reference and checked with the `ollama` client (tests/integration/test_fake_ollama.py). It
counts a word as a token. Like the real one it cuts prompts that do not fit, in silence, unless told `truncate: false`.
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

from pyagent.testing.servers import Fault, serve
from pyagent.testing.stand_in import GREETING, sample_call, sample_of

Json = dict[str, object]

_CREATED = "2026-01-01T00:00:00.000000Z"
_DIGEST = "a80c4f17acd55265feec403c7aef86be0c25983ab279d83f3bcd3abbcb5b8b72"
_DEFAULT_CONTEXT = 4096


@dataclass(slots=True)
class OllamaServer:
    """A running fake. Change its fields between requests; read what came in `requests`.

    `answer` None means: JSON of the format asked for, a call of the first tool, or a greeting. `capabilities` and
    `context_length` hold for every model. `obeys_truncate` is whether it knows `truncate: false`; old versions do not.
    With `api_key`, others are refused.
    """

    models: tuple[str, ...] = ("llama3.2:latest",)
    embedding_models: tuple[str, ...] = ()
    """Those of `models` that embed and do nothing else."""
    answer: str | None = None
    thinking: str = ""
    tool_calls: Sequence[dict[str, object]] = ()
    capabilities: tuple[str, ...] = ("completion", "tools", "vision", "thinking", "embedding")
    context_length: int = 131072
    obeys_truncate: bool = True
    has_logprobs: bool = True
    api_key: str = ""
    fault: Fault | None = None
    delay_seconds: float = 0.0
    url: str = ""
    requests: list[Json] = field(default_factory=list[Json])
    """Bodies of chat, generate, embed and pull."""
    loaded: dict[str, int] = field(default_factory=dict[str, int])
    """The context with which each loaded model runs."""
    num_loads: int = 0
    num_left: int = 0
    """Streams whose client closed the connection before the end."""
    num_running: int = 0

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/", _greet, methods=["GET", "HEAD"]),
                Route("/api/version", _version),
                Route("/api/tags", self._tags, methods=["GET", "HEAD"]),
                Route("/api/ps", self._ps),
                Route("/api/show", self._show, methods=["POST"]),
                Route("/api/chat", self._answer, methods=["POST"]),
                Route("/api/generate", self._answer, methods=["POST"]),
                Route("/api/embed", self._embed, methods=["POST"]),
                Route("/api/pull", self._pull, methods=["POST"]),
            ]
        )

    def _resolve(self, model: object) -> str | None:
        full = model if isinstance(model, str) and ":" in model else f"{model}:latest"
        return full if full in self.models else None

    def _tags(self, request: Request) -> Response:
        if refusal := self._unauthorised(request):
            return refusal
        return JSONResponse({"models": [_tag(model) for model in self.models]})

    def _ps(self, _: Request) -> Response:
        running = [
            _tag(model) | {"expires_at": _CREATED, "size_vram": 0, "context_length": context}
            for model, context in self.loaded.items()
        ]
        return JSONResponse({"models": running})

    def _unauthorised(self, request: Request) -> Response | None:
        if self.api_key and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return JSONResponse({"error": "unauthorized"}, status_code=401)
        return None

    async def _show(self, request: Request) -> Response:
        body = cast("Json", json.loads(await request.body()))
        if self._resolve(body.get("model")) is None:
            return _not_found(body.get("model"))
        info = {"general.architecture": "llama", "llama.context_length": self.context_length}
        return JSONResponse(
            {
                "modelfile": "",
                "template": "{{ .Prompt }}",
                "details": _DETAILS,
                "model_info": info,
                "capabilities": self._abilities(body.get("model")),
            }
        )

    def _abilities(self, model: object) -> tuple[str, ...]:
        return ("embedding",) if self._resolve(model) in self.embedding_models else self.capabilities

    async def _answer(self, request: Request) -> Response:
        try:
            body = cast("Json", json.loads(await request.body()))
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        self.requests.append(body)
        refusal = self._unauthorised(request) or self._refusal(body)
        if refusal:
            return refusal
        said = _Completion(self, body, is_chat=request.url.path.endswith("chat"))
        if not (body.get("messages") if said.is_chat else body.get("prompt")):
            return JSONResponse(self._loading(said))
        if said.is_too_long and self.obeys_truncate and body.get("truncate") is False:
            return JSONResponse({"error": "the input length exceeds the context length"}, status_code=400)
        self._load(said)
        if body.get("stream", True) is False:
            return JSONResponse(said.whole())
        return StreamingResponse(self._stream(said), media_type="application/x-ndjson")

    def _loading(self, said: _Completion) -> Json:
        """Load the model of a request without a prompt, or unload it when it is to be kept for no time."""
        if said.body.get("keep_alive") in (0, "0", "0s"):
            self.loaded.pop(said.full_name, None)
            return said.chunk("", done_reason="unload")
        self._load(said)
        return said.chunk("", done_reason="load")

    def _load(self, said: _Completion) -> None:
        if self.loaded.get(said.full_name) != said.context:
            self.loaded[said.full_name] = said.context
            self.num_loads += 1

    def _refusal(self, body: Json) -> Response | None:
        """Return what is answered with a status, before any stream."""
        model, known = body.get("model"), self._abilities(body.get("model"))
        lacks = [ability for ability in _needed(body) if ability not in known]
        if not model:
            return JSONResponse({"error": "model is required"}, status_code=400)
        if self._resolve(model) is None:
            return _not_found(model)
        if lacks:
            asked = "chat" if "messages" in body else "generate"
            wanted = asked if lacks[0] == "completion" else lacks[0]
            return JSONResponse({"error": f'"{model}" does not support {wanted}'}, status_code=400)
        if self.fault is not None and self.fault.kind == "error" and self.fault.at == 0:
            return JSONResponse({"error": self.fault.text}, status_code=500)
        return None

    async def _stream(self, said: _Completion) -> AsyncIterator[str]:
        is_complete = False
        self.num_running += 1
        try:
            for index, chunk in enumerate(said.chunks()):
                await asyncio.sleep(self.delay_seconds)
                if self.fault is not None and index == self.fault.at:
                    if self.fault.kind == "error":
                        yield json.dumps({"error": self.fault.text}) + "\n"
                    await self.fault.strike()
                    is_complete = True
                    return
                yield json.dumps(chunk) + "\n"
            is_complete = True
            yield json.dumps(said.last("")) + "\n"
        finally:
            self.num_running -= 1
            self.num_left += not is_complete and (self.fault is None or self.fault.kind == "stall")

    async def _embed(self, request: Request) -> Response:
        body = cast("Json", json.loads(await request.body()))
        self.requests.append(body)
        if refusal := self._unauthorised(request) or self._refusal(body):
            return refusal
        given = body.get("input")
        texts = [given] if isinstance(given, str) else cast("list[str]", given)
        counts = [len(text.split()) for text in texts]
        if body.get("truncate") is False and max(counts, default=0) > self.context_length:
            return JSONResponse({"error": "the input length exceeds the context length"}, status_code=400)
        vectors = [[float(len(text)), 1.0, 0.5] for text in texts]
        told = {"total_duration": 1_000_000, "load_duration": 1000, "prompt_eval_count": sum(counts)}
        return JSONResponse({"model": body["model"], "embeddings": vectors, **told})

    async def _pull(self, request: Request) -> Response:
        body = cast("Json", json.loads(await request.body()))
        self.requests.append(body)
        return StreamingResponse(self._pulling(str(body["model"])), media_type="application/x-ndjson")

    async def _pulling(self, model: str) -> AsyncIterator[str]:
        layer: Json = {"status": f"pulling {_DIGEST[:12]}", "digest": f"sha256:{_DIGEST}", "total": 100}
        steps: list[Json] = [{"status": "pulling manifest"}, layer, {**layer, "completed": 50}]
        if self.fault is not None:
            steps.append({"error": self.fault.text})
        else:
            ends: list[Json] = [{"status": "verifying sha256 digest"}, {"status": "success"}]
            steps += [{**layer, "completed": 100}, *ends]
            self.models = (*self.models, model if ":" in model else f"{model}:latest")
        for step in steps:
            await asyncio.sleep(self.delay_seconds)
            yield json.dumps(step) + "\n"


@dataclass(frozen=True, slots=True)
class _Completion:
    """One answer of chat or generate."""

    server: OllamaServer
    body: Json
    is_chat: bool

    @property
    def model(self) -> str:
        return str(self.body["model"])

    @property
    def full_name(self) -> str:
        return self.model if ":" in self.model else f"{self.model}:latest"

    @property
    def options(self) -> Json:
        return cast("Json", self.body.get("options") or {})

    @property
    def context(self) -> int:
        return min(int(str(self.options.get("num_ctx") or _DEFAULT_CONTEXT)), self.server.context_length)

    @property
    def num_prompt(self) -> int:
        asked = self.body.get("messages") if self.is_chat else self.body.get("prompt")
        return len(json.dumps(asked).split())

    @property
    def is_too_long(self) -> bool:
        return self.num_prompt > self.context

    def chunk(self, content: str, *, done_reason: str = "", **message: object) -> Json:
        """Return a line of the answer."""
        said: Json = {"message": {"role": "assistant", "content": content, **message}}
        if not self.is_chat:
            said = {"response": content, **message}
        line: Json = {"model": self.model, "created_at": _CREATED, **said, "done": bool(done_reason)}
        if self.body.get("logprobs") and self.server.has_logprobs and content:
            line["logprobs"] = [{"token": content, "logprob": -0.5, "top_logprobs": [{"token": "x", "logprob": -2.0}]}]
        return line | ({"done_reason": done_reason} if done_reason else {})

    def chunks(self) -> Iterator[Json]:
        """All lines but the last."""
        calls = self._calls()
        for piece in re.findall(r"\s*\S+", self.server.thinking) if self.body.get("think") is not False else ():
            yield self.chunk("", thinking=piece)
        for piece in [] if calls else self._pieces():
            yield self.chunk(piece)
        if calls:
            yield self.chunk("", tool_calls=calls)

    def whole(self) -> Json:
        """Return the answer in one line."""
        calls = self._calls()
        return self.last("" if calls else "".join(self._pieces()), **({"tool_calls": calls} if calls else {}))

    def last(self, content: str, **message: object) -> Json:
        """Return the line that ends the answer, with what was counted."""
        num_pieces = max(1, len(self._pieces()))
        is_cut = self._limit() is not None and self._limit() == len(self._pieces())
        return self.chunk(content, done_reason="length" if is_cut else "stop", **message) | {
            "total_duration": 250_000_000,
            "load_duration": 50_000_000,
            "prompt_eval_count": self.context // 2 if self.is_too_long else self.num_prompt,
            "prompt_eval_duration": 40_000_000,
            "eval_count": num_pieces,
            "eval_duration": 160_000_000,
        }

    def _limit(self) -> int | None:
        limit = self.options.get("num_predict", -1)
        return limit if isinstance(limit, int) and limit > 0 else None

    def _pieces(self) -> list[str]:
        return re.findall(r"\s*\S+|\s+$", self._text())[: self._limit()]

    def _text(self) -> str:
        if self.server.answer is not None:
            return self.server.answer
        form = self.body.get("format")
        if form == "json":
            return "{}"
        return json.dumps(sample_of(cast("Json", form))) if form else GREETING

    def _calls(self) -> list[Json]:
        if self.server.tool_calls:
            return list(self.server.tool_calls)
        call = sample_call(self.body.get("tools"), self.body.get("messages"))
        if call is None or self.server.answer is not None:
            return []
        return [{"function": {"index": 0, "name": call[0], "arguments": call[1]}}]


@contextmanager
def ollama_server(**scripted: object) -> Generator[OllamaServer]:
    """A fake Ollama on a free port; takes the fields of `OllamaServer`."""
    server = OllamaServer(**scripted)  # pyright: ignore[reportArgumentType]
    with serve(server.app()) as url:
        server.url = url
        yield server


def _needed(body: Json) -> Iterator[str]:
    if "input" in body:
        yield "embedding"
    else:
        yield "completion"
    if body.get("tools"):
        yield "tools"
    if body.get("think"):
        yield "thinking"
    if any(message.get("images") for message in cast("list[Json]", body.get("messages") or [])):
        yield "vision"


_DETAILS: Json = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "3.2B",
    "quantization_level": "Q4_K_M",
}


def _tag(model: str) -> Json:
    size = 2_019_393_189
    return {
        "name": model,
        "model": model,
        "modified_at": _CREATED,
        "size": size,
        "digest": _DIGEST,
        "details": _DETAILS,
    }


def _greet(_: Request) -> Response:
    return PlainTextResponse("Ollama is running")


def _version(_: Request) -> Response:
    return JSONResponse({"version": "0.13.1"})


def _not_found(model: object) -> Response:
    return JSONResponse({"error": f"model '{model}' not found"}, status_code=404)
