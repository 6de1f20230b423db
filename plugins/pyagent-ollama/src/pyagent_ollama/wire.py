"""What goes over Ollama's wire: requests out of `ChatRequest`s, deltas out of NDJSON lines. Pure; opens no socket."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Literal, cast

import msgspec

from pyagent.plugin import (
    BackendError,
    CapacityError,
    ChatDelta,
    ChatRequest,
    FunctionCall,
    ImagePart,
    Message,
    ModelInfo,
    PyAgentError,
    RequestError,
    ResponseFormat,
    SamplingParams,
    Timings,
    ToolCall,
    Usage,
)

JsonObject = dict[str, object]


class _Function(msgspec.Struct):
    name: str
    arguments: JsonObject = {}


class _Call(msgspec.Struct):
    function: _Function
    id: str = ""


class _Message(msgspec.Struct):
    content: str = ""
    thinking: str = ""
    tool_calls: list[_Call] = []


class Chunk(msgspec.Struct):
    """One line of a streamed answer; an error line has only `error`. Durations are nanoseconds."""

    message: _Message = msgspec.field(default_factory=_Message)
    done: bool = False
    done_reason: str = ""
    error: str = ""
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_duration: int = 0
    prompt_eval_count: int = 0
    eval_count: int = 0


class _Details(msgspec.Struct):
    family: str = ""
    quantization_level: str = ""
    context_length: int | None = None


class _Tag(msgspec.Struct):
    name: str
    size: int | None = None
    details: _Details = msgspec.field(default_factory=_Details)


class _Tags(msgspec.Struct):
    models: list[_Tag] | None = None


def encode_chat(request: ChatRequest, model: str, backend: str) -> bytes:
    """The body of POST /api/chat. Raises `BackendError` for what Ollama cannot do, so that a chain goes on."""
    _refuse_what_is_missing(request, backend)
    body: JsonObject = {
        "model": model,
        "messages": [_encode_message(message, request.messages, backend) for message in request.messages],
        "stream": True,
        "options": _options(request.sampling),
    }
    if request.tools:
        body["tools"] = request.tools
    if (schema := answer_format(request.response_format)) is not None:
        body["format"] = schema
    return msgspec.json.encode(body)


def _refuse_what_is_missing(request: ChatRequest, backend: str) -> None:
    sampling = request.sampling
    missing = {
        "prompts without messages": not request.messages,
        "logit_bias": bool(sampling.logit_bias),
        "ignore_eos": sampling.ignore_eos,
        "top_logprobs": sampling.top_logprobs is not None,
        "tool_choice": request.tool_choice not in {None, "auto"},
    }
    for what, is_asked in missing.items():
        if is_asked:
            raise BackendError(f"{backend} cannot do {what}", backend=backend, retryable=False)


def _options(sampling: SamplingParams) -> JsonObject:
    """Every option spelt out: Ollama's own defaults (0.8, 40, 0.9) are not what was asked for."""
    options: JsonObject = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    optional = {"num_predict": sampling.max_tokens, "seed": sampling.seed, "stop": list(sampling.stop) or None}
    return options | {key: value for key, value in optional.items() if value is not None}


def answer_format(wanted: ResponseFormat | None) -> str | JsonObject | None:
    """Ollama's `format`: `"json"`, a JSON schema or nothing."""
    match wanted.type if wanted else "text":
        case "json_object":
            return "json"
        case "json_schema" if wanted and wanted.json_schema:
            return wanted.json_schema.schema
        case "choice" if wanted:
            return {"type": "string", "enum": wanted.choice or []}
        case _:
            return None


def _encode_message(message: Message, conversation: list[Message], backend: str) -> JsonObject:
    body: JsonObject = {"role": "system" if message.role == "developer" else message.role, "content": message.text}
    if isinstance(message.content, list):
        images = [_image(part, backend) for part in message.content if isinstance(part, ImagePart)]
        body |= {"images": images} if images else {}
    if message.tool_calls:
        body["tool_calls"] = [_encode_call(call) for call in message.tool_calls]
    if message.role == "tool":
        body["tool_name"] = message.name or _called_name(message.tool_call_id, conversation)
    return body


def _encode_call(call: ToolCall) -> JsonObject:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError as error:
        raise RequestError(
            f"the arguments of the call of {call.function.name} are not JSON", param="messages"
        ) from error
    return {"id": call.id, "function": {"name": call.function.name, "arguments": arguments}}


def _called_name(call_id: str | None, conversation: list[Message]) -> str:
    calls = (call for message in conversation for call in message.tool_calls or [])
    return next((call.function.name for call in calls if call.id == call_id), "")


def _image(part: ImagePart, backend: str) -> str:
    header, comma, data = part.image_url.url.partition(",")
    if not header.startswith("data:") or not header.endswith(";base64") or not comma:
        raise BackendError(f"{backend} takes images as base64 data URLs only", backend=backend, retryable=False)
    try:
        base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise RequestError(f"an image's base64 is broken: {error}", param="messages") from error
    return data


def decode_chunk(line: bytes, backend: str) -> Chunk:
    """One line; raises `BackendError` for a line that is no chunk, and for an error Ollama reports in mid-stream."""
    try:
        chunk = msgspec.json.decode(line, type=Chunk)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackendError(f"{backend} sent a line that is no chat chunk: {error}", backend=backend) from error
    if chunk.error:
        raise BackendError(f"{backend} failed in mid-answer: {chunk.error}", backend=backend)
    return chunk


def delta_of(chunk: Chunk, model: str, backend: str) -> ChatDelta | None:
    """What a chunk adds to the answer; None when nothing."""
    message = chunk.message
    calls = [
        ToolCall(
            id=call.id or f"call_{index}_{call.function.name}",
            function=FunctionCall(call.function.name, json.dumps(call.function.arguments)),
        )
        for index, call in enumerate(message.tool_calls)
    ]
    if not (message.content or message.thinking or calls):
        return None
    return ChatDelta(
        content=message.content, reasoning=message.thinking, tool_calls=calls, model=model, backend=backend
    )


def last_delta(chunk: Chunk, model: str, backend: str, *, has_calls: bool) -> ChatDelta:
    """The end of an answer: why it ended, and the tokens counted."""
    reason: Literal["tool_calls", "length", "stop"] = "length" if chunk.done_reason == "length" else "stop"
    timings = Timings(
        first_token_seconds=(chunk.load_duration + chunk.prompt_eval_duration) / 1e9,
        total_seconds=chunk.total_duration / 1e9,
    )
    usage = Usage(
        prompt_tokens=chunk.prompt_eval_count,
        completion_tokens=chunk.eval_count,
        total_tokens=chunk.prompt_eval_count + chunk.eval_count,
        timings=timings,
    )
    return ChatDelta(finish_reason="tool_calls" if has_calls else reason, usage=usage, model=model, backend=backend)


def decode_tags(body: bytes, backend: str) -> list[ModelInfo]:
    """The models GET /api/tags lists."""
    try:
        tags = msgspec.json.decode(body, type=_Tags).models or []
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackendError(f"{backend}: /api/tags is not a list of models: {error}", backend=backend) from error
    return [
        ModelInfo(
            id=tag.name,
            backend=backend,
            size_bytes=tag.size,
            architecture=tag.details.family or None,
            quantization=tag.details.quantization_level or None,
            context_length=tag.details.context_length,
        )
        for tag in tags
    ]


def error_of(status: int, body: bytes, backend: str) -> PyAgentError:
    """The error an answer with a bad status stands for."""
    try:
        said = cast("object", json.loads(body))
        text = str(cast("JsonObject", said).get("error")) if isinstance(said, dict) else str(said)
    except ValueError:
        text = body[:200].decode("utf-8", "replace") or "no reason given"
    if status == 404 and "not found" in text:
        return RequestError(f"{backend}: {text}; try: ollama pull MODEL", param="model", code="model_not_found")
    if status == 503:
        return CapacityError(f"{backend} is busy: {text}")
    return BackendError(f"{backend} answered {status}: {text}", backend=backend, retryable=status >= 500, status=status)


def read_choice(text: str, choices: list[str], backend: str) -> str:
    """The choice inside the JSON string that a constrained answer is."""
    try:
        value = cast("object", json.loads(text))
    except ValueError:
        value = text.strip()
    if value not in choices:
        raise BackendError(f"{backend} answered {text[:80]!r}, which is none of the choices", backend=backend)
    return str(value)
