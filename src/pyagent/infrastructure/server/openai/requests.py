"""OpenAI's requests as they come over HTTP, and what becomes of each of their fields.

Every field is honoured, ignored because ignoring it changes no answer (`IGNORED`), or refused by name unless it holds
the value that means nothing (`REFUSED`). An unknown field is refused too, with the nearest known name: a typo in
`temperature` must not go unnoticed. Pure: bytes in, a `ChatRequest` out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatRequest, JsonObject, Message, ReasoningEffort, SamplingParams
from pyagent.infrastructure.server.openai.completion_fields import CompletionFields
from pyagent.infrastructure.server.openai.messages import (
    InputMessage,
    InputTool,
    custom_names,
    read_messages,
    read_tools,
)
from pyagent.infrastructure.server.openai.prompts import asking, read_prompts
from pyagent.infrastructure.server.validation import Refused, checked_choice, checked_sampling, read_all

IGNORED = (
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
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
_BUDGETS = (
    "thinking_token_budget",
    "thinking_budget",
    "thinking_budget_tokens",
    "reasoning_budget",
    "reasoning_budget_tokens",
)
"""Names of one field: vLLM's, Qwen's, and llama.cpp's."""


class PredictedPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a predicted output."""

    type: Literal["text"]
    text: str


class Prediction(msgspec.Struct, forbid_unknown_fields=True):
    """OpenAI's predicted output."""

    type: Literal["content"]
    content: str | list[PredictedPart]

    @property
    def text(self) -> str:
        """The whole text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatBody(CompletionFields, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: list[InputMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[InputTool] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    prediction: Prediction | None = None
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


class CompletionBody(CompletionFields, forbid_unknown_fields=True, kw_only=True):
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
        prediction="" if parsed.prediction is None else parsed.prediction.text,
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


def _asked(parsed: CompletionFields, request: ChatRequest, *, is_chat: bool) -> ParsedRequest:
    parsed.check_stream()
    return ParsedRequest(
        request=request,
        model=parsed.model or "default",
        is_chat=is_chat,
        is_streamed=bool(parsed.stream),
        has_usage_chunk=bool(parsed.stream_options and parsed.stream_options.include_usage),
        format_name=parsed.format_name,
    )
