"""OpenAI's API: completions of chats and of plain prompts, and the list of models."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from pyagent.core.errors import RequestError
from pyagent.core.messages import EmbedRequest
from pyagent.infrastructure.models.names import find_model
from pyagent.infrastructure.server.openai.embeddings import embeddings_body, read_embeddings
from pyagent.infrastructure.server.openai.replies import OpenAIEncoder, anthropic_models, model_entry
from pyagent.infrastructure.server.openai.requests import ParsedRequest, read_chat, read_completion
from pyagent.infrastructure.server.openai.response_formats import renamed
from pyagent.infrastructure.server.service import Service, by_id, json_response, unknown_model


async def chat_completions(service: Service, request: Request) -> Response:
    """POST /v1/chat/completions."""
    return await _complete(service, request, read_chat)


async def completions(service: Service, request: Request) -> Response:
    """POST /v1/completions."""
    return await _complete(service, request, read_completion)


async def embeddings(service: Service, request: Request) -> Response:
    """POST /v1/embeddings."""
    parsed = await service.read(request, read_embeddings)
    asked = EmbedRequest(
        model=parsed.model_asked,
        input=parsed.texts,
        task=parsed.task or "",
        private=bool(parsed.private),
        truncate=parsed.truncate,
    )
    found = await service.embed(request, asked)
    return json_response(embeddings_body(parsed, found))


async def list_models(service: Service, request: Request) -> Response:
    """GET /v1/models; Anthropic's clients, who ask at the same path, name a version of their API."""
    if "anthropic-version" in request.headers:
        return json_response(anthropic_models(await service.models(), service.created))
    listed = [model_entry(said, service.created) for said in by_id(await service.models()).values()]
    return json_response({"object": "list", "data": listed})


async def show_model(service: Service, request: Request) -> Response:
    """GET /v1/models/{id}."""
    wanted = str(request.path_params["id"])
    models = await service.models()
    found = find_model(wanted, models)
    if found is None:
        raise unknown_model(wanted, models)
    return json_response(model_entry(by_id(models).get(found.id, [found]), service.created))


async def _complete(service: Service, request: Request, read: Callable[[bytes], ParsedRequest]) -> Response:
    asked = await service.read(request, read)
    reply = OpenAIEncoder(
        str(request.state.request_id),
        asked.model,
        asked.is_chat,
        asked.has_usage_chunk,
        custom_tools=asked.custom_tools,
    )
    try:
        return await service.answer(request, asked.request, reply, is_streamed=asked.is_streamed, others=asked.others)
    except RequestError as error:
        named = renamed(error, asked.format_name)
        if named is error:
            raise
        raise named from error
