"""What the SDK is asked and what its results mean: histories, configs, stop reasons. Pure; opens no socket."""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import Mapping
from typing import cast

import lmstudio
import msgspec
from lmstudio.json_api import PredictionFragmentEvent, PredictionToolCallAbortedEvent, PredictionToolCallEvent

from pyagent.plugin import (
    BackendError,
    ChatDelta,
    ChatRequest,
    ContextOverflowError,
    FinishReason,
    ImagePart,
    Message,
    RequestError,
    ResponseFormat,
    Timings,
    ToolCall,
    ToolCallDelta,
    UnsupportedError,
    Usage,
)

JsonObject = dict[str, object]

_STOP_REASONS: dict[str, FinishReason] = {
    "eosFound": "stop",
    "stopStringFound": "stop",
    "toolCalls": "tool_calls",
    "maxPredictedTokensReached": "length",
    "contextLengthReached": "length",
    "userStopped": "abort",
}


def history_of(request: ChatRequest, images: Mapping[str, JsonObject]) -> JsonObject:
    """The conversation in the SDK's wire format; `images` are the files that its image URLs became."""
    return {"messages": [_message(message, images) for message in request.messages]}


def _message(message: Message, images: Mapping[str, JsonObject]) -> JsonObject:
    if message.role == "tool":
        result: JsonObject = {"type": "toolCallResult", "content": message.text}
        result |= {"toolCallId": message.tool_call_id} if message.tool_call_id else {}
        return {"role": "tool", "content": [result]}
    parts: list[JsonObject] = [{"type": "text", "text": message.text}]  # the SDK wants some before calls
    parts += [images[url] for url in image_urls(message)]
    calls: list[JsonObject] = [
        {"type": "toolCallRequest", "toolCallRequest": _call(call)} for call in message.tool_calls or []
    ]
    parts += calls
    return {"role": "system" if message.role == "developer" else message.role, "content": parts}


def _call(call: ToolCall) -> JsonObject:
    try:
        arguments = cast("object", json.loads(call.function.arguments or "{}"))
    except ValueError as error:
        text = f"the arguments of the call of {call.function.name} are not JSON"
        raise RequestError(text, param="messages") from error
    return {"type": "function", "id": call.id, "name": call.function.name, "arguments": arguments}


def image_urls(message: Message) -> list[str]:
    """The URLs of a message's images."""
    if not isinstance(message.content, list):
        return []
    return [part.image_url.url for part in message.content if isinstance(part, ImagePart)]


def image_bytes(url: str, backend: str) -> bytes:
    """The image in a data URL. Raises `BackendError` for one elsewhere, `RequestError` for one that is broken."""
    header, comma, data = url.partition(",")
    if not header.startswith("data:") or not header.endswith(";base64") or not comma:
        text = f"{backend} takes images as base64 data URLs only"
        raise UnsupportedError(text, backend=backend, fields=["images"])
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise RequestError(f"an image's base64 is broken: {error}", param="messages") from error


def config_of(request: ChatRequest) -> JsonObject:
    """Every sampling parameter spelt out: the server's presets are not what was asked for.

    A conversation that outgrows the context ends there; by its presets LM Studio would leave out its middle.
    """
    sampling, wanted = request.sampling, request.response_format
    config: JsonObject = {
        "temperature": sampling.temperature,
        "topPSampling": sampling.top_p,
        "topKSampling": sampling.top_k,
        "minPSampling": sampling.min_p,
        "repeatPenalty": sampling.repetition_penalty,
        "contextOverflowPolicy": "stopAtLimit",
    }
    if sampling.max_tokens is not None:
        config["maxTokens"] = sampling.max_tokens
    if sampling.stop:
        config["stopStrings"] = list(sampling.stop)
    if wanted and wanted.type == "json_object":
        config["structured"] = {"type": "json"}
    if request.tools:
        functions = [msgspec.to_builtins(tool.function) for tool in request.tools]
        tools = [{"type": "function", "function": {"parameters": {}} | function} for function in functions]
        config["rawTools"] = {"type": "toolArray", "tools": tools}
    return config


def schema_of(wanted: ResponseFormat | None) -> JsonObject | None:
    """The JSON schema the answer must follow, when one was asked for."""
    if wanted and wanted.type == "json_schema" and wanted.json_schema:
        return wanted.json_schema.schema
    return None


def delta_of(event: object, model: str, backend: str, num_calls: int = 0) -> ChatDelta | None:
    """What an event adds to the answer, which made `num_calls` before; None when nothing."""
    match event:
        case PredictionFragmentEvent(arg=fragment) if fragment.reasoning_type == "none":
            return ChatDelta(content=fragment.content, model=model, backend=backend)
        case PredictionFragmentEvent(arg=fragment) if fragment.reasoning_type == "reasoning":
            return ChatDelta(reasoning=fragment.content, model=model, backend=backend)
        case PredictionToolCallEvent(arg=asked):
            id_, arguments = asked.id or f"call_{uuid.uuid4().hex[:12]}", json.dumps(asked.arguments or {})
            call = ToolCallDelta(index=num_calls, id=id_, name=asked.name, arguments=arguments)
            return ChatDelta(tool_calls=[call], model=model, backend=backend)
        case PredictionToolCallAbortedEvent():
            raise BackendError(f"{backend} could not read a tool call of the model", backend=backend)
        case _:
            return None


def _timings(stats: lmstudio.LlmPredictionStats, num_output_tokens: int) -> Timings | None:
    """Where the time went; None where LM Studio does not say all of it."""
    first, rate = stats.time_to_first_token_sec, stats.tokens_per_second
    if first is None or not rate:
        return None
    return Timings(
        prefill_seconds=first,
        first_token_seconds=first,
        inter_token_seconds=1 / rate,
        total_seconds=first + num_output_tokens / rate,
    )


def last_delta(stats: lmstudio.LlmPredictionStats, model: str, backend: str, *, has_calls: bool) -> ChatDelta:
    """The end of an answer; raises `BackendError` when the model failed or was unloaded meanwhile."""
    reason = _STOP_REASONS.get(stats.stop_reason)
    if reason is None:
        raise BackendError(f"{backend} ended its answer because of {stats.stop_reason}", backend=backend)
    num_prompt = int(stats.prompt_tokens_count or 0)
    num_completion = int(stats.predicted_tokens_count or 0)
    if stats.stop_reason == "contextLengthReached" and num_completion == 0:
        text = f"{backend}: the prompt fills the model's context; shorten it, or load the model with a longer one"
        raise ContextOverflowError(text, num_tokens=num_prompt, limit=num_prompt)
    usage = Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        timings=_timings(stats, num_completion),
    )
    reason = "tool_calls" if has_calls else reason
    return ChatDelta(finish_reason=reason, usage=usage, model=model, backend=backend)
