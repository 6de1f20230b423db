"""Anthropic's API: messages, and how many tokens they would be."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from pyagent.core.errors import RequestError
from pyagent.core.prompt_cache import ExplainPrompt
from pyagent.infrastructure.server.anthropic.replies import MessageEncoder
from pyagent.infrastructure.server.anthropic.requests import read_count, read_messages
from pyagent.infrastructure.server.api_keys import owned
from pyagent.infrastructure.server.bounds import check_request
from pyagent.infrastructure.server.service import Service, json_response


async def messages(service: Service, request: Request) -> Response:
    """POST /v1/messages."""
    asked = await service.read(request, read_messages)
    reply = MessageEncoder(str(request.state.request_id), asked.model, asked.has_thinking, asked.eager_tools)
    return await service.answer(request, asked.request, reply, is_streamed=asked.is_streamed)


async def count_tokens(service: Service, request: Request) -> Response:
    """POST /v1/messages/count_tokens: as many as the embedded engine would compute or find; others cannot tell."""
    asked = await service.read(request, read_count)
    check_request(asked)
    backend, asked = await service.addressed(asked)
    query = backend.capabilities.query_cache
    report = None if query is None else (await query(ExplainPrompt(owned(asked, request)))).report
    if report is None:
        raise RequestError(f"{backend.name} cannot count tokens without answering", param="model")
    return json_response({"input_tokens": report.prompt_tokens})
