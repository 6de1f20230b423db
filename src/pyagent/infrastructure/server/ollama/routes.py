"""Ollama's API: answers and vectors. Its models are in `models`."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from pyagent import __version__
from pyagent.core.backends import AGENT_PREFIX, collect
from pyagent.core.messages import ChatRequest, EmbedRequest, EmbedResult, Message, ModelInfo, SamplingParams
from pyagent.infrastructure.server.admin_routes import engine_links
from pyagent.infrastructure.server.api_keys import check_admin, is_admin, owned
from pyagent.infrastructure.server.ollama.models import named_model, pull, show, show_loaded, tags
from pyagent.infrastructure.server.ollama.replies import OllamaEncoder, loaded, nanoseconds
from pyagent.infrastructure.server.ollama.requests import (
    EmbedBody,
    EmbeddingsBody,
    ParsedRequest,
    read_chat,
    read_embed,
    read_generate,
)
from pyagent.infrastructure.server.service import Service, json_response
from pyagent.infrastructure.server.streaming import unless_gone
from pyagent.infrastructure.server.validation import decode
from pyagent.infrastructure.server.vectors import shortened

__all__ = ["chat", "embed", "embeddings", "generate", "pull", "show", "show_loaded", "tags", "version"]

_SPOKEN_VERSION = "0.13.1"
"""The version of Ollama whose API this is; clients refuse to talk to one that is too old."""


async def version(_service: Service, _request: Request) -> Response:
    """GET /api/version."""
    return json_response({"version": _SPOKEN_VERSION, "pyagent": __version__})


async def chat(service: Service, request: Request) -> Response:
    """POST /api/chat."""
    return await _answer(service, request, read_chat, is_chat=True)


async def generate(service: Service, request: Request) -> Response:
    """POST /api/generate."""
    return await _answer(service, request, read_generate, is_chat=False)


async def _answer(
    service: Service, request: Request, read: Callable[[bytes], ParsedRequest], *, is_chat: bool
) -> Response:
    asked = await service.read(request, read)
    model = await named_model(service, asked.model)
    name = asked.model or model.id
    if asked.request is None:
        if asked.is_unloaded:
            check_admin(request)
            await _unload(service)
        else:
            await unless_gone(_load(service, request, model), request.receive)
        return json_response(loaded(name, "unload" if asked.is_unloaded else "load", is_chat=is_chat))
    to_ask = msgspec.structs.replace(asked.request, model=asked.model and model.id)
    history = asked.request.messages if asked.keeps_context else None
    reply = OllamaEncoder(name, is_chat, asked.has_thinking, history)
    response = await service.answer(request, to_ask, reply, is_streamed=asked.is_streamed)
    if asked.is_unloaded and is_admin(request):  # others may be using it
        response.background = BackgroundTask(_unload, service)
    return response


async def _load(service: Service, request: Request, model: ModelInfo) -> None:
    """Have the model ready, which an answer of one token shows of any backend; an agent has nothing to load."""
    if not model.id.startswith(AGENT_PREFIX):
        asked = ChatRequest(
            model=model.id, messages=[Message("user", "Hello")], sampling=SamplingParams(max_tokens=1, temperature=0)
        )
        await collect(service.backend.chat(owned(asked, request)))


async def _unload(service: Service) -> None:
    """Have the engines give their memory back, until the next request."""
    for link in engine_links(service.backend):
        await link.sleep(2)


async def embed(service: Service, request: Request) -> Response:
    """POST /api/embed."""
    started = time.perf_counter()
    parsed, texts = await service.read(request, read_embed)
    found = await _embedded(service, request, parsed, texts)
    vectors = shortened(found.vectors, parsed.dimensions)
    body = {"model": parsed.model, "embeddings": vectors, "total_duration": nanoseconds(time.perf_counter() - started)}
    return json_response(body | {"load_duration": 0, "prompt_eval_count": found.usage.prompt_tokens})


async def embeddings(service: Service, request: Request) -> Response:
    """POST /api/embeddings, the older form; without a prompt there is no vector."""
    parsed = await service.read(request, lambda body: decode(body, EmbeddingsBody, {}))
    if not parsed.prompt:
        await named_model(service, parsed.model)
        return json_response({"embedding": list[float]()})
    return json_response({"embedding": (await _embedded(service, request, parsed, [parsed.prompt])).vectors[0]})


async def _embedded(
    service: Service, request: Request, parsed: EmbedBody | EmbeddingsBody, texts: list[str]
) -> EmbedResult:
    model = await named_model(service, parsed.model)
    # A text that is too long is cut unless the request says otherwise; the older form always cuts.
    truncates = parsed.truncate is not False if isinstance(parsed, EmbedBody) else True
    asked = EmbedRequest(model=parsed.model and model.id, input=texts, private=bool(parsed.private), truncate=truncates)
    return await service.embed(request, asked)
