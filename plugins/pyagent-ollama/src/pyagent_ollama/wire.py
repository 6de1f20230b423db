"""What goes over Ollama's wire: requests out of `ChatRequest`s, deltas out of NDJSON lines. Pure; opens no socket."""

from __future__ import annotations

import base64
import binascii
import json
import re
import uuid
from typing import Literal, TypeVar, cast

import msgspec

from pyagent.plugin import (
    BackendError,
    CapacityError,
    ChatDelta,
    ChatRequest,
    ContextOverflowError,
    EmbedResult,
    ImagePart,
    Message,
    ModelInfo,
    PyAgentError,
    ReasoningEffort,
    RequestError,
    ResponseFormat,
    SamplingParams,
    Timings,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    UnsupportedError,
    Usage,
)
from pyagent_ollama.options import LinkOptions

JsonObject = dict[str, object]
T = TypeVar("T")

_TOO_LONG = re.compile(r"exceeds? .*context|context length|prompt is too long|input length", re.IGNORECASE)


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


class _Rival(msgspec.Struct):
    token: str
    logprob: float


class _Logprob(msgspec.Struct):
    token: str
    logprob: float
    top_logprobs: list[_Rival] = []


class Chunk(msgspec.Struct):
    """One line of a streamed answer; an error line has only `error`. Durations are nanoseconds.

    A chat's text is in `message`, that of a plain prompt in `response` and `thinking`.
    """

    message: _Message = msgspec.field(default_factory=_Message)
    response: str = ""
    thinking: str = ""
    logprobs: list[_Logprob] | None = None
    done: bool = False
    done_reason: str = ""
    error: str = ""
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_duration: int = 0
    eval_duration: int = 0
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


class RunningModel(msgspec.Struct, frozen=True):
    """A loaded model, and the context it runs with (0 where Ollama does not say)."""

    name: str
    context_length: int = 0


class _Running(msgspec.Struct):
    models: list[RunningModel] | None = None


class ShownModel(msgspec.Struct):
    """What POST /api/show says of a model. Old versions name no capabilities; then it is taken to have all."""

    capabilities: list[str] | None = None
    model_info: dict[str, object] | None = None

    def can(self, ability: str) -> bool:
        """Whether it has a capability, by Ollama's word for it."""
        return self.capabilities is None or ability in self.capabilities

    @property
    def context_length(self) -> int | None:
        """The longest context the model allows."""
        info = self.model_info or {}
        found = info.get(f"{info.get('general.architecture')}.context_length")
        return found if isinstance(found, int) and found > 0 else None


class PullProgress(msgspec.Struct, frozen=True):
    """How far a download is: what is done now, and of which layer how many bytes are here."""

    status: str = ""
    digest: str = ""
    total: int = 0
    completed: int = 0
    error: str = ""


class _Embeddings(msgspec.Struct):
    model: str = ""
    embeddings: list[list[float]] = []
    prompt_eval_count: int = 0


_LEVELS: dict[ReasoningEffort, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}
"""Ollama's words for how much to reason."""


def encode_request(
    request: ChatRequest, shown: ShownModel, num_ctx: int, link: LinkOptions, backend: str
) -> tuple[str, bytes]:
    """Path and body of a streamed answer: a chat, or the continuation of a plain text."""
    body: JsonObject = {
        "model": request.model,
        "stream": True,
        "truncate": False,
        "shift": False,
        "options": _options(request.sampling) | {"num_ctx": num_ctx},
    }
    if link.keep_alive is not None:
        body["keep_alive"] = link.keep_alive
    if request.sampling.top_logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": request.sampling.top_logprobs}
    if (schema := answer_format(request.response_format)) is not None:
        body["format"] = schema
    if request.reasoning_effort is not None and shown.can("thinking"):
        body["think"] = _LEVELS[request.reasoning_effort]
    elif link.think is not None:
        body["think"] = link.think
    elif schema is not None and shown.can("thinking") and shown.capabilities is not None:
        body["think"] = False  # a grammar holds for the thoughts too, and they are all that comes
    if not request.messages:
        return "/api/generate", msgspec.json.encode(body | {"prompt": request.prompt or "", "raw": True})
    body["messages"] = [_encode_message(message, request.messages, backend) for message in request.messages]
    if request.tools:
        body["tools"] = [{"type": "function", "function": tool.function} for tool in request.tools]
    return "/api/chat", msgspec.json.encode(body)


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
    has_penalty = sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty
    optional: JsonObject = {
        "num_predict": sampling.max_tokens,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "repeat_last_n": sampling.repeat_last_n if has_penalty else None,  # Ollama's own default is 64 tokens
        "typical_p": sampling.typical_p if sampling.typical_p != 1 else None,
    }
    return options | {key: value for key, value in optional.items() if value is not None}


def answer_format(wanted: ResponseFormat | None) -> str | JsonObject | None:
    """Ollama's `format`: `"json"`, a JSON schema or nothing."""
    match wanted.type if wanted else "text":
        case "json_object":
            return "json"
        case "json_schema" if wanted and wanted.json_schema:
            return wanted.json_schema.schema
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
        body |= {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
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
        text = f"{backend} takes images as base64 data URLs only"
        raise UnsupportedError(text, backend=backend, fields=["images"])
    try:
        base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise RequestError(f"an image's base64 is broken: {error}", param="messages") from error
    return data


def decode_chunk(line: bytes, backend: str) -> Chunk:
    """One line; raises `BackendError` for a line that is no chunk, and for an error Ollama reports in mid-stream."""
    try:
        chunk = msgspec.json.decode(line, type=Chunk)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BackendError(f"{backend} sent a line that is no chat chunk: {error}", backend=backend) from error
    if chunk.error:
        raise BackendError(f"{backend} failed in mid-answer: {chunk.error}", backend=backend)
    return chunk


def delta_of(chunk: Chunk, request: ChatRequest, backend: str, num_calls: int = 0) -> ChatDelta | None:
    """What a chunk adds to the answer, which made `num_calls` before; None when nothing.

    Raises `UnsupportedError` when logprobs are asked for in vain.
    """
    message = chunk.message
    calls = [
        ToolCallDelta(
            index=index,
            id=call.id or f"call_{uuid.uuid4().hex[:12]}",
            name=call.function.name,
            arguments=json.dumps(call.function.arguments),
        )
        for index, call in enumerate(message.tool_calls, num_calls)
    ]
    content, reasoning = message.content or chunk.response, message.thinking or chunk.thinking
    if content and request.sampling.top_logprobs is not None and chunk.logprobs is None:
        text = f"{backend} cannot do top_logprobs in this version; Ollama 0.12.11 can"
        raise UnsupportedError(text, backend=backend, fields=["top_logprobs"])
    if not (content or reasoning or calls):
        return None
    return ChatDelta(
        content=content,
        reasoning=reasoning,
        tool_calls=calls,
        logprobs=[
            TokenLogprob(entry.token, entry.logprob, [(rival.token, rival.logprob) for rival in entry.top_logprobs])
            for entry in chunk.logprobs or []
        ],
        model=request.model,
        backend=backend,
    )


def last_delta(chunk: Chunk, model: str, backend: str, *, has_calls: bool) -> ChatDelta:
    """The end of an answer: why it ended, and the tokens counted."""
    reason: Literal["tool_calls", "length", "stop"] = "length" if chunk.done_reason == "length" else "stop"
    timings = Timings(
        queue_seconds=chunk.load_duration / 1e9,
        prefill_seconds=chunk.prompt_eval_duration / 1e9,
        first_token_seconds=(chunk.load_duration + chunk.prompt_eval_duration) / 1e9,
        inter_token_seconds=chunk.eval_duration / max(1, chunk.eval_count - 1) / 1e9,
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
    return [
        ModelInfo(
            id=tag.name,
            backend=backend,
            size_bytes=tag.size,
            architecture=tag.details.family or None,
            quantization=tag.details.quantization_level or None,
            context_length=tag.details.context_length,
        )
        for tag in _decoded(body, _Tags, backend, "/api/tags").models or []
    ]


def decode_running(body: bytes, backend: str) -> list[RunningModel]:
    """The models GET /api/ps lists."""
    return _decoded(body, _Running, backend, "/api/ps").models or []


def decode_shown(body: bytes, backend: str) -> ShownModel:
    """What POST /api/show says."""
    return _decoded(body, ShownModel, backend, "/api/show")


def decode_progress(line: bytes, backend: str) -> PullProgress:
    """A line of POST /api/pull; raises `BackendError` for the error it may be."""
    progress = _decoded(line, PullProgress, backend, "/api/pull")
    if progress.error:
        raise BackendError(f"{backend} cannot fetch the model: {progress.error}", backend=backend, retryable=False)
    return progress


def decode_embeddings(body: bytes, backend: str, count: int) -> EmbedResult:
    """One vector for each of `count` texts."""
    said = _decoded(body, _Embeddings, backend, "/api/embed")
    if len(said.embeddings) != count:
        raise BackendError(f"{backend} gave {len(said.embeddings)} vectors for {count} texts", backend=backend)
    usage = Usage(prompt_tokens=said.prompt_eval_count, total_tokens=said.prompt_eval_count)
    return EmbedResult(vectors=said.embeddings, model=said.model, usage=usage)


def _decoded(body: bytes, kind: type[T], backend: str, path: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BackendError(f"{backend}: {path} gave what cannot be read: {error}", backend=backend) from error


def error_of(status: int, body: bytes, backend: str) -> PyAgentError:
    """The error an answer with a bad status stands for."""
    try:
        said = cast("object", json.loads(body))
        text = str(cast("JsonObject", said).get("error")) if isinstance(said, dict) else str(said)
    except ValueError:
        text = body[:200].decode("utf-8", "replace") or "no reason given"
    if status == 404 and "not found" in text:
        return RequestError(f"{backend}: {text}; try: ollama pull MODEL", param="model", code="model_not_found")
    if status == 400 and _TOO_LONG.search(text):
        return ContextOverflowError(f"{backend}: {text}", num_tokens=0, limit=0)
    if status == 508:  # another PyAgent's word, which Ollama's API can be
        return RequestError(f"{backend}: {text}", code="loop_detected")
    if status in {401, 403}:
        hint = "set OLLAMA_API_KEY in the environment"
        return BackendError(
            f"{backend}: {text} (HTTP {status}); {hint}", backend=backend, retryable=False, status=status
        )
    if status in {429, 503}:
        return CapacityError(f"{backend} is busy: {text}")
    return BackendError(f"{backend} answered {status}: {text}", backend=backend, retryable=status >= 500, status=status)
