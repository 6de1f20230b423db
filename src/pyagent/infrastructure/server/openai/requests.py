"""OpenAI's requests as they come over HTTP, and what becomes of each of their fields.

Every field is honoured, ignored because ignoring it changes no answer (`IGNORED`), or refused by name unless it holds
the value that means nothing (`REFUSED`). An unknown field is refused too, with the nearest known name: a typo in
`temperature` must not go unnoticed. Pure: bytes in, a `ChatRequest` out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import (
    BeamSearch,
    ChatRequest,
    JsonObject,
    Message,
    Origin,
    ReasoningEffort,
    SamplingParams,
    Unsupported,
)
from pyagent.core.sampling_params import LogitsProcessorSpec
from pyagent.core.sampling_schedules import PenaltySchedule, TemperatureSchedule
from pyagent.infrastructure.server.openai.messages import (
    InputMessage,
    InputTool,
    custom_names,
    read_messages,
    read_tools,
)
from pyagent.infrastructure.server.openai.prompts import asking, read_prompts
from pyagent.infrastructure.server.openai.response_formats import FormatFields
from pyagent.infrastructure.server.validation import (
    Refused,
    check_metadata,
    check_name,
    checked_choice,
    checked_sampling,
    model_asked,
    read_all,
)

IGNORED = (
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "prediction",
    "spaces_between_special_tokens",
)
REFUSED: Refused = {
    "suffix": (("",), "no text is inserted before a suffix"),
    "audio": ((), "no audio is made"),
    "modalities": ((["text"],), "text is all there is"),
    "moderation": ((), "nothing is moderated"),
    "functions": (([],), "use `tools`, which replaced it"),
    "function_call": (("none",), "use `tool_choice`, which replaced it"),
    "web_search_options": ((), "nothing is searched"),
    "verbosity": (("medium",), "say in the prompt how long the answer should be"),
}


_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "prompt_logprobs",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_n_sigma",
    "top_h",
    "xtc_probability",
    "xtc_threshold",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "dynatemp_range",
    "dynatemp_exponent",
    "temperature_schedule",
    "top_k_entropy",
    "min_p_entropy",
    "repeat_last_n",
    "penalty_decay",
    "penalty_schedule",
    "no_repeat_ngram_size",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "bad_words",
    "bad_words_penalty",
    "bad_words_decay_tokens",
    "allowed_token_ids",
    "logits_processors",
)


_BUDGETS = (
    "thinking_token_budget",
    "thinking_budget",
    "thinking_budget_tokens",
    "reasoning_budget",
    "reasoning_budget_tokens",
)
"""Names of one field: vLLM's, Qwen's, and llama.cpp's."""
_NAMES = ("session", "user", "agent", "run", "request_class", "guided_decoding_backend")


class _StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _Common(FormatFields, forbid_unknown_fields=True, kw_only=True):
    """The fields that both kinds of completion share."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: str | None = None
    n: int | None = None
    best_of: int | None = None
    # OpenAI does not have these:
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    top_n_sigma: float | None = None
    top_h: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    temperature_schedule: TemperatureSchedule | None = None
    top_k_entropy: float | None = None
    min_p_entropy: float | None = None
    repeat_last_n: int | None = None
    penalty_decay: float | None = None
    penalty_schedule: PenaltySchedule | None = None
    no_repeat_ngram_size: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: tuple[str, ...] | None = None
    bad_words: tuple[str, ...] | None = None
    bad_words_penalty: float | None = None
    bad_words_decay_tokens: int | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    logits_processors: tuple[LogitsProcessorSpec, ...] | None = None
    timeout_seconds: float | None = None
    private: bool | None = None
    session: str | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    priority: int | None = None
    request_class: str | None = None
    unsupported: Unsupported | None = None
    agent: str | None = None
    run: str | None = None
    # ignored
    metadata: dict[str, str] | None = None
    store: object = None
    service_tier: object = None
    safety_identifier: object = None
    prompt_cache_key: object = None
    prompt_cache_options: object = None
    prompt_cache_retention: object = None
    prediction: object = None
    spaces_between_special_tokens: object = None

    def sampling(self, max_tokens: int | None, top_logprobs: int | None, *, echo: bool = False) -> SamplingParams:
        """Return how to sample, checked."""
        given = {name: value for name in _SAMPLING if (value := cast("object", getattr(self, name))) is not None}
        params = msgspec.structs.replace(
            SamplingParams(
                max_tokens=max_tokens,
                top_logprobs=top_logprobs,
                stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
                stop_token_ids=tuple(self.stop_token_ids or ()),
                logit_bias=_token_ids(self.logit_bias or {}),
                echo=echo,
            ),
            **given,
        ).with_given(given)
        has_newer_name = self.max_tokens is None and max_tokens is not None
        return checked_sampling(params, {"max_tokens": "max_completion_tokens"} if has_newer_name else {})

    def chat_request(self, sampling: SamplingParams, **fields: object) -> ChatRequest:
        """What the backend is asked."""
        check_metadata(self.metadata)
        for name in _NAMES:
            check_name(name, cast("str | None", getattr(self, name)))
        return msgspec.structs.replace(
            ChatRequest(
                model=model_asked(self.model),
                sampling=sampling,
                response_format=self.wanted_format(),
                timeout_seconds=_checked_time(self.timeout_seconds),
                private=bool(self.private),
                session=self.session,
                n=_checked_number(self.n),
                best_of=None if self.use_beam_search else self.best_of,
                beam=self._beam(),
                origin=Origin(client=self.user or "", agent=self.agent or "", run=self.run or ""),
                priority=_checked_priority(self.priority),
                request_class=self.request_class or "",
                unsupported=self.unsupported,
                truncate_prompt_tokens=_checked_truncation(self.truncate_prompt_tokens),
                guided_decoding_backend=_grammar_backend(self.guided_decoding_backend),
            ),
            **fields,
        )

    def parts(self) -> tuple[Callable[[], object], ...]:
        """What is checked of the fields besides sampling and texts, each by itself, to find all that is wrong."""
        return (
            lambda: check_metadata(self.metadata),
            *(partial(check_name, name, cast("str | None", getattr(self, name))) for name in _NAMES),
            lambda: model_asked(self.model),
            self.wanted_format,
            lambda: _checked_time(self.timeout_seconds),
            lambda: _checked_number(self.n),
            self._beam,
            self.check_stream,
            lambda: _checked_priority(self.priority),
            lambda: _checked_truncation(self.truncate_prompt_tokens),
        )

    def check_stream(self) -> None:
        """Raise `RequestError` for what goes with whole answers only, or with streams only."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream: true", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            text = "prompt_logprobs come with whole answers only; leave stream out"
            raise RequestError(text, param="prompt_logprobs")

    def _beam(self) -> BeamSearch | None:
        """The search wanted; as in vLLM `best_of`, else `n`, is its width where no width is given."""
        given = {name: getattr(self, name) for name in ("beam_width", "length_penalty", "early_stopping")}
        if not self.use_beam_search:
            named = [name for name, value in given.items() if value is not None]
            if named:
                raise RequestError(f"{named[0]} needs use_beam_search: true", param=named[0])
            return None
        width = next((given for given in (self.beam_width, self.best_of, self.n) if given is not None), 1)
        penalty = 1.0 if self.length_penalty is None else self.length_penalty
        return BeamSearch(width=width, length_penalty=penalty, early_stopping=bool(self.early_stopping))


class ChatBody(_Common, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: list[InputMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[InputTool] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    # vLLM's, Qwen's, and llama.cpp's
    thinking_token_budget: int | None = None
    thinking_budget: int | None = None
    thinking_budget_tokens: int | None = None
    reasoning_budget: int | None = None
    reasoning_budget_tokens: int | None = None
    # vLLM's
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    # refused
    audio: object = None
    modalities: object = None
    moderation: object = None
    functions: object = None
    function_call: object = None
    web_search_options: object = None
    verbosity: object = None

    def thinking(self) -> int | None:
        """Return how many tokens the model may think, under whichever name it is said."""
        said = {name: budget for name in _BUDGETS if (budget := cast("int | None", getattr(self, name))) is not None}
        if len({*said.values()}) > 1:
            text = f"{' and '.join(said)} disagree; send one of them"
            raise RequestError(text, param=next(iter(said)))
        for name, budget in said.items():
            checked_sampling(SamplingParams(thinking_token_budget=budget), {"thinking_token_budget": name})
        return next(iter(said.values()), None)


class CompletionBody(_Common, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | list[object]
    logprobs: int | None = None
    echo: bool | None = None
    # refused
    suffix: object = None


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request understood: what to ask the backend, and how to answer the client.

    `others` are the same with the other prompts of a completion; `custom_tools` are told in their own shape.
    `format_name` is the field that asks for a response format.
    """

    request: ChatRequest
    model: str
    is_chat: bool
    is_streamed: bool
    has_usage_chunk: bool
    others: list[ChatRequest] = []
    custom_tools: frozenset[str] = frozenset()
    format_name: str = ""


def read_chat(body: bytes) -> ParsedRequest:
    """Understand the body of POST /v1/chat/completions; raises `RequestError` naming the field at fault."""
    return read_all(body, ChatBody, REFUSED, _read_chat, _chat_parts)


def _chat_parts(parsed: ChatBody) -> tuple[Callable[[], object], ...]:
    return (
        lambda: _messages(parsed),
        lambda: _chat_sampling(parsed),
        lambda: checked_choice(read_tools(parsed.tools or []), _as_function(parsed.tool_choice)),
        parsed.thinking,
        lambda: _check_chat(parsed),
        lambda: _begun(parsed, _messages(parsed)),
        *parsed.parts(),
    )


def _messages(parsed: ChatBody) -> list[Message]:
    if not parsed.messages:
        raise RequestError("messages is empty; send at least one message", param="messages")
    messages = read_messages(parsed.messages)
    if not any(message.content or message.tool_calls for message in messages):
        raise RequestError("every message is empty; write something in one", param="messages")
    return messages


def _chat_sampling(parsed: ChatBody) -> SamplingParams:
    if parsed.max_tokens is not None and parsed.max_completion_tokens not in {None, parsed.max_tokens}:
        raise RequestError("max_tokens and max_completion_tokens disagree; send one of them", param="max_tokens")
    if parsed.top_logprobs is not None and not parsed.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    return parsed.sampling(
        parsed.max_completion_tokens if parsed.max_tokens is None else parsed.max_tokens,
        (parsed.top_logprobs or 0) if parsed.logprobs else None,
    )


def _read_chat(parsed: ChatBody) -> ParsedRequest:
    messages, sampling = _messages(parsed), _chat_sampling(parsed)
    _check_chat(parsed)
    tools = read_tools(parsed.tools or [])
    sampling = msgspec.structs.replace(sampling, thinking_token_budget=parsed.thinking())
    choice = checked_choice(tools, _as_function(parsed.tool_choice))
    messages, assistant_prefix = _begun(parsed, messages)
    request = parsed.chat_request(
        sampling,
        messages=messages,
        assistant_prefix=assistant_prefix,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parsed.parallel_tool_calls is not False,
        reasoning_effort=parsed.reasoning_effort,
        chat_template=parsed.chat_template or "",
        chat_template_kwargs=parsed.chat_template_kwargs or {},
    )
    understood = _asked(parsed, request, is_chat=True)
    return msgspec.structs.replace(understood, custom_tools=custom_names(parsed.tools or []))


def _check_chat(parsed: ChatBody) -> None:
    if parsed.add_special_tokens:
        text = "add_special_tokens: true is for prompts; the model's chat template writes what a chat begins with"
        raise RequestError(text, param="add_special_tokens")


def read_completion(body: bytes) -> ParsedRequest:
    """Understand the body of POST /v1/completions."""
    return read_all(body, CompletionBody, REFUSED, _read_completion, _completion_parts)


def _completion_parts(parsed: CompletionBody) -> tuple[Callable[[], object], ...]:
    return (lambda: read_prompts(parsed.prompt), lambda: _completion_sampling(parsed), *parsed.parts())


def _completion_sampling(parsed: CompletionBody) -> SamplingParams:
    max_tokens = parsed.max_tokens if parsed.max_tokens is not None else 16  # 16 is OpenAI's
    return parsed.sampling(max_tokens, parsed.logprobs, echo=bool(parsed.echo))


def _read_completion(parsed: CompletionBody) -> ParsedRequest:
    prompts, sampling = read_prompts(parsed.prompt), _completion_sampling(parsed)
    request = parsed.chat_request(sampling, add_special_tokens=parsed.add_special_tokens is not False)
    first, *others = [asking(request, prompt) for prompt in prompts]
    return msgspec.structs.replace(_asked(parsed, first, is_chat=False), others=others)


def _as_function(choice: str | JsonObject | None) -> str | JsonObject | None:
    """Return the choice of a custom tool as that of the function that stands for it."""
    if isinstance(choice, dict) and choice.get("type") == "custom":
        return {"type": "function", "function": choice.get("custom")}
    return choice


def _begun(parsed: ChatBody, messages: list[Message]) -> tuple[list[Message], str]:
    """The messages, without the last one where that is to be continued: the answer's beginning."""
    if not parsed.continue_final_message:
        if parsed.add_generation_prompt is False:
            text = "add_generation_prompt=false needs continue_final_message: true"
            raise RequestError(text, param="add_generation_prompt")
        return messages, ""
    if parsed.add_generation_prompt:
        text = "continue_final_message and add_generation_prompt exclude each other; set one of them"
        raise RequestError(text, param="add_generation_prompt")
    *before, last = messages
    if last.role != "assistant" or last.tool_calls or not last.text or not before:
        text = "continue_final_message needs a last message of the assistant with text and no calls, after others"
        raise RequestError(text, param="continue_final_message")
    return before, last.text


def _asked(parsed: _Common, request: ChatRequest, *, is_chat: bool) -> ParsedRequest:
    parsed.check_stream()
    return ParsedRequest(
        request=request,
        model=parsed.model or "default",
        is_chat=is_chat,
        is_streamed=bool(parsed.stream),
        has_usage_chunk=bool(parsed.stream_options and parsed.stream_options.include_usage),
        format_name=parsed.format_name,
    )


def _token_ids(bias: dict[str, float]) -> dict[int, float]:
    for key, value in bias.items():
        if not key.isascii() or not key.isdigit() or len(key) > 9:
            raise RequestError(f"logit_bias takes token ids from 0 on as names, got {key!r:.40}", param="logit_bias")
        if not -100 <= value <= 100:
            raise RequestError(f"logit_bias must be between -100 and 100, got {value}", param="logit_bias")
    return {int(key): value for key, value in bias.items()}


def _checked_priority(priority: int | None) -> int:
    if priority is not None and not -(2**31) <= priority < 2**31:
        raise RequestError(f"priority must fit 32 bits (lower goes first), got {priority}", param="priority")
    return priority or 0


def _checked_truncation(num_tokens: int | None) -> int | None:
    if num_tokens is not None and num_tokens != -1 and not 1 <= num_tokens < 2**31:
        text = f"truncate_prompt_tokens must be at least 1, or -1 for what the context has room for, got {num_tokens}"
        raise RequestError(text, param="truncate_prompt_tokens")
    return num_tokens


def _grammar_backend(name: str | None) -> str:
    """Return the grammar backend that a request names by the name that plugins bring it under; empty for any."""
    first, colon, option = (name or "").partition(":")
    return {"auto": "", "llguidance": "guidance"}.get(first, first) + colon + option


def _checked_number(n: int | None) -> int:
    if n is not None and n < 1:
        raise RequestError(f"n must be at least 1, got {n}", param="n")
    return n or 1


def _checked_time(seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds < 1e9:
        raise RequestError(f"timeout_seconds must be above 0, got {seconds}", param="timeout_seconds")
    return seconds
