"""OpenAI's wire format as a client speaks it: requests out, chunks and errors in.

Pure translation between `core.messages` and JSON; no socket. Servers differ, so what is read is read loosely (unknown
fields pass, missing ones have defaults) and what is sent is only what was asked for.
"""

from __future__ import annotations

import email.utils
import time
from dataclasses import dataclass, field

import msgspec

from pyagent.core.errors import BackendError, CapacityError, ContextOverflowError, PyAgentError, RequestError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    FinishReason,
    FunctionCall,
    JsonObject,
    PromptTokensDetails,
    ResponseFormat,
    SamplingParams,
    TokenLogprob,
    ToolCall,
    Usage,
)


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCallPart(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCallPart] | None = None


class _Rival(msgspec.Struct):
    token: str
    logprob: float


class _Logprob(msgspec.Struct):
    token: str
    logprob: float
    top_logprobs: list[_Rival] = []


class _Logprobs(msgspec.Struct):
    content: list[_Logprob] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Error(msgspec.Struct):
    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    model: str | None = None
    error: _Error | str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error | str | None = None
    detail: object = None
    message: str | None = None


class ListedModel(msgspec.Struct):
    """One entry of GET /models. Context lengths have no agreed name; these are the ones servers use."""

    id: str
    max_model_len: int | None = None
    context_length: int | None = None


class ModelList(msgspec.Struct):
    """The answer to GET /models."""

    data: list[ListedModel] = []


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_FINISHES: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


def encode_request(request: ChatRequest, model: str) -> tuple[str, bytes]:
    """The path below the base URL, and the JSON body, of a streamed answer to `request` by `model`."""
    body: JsonObject = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    is_chat = bool(request.messages)
    body |= {"messages": msgspec.to_builtins(request.messages)} if is_chat else {"prompt": request.prompt or ""}
    body |= _sampling(request.sampling, is_chat=is_chat)
    if request.tools:
        body["tools"] = [{"type": "function", "function": msgspec.to_builtins(tool.function)} for tool in request.tools]
        if request.tool_choice is not None:
            body["tool_choice"] = request.tool_choice
    if request.response_format and request.response_format.type != "text":
        body["response_format"] = _response_format(request.response_format)
    return "chat/completions" if is_chat else "completions", msgspec.json.encode(body)


def _sampling(sampling: SamplingParams, *, is_chat: bool) -> JsonObject:
    """What differs from the defaults; temperature always, since servers disagree about its default."""
    plain = SamplingParams()
    fields = ("max_tokens", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
    body: JsonObject = {"temperature": sampling.temperature}
    for name in (*fields, "seed", "ignore_eos"):
        value: object = getattr(sampling, name)
        if value != getattr(plain, name):
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
    """OpenAI's form. A choice goes as a schema whose answer is one of the texts; `unquote_choice` reads it back."""
    if wanted.type == "choice":
        schema: JsonObject = {"type": "string", "enum": list(wanted.choice or [])}
        return {"type": "json_schema", "json_schema": {"name": "choice", "schema": schema, "strict": True}}
    if wanted.json_schema is None:
        return {"type": wanted.type}
    spec: JsonObject = {"name": wanted.json_schema.name, "schema": wanted.json_schema.schema}
    if wanted.json_schema.strict is not None:
        spec["strict"] = wanted.json_schema.strict
    return {"type": wanted.type, "json_schema": spec}


def unquote_choice(text: str, choices: list[str], backend: str) -> str:
    """The choice a server answered with, as JSON or plainly; raises `BackendError` when it is none of them."""
    plain = text.strip()
    if plain not in choices:
        try:
            plain = msgspec.json.decode(plain.encode(), type=str)
        except msgspec.MsgspecError:
            plain = plain.strip("\"'`.")
    if plain in choices:
        return plain
    raise BackendError(f"{backend} was to answer one of {choices}, got {text[:80]!r}", backend=backend, retryable=False)


@dataclass(slots=True)
class ChunkReader:
    """Turns the events of one answer into deltas. Tool calls are gathered and come whole, with the last delta."""

    backend: str
    model: str
    is_finished: bool = False
    _finish: FinishReason | None = None
    _usage: Usage | None = None
    _calls: dict[int, ToolCall] = field(default_factory=dict[int, ToolCall])

    def read(self, data: bytes) -> ChatDelta | None:
        """The delta of one event, if it holds one. Raises `BackendError` for what is not a chunk."""
        if data.strip() == b"[DONE]":
            self.is_finished = True
            return None
        try:
            chunk = _decode_chunk(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            text = data[:80].decode(errors="replace")
            raise BackendError(
                f"{self.backend} sent something that is not a chat chunk: {text!r} ({error})", backend=self.backend
            ) from error
        if chunk.error is not None:
            fault = chunk.error if isinstance(chunk.error, _Error) else _Error(message=chunk.error)
            raise BackendError(f"{self.backend} broke off: {fault.message or 'no reason given'}", backend=self.backend)
        self.model = chunk.model or self.model
        if chunk.usage:
            self._usage = _usage(chunk.usage)
        return self._delta(chunk.choices[0]) if chunk.choices else None

    def last(self) -> ChatDelta:
        """The closing delta. Raises `BackendError` when the server stopped before it said why."""
        if self._finish is None:
            raise BackendError(f"{self.backend} closed the connection in mid-answer", backend=self.backend)
        return ChatDelta(
            tool_calls=[self._calls[index] for index in sorted(self._calls)],
            finish_reason=self._finish,
            usage=self._usage,
            model=self.model,
            backend=self.backend,
        )

    def _delta(self, choice: _Choice) -> ChatDelta | None:
        if choice.finish_reason:
            self._finish = _FINISHES.get(choice.finish_reason, "stop")
        delta = choice.delta or _Delta(content=choice.text)
        for part in delta.tool_calls or ():
            self._add_call(part)
        content, reasoning = delta.content or "", delta.reasoning_content or delta.reasoning or ""
        logprobs = [
            TokenLogprob(entry.token, entry.logprob, [(rival.token, rival.logprob) for rival in entry.top_logprobs])
            for entry in (choice.logprobs and choice.logprobs.content) or ()
        ]
        if not (content or reasoning or logprobs):
            return None
        return ChatDelta(
            content=content, reasoning=reasoning, logprobs=logprobs, model=self.model, backend=self.backend
        )

    def _add_call(self, part: _ToolCallPart) -> None:
        known = self._calls.get(part.index) or ToolCall(id="", function=FunctionCall(name="", arguments=""))
        function = part.function or _Function()
        self._calls[part.index] = ToolCall(
            id=part.id or known.id,
            function=FunctionCall(
                name=known.function.name or function.name or "",
                arguments=known.function.arguments + (function.arguments or ""),
            ),
        )


def _usage(counted: _Usage) -> Usage:
    details = counted.prompt_tokens_details
    return Usage(
        prompt_tokens=counted.prompt_tokens,
        completion_tokens=counted.completion_tokens,
        total_tokens=counted.total_tokens or counted.prompt_tokens + counted.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=(details and details.cached_tokens) or 0),
    )


def map_error(backend: str, status: int, body: bytes, retry_after: str | None) -> PyAgentError:
    """The one place where an HTTP status becomes an error of ours."""
    fault = _fault(body)
    text = f"{backend}: {fault.message or 'no reason given'} (HTTP {status})"
    if status in {400, 404, 413, 415, 422}:
        return _refusal(fault, status, text)
    if status in {401, 403}:
        hint = "name its API key in backends.api_keys"
        return BackendError(f"{text}; {hint}", backend=backend, retryable=False, status=status)
    if status == 429 or (status == 503 and retry_after):
        return CapacityError(text, retry_after_seconds=retry_after_seconds(retry_after))
    return BackendError(text, backend=backend, retryable=status >= 500 or status in {408, 409, 425}, status=status)


def _refusal(fault: _Error, status: int, text: str) -> RequestError:
    code = str(fault.code or fault.type or "")
    if code == "context_length_exceeded":
        return ContextOverflowError(text, num_tokens=0, limit=0)
    if code == "model_not_found" or (status == 404 and fault.param in {None, "model"}):
        return RequestError(text, param="model", code="model_not_found")
    return RequestError(text, param=fault.param, code=code or "invalid_request")


def _fault(body: bytes) -> _Error:
    """What the body says went wrong, in any of the shapes that servers use."""
    try:
        said = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Error(message=" ".join(body[:200].decode(errors="replace").split()))
    if isinstance(said.error, _Error):
        return said.error
    return _Error(message=said.error or said.message or (str(said.detail)[:200] if said.detail else ""))


def retry_after_seconds(header: str | None) -> float | None:
    """Retry-After as seconds: a number or an HTTP date (RFC 9110, section 10.2.3); None when it says nothing."""
    if not header:
        return None
    try:
        return min(max(0.0, float(header)), 86400.0)
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
