"""OpenAI's responses: made, read again, and forgotten."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pyagent.core.errors import RequestError
from pyagent.core.messages import JsonObject
from pyagent.infrastructure.server.responses.kept import KeptResponses
from pyagent.infrastructure.server.responses.namespaces import custom_names, namespaced
from pyagent.infrastructure.server.responses.replies import ResponseEncoder
from pyagent.infrastructure.server.responses.requests import ResponsesBody, read_response
from pyagent.infrastructure.server.service import Service, json_response


async def create(service: Service, request: Request) -> Response:
    """POST /v1/responses."""
    parsed = await service.read(request, read_response)
    client, kept = str(request.state.client), _kept(service)
    history: list[JsonObject] = []
    if parsed.previous_response_id is not None:
        previous = kept.find(parsed.previous_response_id, client, param="previous_response_id")
        history = previous.items
        parsed.private = parsed.private or bool(previous.body.get("private"))  # what is gone on from stays private

    parsed.input, is_private = kept.with_referenced(parsed.items, client)
    parsed.private = parsed.private or is_private

    def keep(body: JsonObject) -> None:
        kept.keep(client, body, history, parsed.items)

    asked = parsed.request(history)
    reply = ResponseEncoder(
        str(request.state.request_id),
        _envelope(parsed),
        keep if parsed.store is not False else None,
        namespaced=namespaced(parsed.tools or ()),
        custom_tools=custom_names(parsed.tools or ()),
        has_summary=parsed.summary is not None,
        has_sealed=parsed.has_sealed,
    )
    return await service.answer(request, asked, reply, is_streamed=bool(parsed.stream))


async def show(service: Service, request: Request) -> Response:
    """GET /v1/responses/{id}."""
    if request.query_params.get("stream", "false") != "false":
        raise RequestError("stream=true is not supported: a response that is kept is whole", param="stream")
    return json_response(_kept(service).find(request.path_params["id"], request.state.client).body)


async def input_items(service: Service, request: Request) -> Response:
    """GET /v1/responses/{id}/input_items: what was asked."""
    found = _kept(service).find(request.path_params["id"], request.state.client)
    items = [{"id": f"in_{found.body['id']}_{number}"} | item for number, item in enumerate(found.input_items)]
    ends: JsonObject = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
    return json_response({"object": "list", "data": items, "has_more": False} | ends)


async def delete(service: Service, request: Request) -> Response:
    """DELETE /v1/responses/{id}."""
    id_ = str(request.path_params["id"])
    _kept(service).remove(id_, request.state.client)
    return json_response({"id": id_, "object": "response", "deleted": True})


def _kept(service: Service) -> KeptResponses:
    """Return the responses kept, from the first request on."""
    if service.kept_responses is None:
        settings = service.settings
        service.kept_responses = KeptResponses(settings.kept_responses_bytes, settings.kept_responses_seconds)
    return service.kept_responses


def _envelope(parsed: ResponsesBody) -> JsonObject:
    """Return the fields of a response that repeat what was asked."""
    text: JsonObject = {"format": {"type": "text"}}
    if parsed.text is not None and parsed.text.format is not None:
        text["format"] = msgspec.to_builtins(parsed.text.format)
    private: JsonObject = {"private": True} if parsed.private else {}
    return private | {
        "model": parsed.model or "default",
        "instructions": parsed.instructions,
        "max_output_tokens": parsed.max_output_tokens,
        "metadata": parsed.metadata or {},
        "parallel_tool_calls": parsed.parallel_tool_calls is not False,
        "previous_response_id": parsed.previous_response_id,
        "reasoning": {"effort": parsed.reasoning.effort if parsed.reasoning else None, "summary": parsed.summary},
        "store": parsed.store is not False,
        "temperature": 1.0 if parsed.temperature is None else parsed.temperature,
        "text": text,
        "tool_choice": parsed.tool_choice or "auto",
        "tools": [tool.told() for tool in parsed.tools or ()],
        "top_logprobs": parsed.top_logprobs or 0,
        "top_p": 1.0 if parsed.top_p is None else parsed.top_p,
        "truncation": "disabled",
        "user": parsed.user,
    }
