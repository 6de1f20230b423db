"""OpenAI's wire format as a client speaks it: requests out, chunks and errors in.

Pure translation between `core.messages` and JSON; no socket. Servers differ, so what is read is read loosely (unknown
fields pass, missing ones have defaults) and what is sent is only what was asked for.
"""

from __future__ import annotations

import email.utils
import re
import time
import uuid
from dataclasses import dataclass, field

import msgspec

from pyagent.core.errors import (
    BackendError,
    CapacityError,
    ContextOverflowError,
    PyAgentError,
    RequestError,
    UnsupportedError,
)
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedResult,
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
    """Of a chat in `content`; of a completion in the three others, one entry a token."""

    content: list[_Logprob] | None = None
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
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
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: _Error | str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error | str | None = None
    detail: object = None
    message: str | None = None


class _Limits(msgspec.Struct):
    max_input_tokens: int | None = None


class _Architecture(msgspec.Struct):
    input_modalities: list[str] | None = None


class ListedModel(msgspec.Struct):
    """One entry of GET /models. Context lengths have no agreed name; these are the ones servers use."""

    id: str
    max_model_len: int | None = None
    context_length: int | None = None
    limits: _Limits | None = None
    supported_input_modalities: list[str] | None = None
    architecture: _Architecture | str | None = None

    @property
    def reads_images(self) -> bool | None:
        """Whether it reads images, where the server says: GitHub and OpenRouter do."""
        about = self.architecture if isinstance(self.architecture, _Architecture) else _Architecture()
        said = self.supported_input_modalities or about.input_modalities
        return None if said is None else "image" in said

    @property
    def context(self) -> int | None:
        """The longest prompt, where the server says."""
        return self.context_length or self.max_model_len or (self.limits and self.limits.max_input_tokens)


class _ModelList(msgspec.Struct):
    data: list[ListedModel] = []


class _Vector(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class Embeddings(msgspec.Struct):
    """The answer to POST /embeddings."""

    data: list[_Vector] = []
    model: str = ""
    usage: _Usage | None = None


def decode_models(body: bytes, backend: str) -> list[ListedModel]:
    """What GET /models lists, in an object or bare. Raises `BackendError`."""
    try:
        listed = msgspec.json.decode(body, type=_ModelList | list[ListedModel])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackendError(f"{backend}: what it lists as models is no such list: {error}", backend=backend) from error
    return listed.data if isinstance(listed, _ModelList) else listed


def decode_embeddings(body: bytes, backend: str, count: int) -> EmbedResult:
    """One vector for each of `count` texts, in their order. Raises `BackendError`."""
    try:
        said = msgspec.json.decode(body, type=Embeddings)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackendError(f"{backend}: /embeddings gave no vectors: {error}", backend=backend) from error
    if sorted(vector.index for vector in said.data) != [*range(count)]:
        raise BackendError(f"{backend} gave {len(said.data)} vectors for {count} texts", backend=backend)
    vectors = [vector.embedding for vector in sorted(said.data, key=lambda vector: vector.index)]
    return EmbedResult(vectors=vectors, model=said.model, usage=_usage(said.usage) if said.usage else Usage())


# in the words of vLLM and OpenAI, of litellm, and of llama.cpp
_TOO_LONG = re.compile(
    r"maximum context length is (\d{1,12})|ContextWindowExceeded()|exceeds? the available context size()"
)
# in the words of vLLM and OpenAI, newer and older
_NUM_TOKENS = re.compile(
    r"(?:contains (?:at least )?|resulted in )(\d{1,12})(?: input)? tokens|\((\d{1,12}) in the (?:messages|prompt)"
)
# in the words of vLLM, OpenAI, llama.cpp, Ollama and LM Studio
_NO_IMAGES = re.compile(
    r"(image|vision)[^.]* (not|only) supported|not support[^.]* (image|vision)|not a multi-?modal", re.IGNORECASE
)
# codes of OpenAI's; in the words of litellm
_UNSUPPORTED = frozenset({"unsupported_parameter", "unsupported_value"})
_UNSUPPORTED_NAMES = re.compile(r"UnsupportedParamsError.* parameters: \['([^\]]{1,200})'\]")
_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_FINISHES: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


def encode_request(request: ChatRequest, model: str, *, is_openai: bool = False) -> tuple[str, bytes]:
    """The path below the base URL, and the JSON body, of a streamed answer to `request` by `model`.

    OpenAI's own models that reason (`is_openai`) take the limit of a chat only under its newer name, which others
    do not all know.
    """
    body: JsonObject = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    is_chat = bool(request.messages)
    body |= {"messages": msgspec.to_builtins(request.messages)} if is_chat else {"prompt": request.prompt or ""}
    if begun_with := request.prefill + request.answer_prefix:
        begun = {"role": "assistant", "content": begun_with}
        body["messages"] = [*msgspec.to_builtins(request.messages), begun]
        body |= {"continue_final_message": True, "add_generation_prompt": False}  # vLLM's; llama.cpp needs neither
    body |= _sampling(request.sampling, is_chat=is_chat)
    if is_openai and is_chat and "max_tokens" in body:
        body["max_completion_tokens"] = body.pop("max_tokens")
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
    """OpenAI's form."""
    if wanted.json_schema is None:
        return {"type": wanted.type}
    spec: JsonObject = {"name": wanted.json_schema.name, "schema": wanted.json_schema.schema}
    if wanted.json_schema.strict is not None:
        spec["strict"] = wanted.json_schema.strict
    if wanted.json_schema.description:
        spec["description"] = wanted.json_schema.description
    return {"type": wanted.type, "json_schema": spec}


@dataclass(slots=True)
class _Member:
    """One of the answers under way."""

    finish: FinishReason | None = None
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    places: dict[int, int] = field(default_factory=dict[int, int])

    def add_call(self, part: _ToolCallPart) -> None:
        """Join a piece to its call. Some servers give every call the index 0; another id begins another call."""
        function = part.function or _Function()
        place = self.places.get(part.index)
        if place is None or (part.id and self.calls[place].id not in {"", part.id}):
            place = self.places[part.index] = len(self.calls)
            self.calls.append(ToolCall(id="", function=FunctionCall(name="", arguments="")))
        known = self.calls[place]
        self.calls[place] = ToolCall(
            id=part.id or known.id,
            function=FunctionCall(
                name=known.function.name or function.name or "",
                arguments=known.function.arguments + (function.arguments or ""),
            ),
        )

    def whole_calls(self) -> list[ToolCall]:
        """The calls, each with an id and arguments that are JSON text."""
        return [
            ToolCall(
                id=call.id or f"call_{uuid.uuid4().hex[:12]}",
                function=FunctionCall(call.function.name, call.function.arguments or "{}"),
            )
            for call in self.calls
        ]


@dataclass(slots=True)
class ChunkReader:
    """Turns the events of `count` answers into deltas. Tool calls are gathered and come whole, at each answer's end."""

    backend: str
    model: str
    count: int = 1
    is_finished: bool = False
    _usage: Usage | None = None
    _members: dict[int, _Member] = field(default_factory=dict[int, _Member])

    def read(self, data: bytes) -> list[ChatDelta]:
        """The deltas of one event. Raises `BackendError` for what is not a chunk."""
        if data.strip() == b"[DONE]":
            self.is_finished = True
            return []
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
        return [delta for choice in chunk.choices or () if (delta := self._delta(choice)) is not None]

    def last(self) -> list[ChatDelta]:
        """The closing deltas. Raises `BackendError` when the server stopped before it said why."""
        ended = sorted(index for index, member in self._members.items() if member.finish)
        if not ended or (len(ended) < len(self._members) and not self.is_finished):
            raise BackendError(f"{self.backend} closed the connection in mid-answer", backend=self.backend)
        if len(ended) != self.count:
            text = f"{self.backend} gave {len(ended)} answers, {self.count} were asked for (n)"
            raise BackendError(text, backend=self.backend, retryable=False)
        return [self._end(index, self._usage if index == ended[-1] else None) for index in ended]

    def _end(self, index: int, usage: Usage | None) -> ChatDelta:
        member = self._members[index]
        calls = member.whole_calls()
        return ChatDelta(
            index=index,
            tool_calls=calls,
            finish_reason="tool_calls" if calls and member.finish == "stop" else member.finish,
            usage=usage,
            model=self.model,
            backend=self.backend,
        )

    def _delta(self, choice: _Choice) -> ChatDelta | None:
        member = self._members.setdefault(choice.index, _Member())
        if choice.finish_reason:
            member.finish = _FINISHES.get(choice.finish_reason, "stop")
        delta = choice.delta or _Delta(content=choice.text)
        for part in delta.tool_calls or ():
            member.add_call(part)
        content, reasoning = delta.content or "", delta.reasoning_content or delta.reasoning or ""
        logprobs = _logprobs(choice.logprobs) if choice.logprobs else []
        if not (content or reasoning or logprobs):
            return None
        return ChatDelta(
            index=choice.index,
            content=content,
            reasoning=reasoning,
            logprobs=logprobs,
            model=self.model,
            backend=self.backend,
        )


def _logprobs(said: _Logprobs) -> list[TokenLogprob]:
    if said.content is not None:
        return [
            TokenLogprob(entry.token, entry.logprob, [(rival.token, rival.logprob) for rival in entry.top_logprobs])
            for entry in said.content
        ]
    rivals = said.top_logprobs or [None] * len(said.tokens)
    rows = zip(said.tokens, said.token_logprobs, rivals, strict=False)
    return [TokenLogprob(token, logprob or 0.0, [*(best or {}).items()]) for token, logprob, best in rows]


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
    if status in {400, 415, 422, 500, 501} and _NO_IMAGES.search(fault.message):
        text = f"{backend} cannot do images: {fault.message} (HTTP {status})"
        return UnsupportedError(text, backend=backend, fields=["images"])
    if status in {400, 404, 413, 415, 422}:
        return _lack(fault, backend, status) or _refusal(fault, status, text)
    if status in {401, 403}:
        hint = "name its API key in backends.api_keys"
        return BackendError(f"{text}; {hint}", backend=backend, retryable=False, status=status)
    if status == 429 or (status == 503 and retry_after):
        return CapacityError(text, retry_after_seconds=retry_after_seconds(retry_after))
    retryable = status >= 500 or status in {408, 409, 425}
    return BackendError(text, backend=backend, retryable=retryable, status=status)


def _lack(fault: _Error, backend: str, status: int) -> UnsupportedError | None:
    """The fields that the server says its model cannot be asked for, which another link's may."""
    if fault.code in _UNSUPPORTED and fault.param:
        fields = [fault.param]
    elif told := _UNSUPPORTED_NAMES.search(fault.message):
        fields = told[1].split("', '")
    else:
        return None
    text = f"{backend} cannot do {', '.join(fields)}: {fault.message} (HTTP {status})"
    return UnsupportedError(text, backend=backend, fields=fields)


def _refusal(fault: _Error, status: int, text: str) -> RequestError:
    code = str(fault.code or fault.type or "")
    told = _TOO_LONG.search(fault.message)
    if told or "context_length_exceeded" in code or fault.type == "exceed_context_size_error":
        limit = fault.n_ctx or int((told and told[1]) or 0)
        counted = _NUM_TOKENS.search(fault.message)
        num_tokens = fault.n_prompt_tokens or int((counted and (counted[1] or counted[2])) or 0)
        return ContextOverflowError(text, num_tokens=num_tokens, limit=limit)
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
