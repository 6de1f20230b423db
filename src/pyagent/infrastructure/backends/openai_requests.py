"""OpenAI's wire format as a client writes it. Pure; what is sent is only what was asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from pyagent.core.abilities import SOFT
from pyagent.core.errors import UnsupportedError
from pyagent.core.messages import (
    ChatRequest,
    JsonObject,
    Message,
    ResponseFormat,
    SamplingParams,
    ToolCall,
    check_echo,
)
from pyagent.infrastructure.backends.openai_forms import ServerKind, form_fields


def encode_request(  # noqa: PLR0913 - what is known of the server
    request: ChatRequest,
    model: str,
    *,
    is_openai: bool = False,
    refused: Collection[str] = (),
    server: ServerKind | None = None,
    backend: str = "openai",
) -> tuple[str, bytes]:
    """The path below the base URL, and the JSON body, of a streamed answer to `request` by `model`.

    Models of OpenAI's that reason take the limit of a chat only under its newer name, which others do not all know:
    `is_openai` says whose they are, and `refused` which fields a server was found not to take. A form that OpenAI does
    not have goes as the `server` takes it.
    """
    check_echo(request)
    body: JsonObject = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    if request.sampling.prompt_logprobs is not None:  # vLLM gives them with whole answers only
        body = {"model": model}
    is_chat = bool(request.messages)
    messages = _messages(request.messages, backend)
    body |= {"messages": messages} if is_chat else {"prompt": request.prompt or ""}
    if begun_with := request.assistant_prefix + request.answer_prefix:
        begun = {"role": "assistant", "content": begun_with}
        body["messages"] = [*messages, begun]
        body |= {"continue_final_message": True, "add_generation_prompt": False}  # vLLM's; llama.cpp needs neither
    body |= _sampling(request.sampling, is_chat=is_chat)
    if is_chat and "max_tokens" in body and (is_openai or "max_tokens" in refused):
        body["max_completion_tokens"] = body.pop("max_tokens")
    for name in refused:
        body.pop(name, None)
    if request.n > 1:
        body["n"] = request.n
    if request.tools:
        body["tools"] = [{"type": "function", "function": msgspec.to_builtins(tool.function)} for tool in request.tools]
        if request.tool_choice is not None:
            body["tool_choice"] = request.tool_choice
        if not request.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    if request.reasoning_effort is not None:
        body["reasoning_effort"] = request.reasoning_effort
    if request.chat_template_kwargs:
        body["chat_template_kwargs"] = request.chat_template_kwargs
    if request.response_format and request.response_format.type != "text":
        fields = form_fields(request.response_format, server) if server else None
        body |= fields or {"response_format": _response_format(request.response_format)}
    return "chat/completions" if is_chat else "completions", msgspec.json.encode(body)


def _messages(messages: Sequence[Message], backend: str) -> list[JsonObject]:
    """The messages, without thoughts: not all servers take those back. Each result of a call names it by its id."""
    named = {message.tool_call_id for message in messages if message.role == "tool"}
    unanswered, told = list[ToolCall](), list[Message]()
    for number, message in enumerate(messages):
        call_id = message.tool_call_id or None
        if message.role == "tool" and call_id is None:
            call_id = _answered(unanswered, message.name)
            if call_id is None:
                where = f"messages[{number}]"
                text = f"{backend} takes no result of a tool that no call before it asked for ({where})"
                raise UnsupportedError(text, backend=backend, fields=[where])
        unanswered += [call for call in message.tool_calls or () if call.id not in named]
        told.append(msgspec.structs.replace(message, reasoning_content=None, tool_call_id=call_id))
    return msgspec.to_builtins(told)


def _answered(unanswered: list[ToolCall], name: str | None) -> str | None:
    """Return the id of the call that a result without one answers: of its name, in order, as in Ollama's API."""
    for call in unanswered:
        if name in {None, "", call.function.name}:
            unanswered.remove(call)
            return call.id
    return None


_SAMPLING = tuple(
    name
    for name in SamplingParams.__struct_fields__
    if name not in {"temperature", "stop", "logit_bias", "top_logprobs", "fields_set"}
)
"""Fields that go as they are: vLLM and llama.cpp have them under these names."""


def _sampling(sampling: SamplingParams, *, is_chat: bool) -> JsonObject:
    """What differs from the defaults, and hints given as these, since servers have others; temperature always."""
    plain = SamplingParams()
    given = SOFT.intersection(sampling.fields_set)
    body: JsonObject = {"temperature": sampling.temperature}
    for name in _SAMPLING:
        value: object = getattr(sampling, name)
        if value != getattr(plain, name) or name in given:
            body[name] = value
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.logit_bias:
        body["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias.items()}
    if sampling.top_logprobs is not None:
        body |= (
            {"logprobs": True, "top_logprobs": sampling.top_logprobs}
            if is_chat
            else {"logprobs": sampling.top_logprobs}
        )
    return body


def _response_format(wanted: ResponseFormat) -> JsonObject:
    """OpenAI's form."""
    if wanted.json_schema is None:
        return {"type": wanted.type}
    spec: JsonObject = {"name": wanted.json_schema.name, "schema": wanted.json_schema.schema}
    if wanted.json_schema.strict is not None:
        spec["strict"] = wanted.json_schema.strict
    if wanted.json_schema.description:
        spec["description"] = wanted.json_schema.description
    return {"type": wanted.type, "json_schema": spec}
