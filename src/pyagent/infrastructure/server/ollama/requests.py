"""Ollama's requests as they come over HTTP, and what becomes of each of their fields and options.

Every field is honoured, changes no answer here (`IGNORED_OPTIONS`), or is refused by name. Options that say how a model
is loaded change no answer: a model has the window it has, and a prompt that does not fit is an error, never cut. Pure:
bytes in, a `ChatRequest` out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.field_errors import check_all
from pyagent.core.messages import (
    ChatRequest,
    JsonObject,
    JsonSchemaFormat,
    Message,
    ResponseFormat,
    SamplingParams,
    Tool,
)
from pyagent.infrastructure.server.ollama.context import read_context
from pyagent.infrastructure.server.ollama.messages import ChatMessage, InputTool, content_of, read_messages
from pyagent.infrastructure.server.validation import (
    Refused,
    checked_sampling,
    decode,
    model_asked,
    read_all,
    refuse,
)

IGNORED_OPTIONS = (
    "num_ctx",
    "num_keep",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "numa",
    "low_vram",
    "f16_kv",
    "use_mmap",
    "use_mlock",
    "logits_all",
)
REFUSED_OPTIONS: Refused = {
    "tfs_z": ((1,), "use top_p or min_p"),
    "penalize_newline": ((True,), "newlines are penalised as all tokens are"),
    "vocab_only": ((False,), "models are loaded whole"),
    "embedding_only": ((False,), "models are loaded whole"),
}
REFUSED: Refused = {
    "suffix": (("",), "no text is inserted before a suffix"),
    "template": (("",), "the model's own chat template is used; with raw there is none"),
    "width": ((0,), "no images are made"),
    "height": ((0,), "no images are made"),
    "steps": ((0,), "no images are made"),
    "insecure": ((False,), "models are fetched over verified connections"),
}
_SAMPLING = {"max_tokens": "options.num_predict", "repetition_penalty": "options.repeat_penalty"} | {
    name: f"options.{name}"
    for name in (
        *("temperature", "top_k", "top_p", "min_p", "typical_p", "mirostat", "mirostat_tau", "mirostat_eta"),
        *("presence_penalty", "frequency_penalty", "repeat_last_n", "seed", "stop"),
    )
}
"""Names of sampling parameters, and where they stand in Ollama's API."""
_DURATION = re.compile(r"(-?)((?:\d+(?:\.\d+)?(?:h|ms|us|µs|ns|m|s))+)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to sample, and how to load; without a value, Ollama's own defaults of temperature and top_p."""

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    typical_p: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    # refused
    tfs_z: object = None
    penalize_newline: object = None
    vocab_only: object = None
    embedding_only: object = None
    # ignored
    num_ctx: object = None
    num_keep: object = None
    num_batch: object = None
    num_gpu: object = None
    main_gpu: object = None
    num_thread: object = None
    numa: object = None
    low_vram: object = None
    f16_kv: object = None
    use_mmap: object = None
    use_mlock: object = None
    logits_all: object = None

    def sampling(self, top_logprobs: int | None) -> SamplingParams:
        """Return how to sample, checked."""
        self._refuse()
        return self._sampling(self._max_tokens(), top_logprobs)

    def parts(self, top_logprobs: int | None) -> tuple[Callable[[], object], ...]:
        """Return what is checked, each by itself, to find all that is wrong."""
        return self._refuse, self._max_tokens, lambda: self._sampling(None, top_logprobs)

    def _refuse(self) -> None:
        refuse(self, REFUSED_OPTIONS, "options.")

    def _sampling(self, max_tokens: int | None, top_logprobs: int | None) -> SamplingParams:
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.8 if self.temperature is None else self.temperature,
            top_p=0.9 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            min_p=self.min_p or 0.0,
            repetition_penalty=1.0 if self.repeat_penalty is None else self.repeat_penalty,
            repeat_last_n=-1 if self.repeat_last_n is None else self.repeat_last_n,
            typical_p=self.typical_p or 1.0,
            mirostat=self.mirostat or 0,
            mirostat_tau=5.0 if self.mirostat_tau is None else self.mirostat_tau,
            mirostat_eta=0.1 if self.mirostat_eta is None else self.mirostat_eta,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            seed=self.seed,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            top_logprobs=top_logprobs,
        )
        return checked_sampling(params.with_given(self._given()), _SAMPLING)

    def _given(self) -> list[str]:
        """Return the sampling parameters that the options name, by our names."""
        renamed = {name: theirs.removeprefix("options.") for name, theirs in _SAMPLING.items()}
        return [name for name, theirs in renamed.items() if getattr(self, theirs, None) is not None]

    def _max_tokens(self) -> int | None:
        if self.num_predict is not None and self.num_predict not in {-1, -2} and self.num_predict < 1:
            text = f"options.num_predict is at least 1, or -1 for no limit, got {self.num_predict}"
            raise RequestError(text, param="options.num_predict")
        return self.num_predict if self.num_predict and self.num_predict > 0 else None


class _Common(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    stream: bool | None = None
    format: str | JsonObject | None = None
    keep_alive: float | str | None = None
    options: Options | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    truncate: bool | None = None
    shift: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    private: bool | None = None  # not Ollama's, here and below

    def ask(
        self,
        messages: list[Message],
        *,
        prompt: str | None = None,
        assistant_prefix: str = "",
        tools: list[Tool] | None = None,
    ) -> ParsedRequest:
        """Return the request understood."""
        sampling = (self.options or Options()).sampling(self._top_logprobs())
        request = ChatRequest(
            messages=messages,
            prompt=prompt,
            assistant_prefix=assistant_prefix,
            tools=tools or [],
            response_format=_format(self.format),
            reasoning_effort="none" if self.think is False else self.think if isinstance(self.think, str) else None,
            sampling=sampling,
            private=bool(self.private),
        )
        return ParsedRequest(
            request=request if messages or prompt else None,
            model=model_asked(self.model),
            is_streamed=self.stream is not False,
            is_unloaded=_keep_seconds(self.keep_alive) == 0,
            has_thinking=self.think is not False,
        )

    def parts(self) -> tuple[Callable[[], object], ...]:
        """Return what is checked of the fields that both kinds share, each by itself, to find all that is wrong."""
        top_logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return (
            self._top_logprobs,
            *(self.options or Options()).parts(top_logprobs),
            lambda: _format(self.format),
            lambda: model_asked(self.model),
            lambda: _keep_seconds(self.keep_alive),
        )

    def _top_logprobs(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


class ChatBody(_Common, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /api/chat."""

    messages: list[ChatMessage] | None = None
    tools: list[InputTool] | None = None


class GenerateBody(_Common, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /api/generate."""

    prompt: str | None = None
    system: str | None = None
    context: list[int] | None = None
    raw: bool | None = None
    images: list[str] | None = None
    # refused
    suffix: object = None
    template: object = None
    width: object = None
    height: object = None
    steps: object = None


class EmbedBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /api/embed."""

    model: str
    input: str | list[str]
    truncate: bool | None = None
    dimensions: int | None = None
    keep_alive: float | str | None = None
    options: Options | None = None
    private: bool | None = None


class EmbeddingsBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /api/embeddings, the older form."""

    model: str
    prompt: str = ""
    keep_alive: float | str | None = None
    options: Options | None = None
    private: bool | None = None


class ModelBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /api/show and /api/pull; `name` is the older word for `model`."""

    model: str = ""
    name: str = ""
    verbose: bool | None = None
    stream: bool | None = None
    insecure: object = None


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request understood; without a `request` only the model is to be loaded, or unloaded."""

    request: ChatRequest | None
    model: str
    is_streamed: bool
    is_unloaded: bool
    has_thinking: bool
    keeps_context: bool = False


def read_chat(body: bytes) -> ParsedRequest:
    """Understand the body of POST /api/chat; raises `RequestError` naming the field at fault."""
    return read_all(
        body,
        ChatBody,
        REFUSED,
        _read_chat,
        lambda parsed: (lambda: read_messages(parsed.messages or []), *parsed.parts()),
    )


def _read_chat(parsed: ChatBody) -> ParsedRequest:
    messages, assistant_prefix = read_messages(parsed.messages or []), ""
    if len(messages) > 1 and messages[-1].role == "assistant" and not messages[-1].tool_calls:
        assistant_prefix = messages.pop().text  # Ollama goes on with it
    return parsed.ask(messages, assistant_prefix=assistant_prefix, tools=[tool.tool() for tool in parsed.tools or ()])


def read_generate(body: bytes) -> ParsedRequest:
    """Understand the body of POST /api/generate."""
    return read_all(
        body, GenerateBody, REFUSED, _read_generate, lambda parsed: (lambda: _prompted(parsed), *parsed.parts())
    )


def _read_generate(parsed: GenerateBody) -> ParsedRequest:
    messages = _prompted(parsed)
    if not messages:
        return parsed.ask([], prompt=(parsed.prompt or "") if parsed.raw else None)
    return msgspec.structs.replace(parsed.ask(messages), keeps_context=True)


def _prompted(parsed: GenerateBody) -> list[Message]:
    """Return the conversation that a prompt goes on; none of a raw one, and where a model is only to be loaded."""
    prompt = parsed.prompt or ""
    if parsed.raw:
        given = [name for name in ("system", "context", "images") if getattr(parsed, name)]
        check_all(partial(_refuse_in_raw, name) for name in given)
    if parsed.raw or not (prompt or parsed.images):
        return []
    history = read_context(parsed.context) if parsed.context else []
    if parsed.system:
        history = [Message("system", parsed.system), *(message for message in history if message.role != "system")]
    return [*history, Message("user", content_of(prompt, parsed.images))]


def _refuse_in_raw(name: str) -> None:
    raise RequestError(f"raw mode takes no {name}; write all of it into prompt", param=name)


def read_embed(body: bytes) -> tuple[EmbedBody, list[str]]:
    """Parse the body of POST /api/embed; return it and the texts."""
    parsed = decode(body, EmbedBody, {})
    refuse(parsed.options or Options(), REFUSED_OPTIONS, "options.")
    return parsed, [parsed.input] if isinstance(parsed.input, str) else parsed.input


def read_model(body: bytes) -> ModelBody:
    """Understand a body that names a model, and little else."""
    parsed = decode(body, ModelBody, REFUSED)
    return msgspec.structs.replace(parsed, model=model_asked(parsed.model or parsed.name))


def _format(wanted: str | JsonObject | None) -> ResponseFormat | None:
    if not wanted:
        return None
    if wanted == "json":
        return ResponseFormat("json_object")
    if isinstance(wanted, str):
        raise RequestError(f"format is 'json' or a JSON schema, got {wanted[:40]!r}", param="format")
    return ResponseFormat("json_schema", JsonSchemaFormat(schema=wanted))


def _keep_seconds(keep_alive: float | str | None) -> float | None:
    """Return how long to keep the model: the engine decides, but for 0."""
    if keep_alive is None or isinstance(keep_alive, int | float):
        return keep_alive
    if re.fullmatch(r"-?\d+(\.\d+)?", keep_alive):
        return float(keep_alive)
    match = _DURATION.fullmatch(keep_alive)
    if match is None:
        raise RequestError(
            f"keep_alive is seconds, or a text such as '10m', got {keep_alive[:40]!r}", param="keep_alive"
        )
    parts = re.findall(r"(\d+(?:\.\d+)?)(h|ms|us|µs|ns|m|s)", match[2])
    return sum(float(number) * _SECONDS[unit] for number, unit in parts) * (-1 if match[1] else 1)
