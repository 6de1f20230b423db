"""Requests for responses as they come over HTTP, and what becomes of each of their fields.

Every field is honoured, changes no answer here (`IGNORED`), or is refused by name. Pure: bytes in, a `ChatRequest` out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import (
    ChatRequest,
    JsonObject,
    JsonSchemaFormat,
    Message,
    Origin,
    ReasoningEffort,
    ResponseFormat,
    SamplingParams,
)
from pyagent.infrastructure.server.responses.items import messages_of
from pyagent.infrastructure.server.responses.namespaces import InputTool, functions
from pyagent.infrastructure.server.validation import (
    Refused,
    check_metadata,
    check_name,
    checked_choice,
    checked_sampling,
    model_asked,
    read_all,
    refuse,
)

IGNORED = (
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "client_metadata",
)
REFUSED: Refused = {
    "background": ((False,), "answers are made while the client waits"),
    "context_management": (([],), "nothing is left out of a conversation"),
    "conversation": ((), "use previous_response_id"),
    "prompt": ((), "no prompts are kept; send instructions and input"),
    "max_tool_calls": ((), "tools are run by the client"),
    "moderation": ((), "nothing is moderated"),
    "image": ((), "no images are made"),
    "access_programs": ((), "there are none"),
    "truncation": (("disabled",), "a conversation that does not fit is an error, never cut"),
}
_REFUSED_TEXT: Refused = {"verbosity": (("medium",), "say in the prompt how long the answer should be")}
_LOGPROBS = "message.output_text.logprobs"
_SEALED = "reasoning.encrypted_content"
_INCLUDABLE = (_LOGPROBS, _SEALED)


class _Format(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = "answer"
    schema: JsonObject | None = None
    strict: bool | None = None
    description: str | None = None


class _Text(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: _Format | None = None
    verbosity: object = None


class _Reasoning(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to reason. Where any summary is asked for, the reasoning itself is told as one."""

    effort: ReasoningEffort | None = None
    summary: str | None = None
    generate_summary: str | None = None


class _StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None


class ResponsesBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/responses."""

    input: str | list[JsonObject]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    tools: list[InputTool] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    text: _Text | None = None
    reasoning: _Reasoning | None = None
    include: list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    private: bool | None = None  # not OpenAI's
    thinking_token_budget: int | None = None  # vLLM's for chats
    user: str | None = None
    # ignored; metadata is told again
    metadata: dict[str, str] | None = None
    service_tier: object = None
    safety_identifier: object = None
    prompt_cache_key: object = None
    prompt_cache_retention: object = None
    prompt_cache_options: object = None
    client_metadata: object = None
    # refused
    background: object = None
    context_management: object = None
    conversation: object = None
    prompt: object = None
    max_tool_calls: object = None
    moderation: object = None
    image: object = None
    access_programs: object = None
    truncation: object = None

    @property
    def items(self) -> list[JsonObject]:
        """The input as items."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": self.input}]}]
        return self.input

    @property
    def summary(self) -> str | None:
        """The kind of summary of the reasoning that is asked for."""
        asked = (self.reasoning.summary or self.reasoning.generate_summary) if self.reasoning else None
        return None if asked == "none" else asked

    @property
    def has_sealed(self) -> bool:
        """Whether reasoning is told once more for sending back."""
        return _SEALED in (self.include or ())

    def sampling(self) -> SamplingParams:
        """Return how to sample, checked."""
        wanted = set(self.include or ())
        if unknown := sorted(wanted.difference(_INCLUDABLE)):
            raise RequestError(
                f"include[]={unknown[0]!r} is not supported; there are {', '.join(_INCLUDABLE)}", param="include"
            )
        has_logprobs = _LOGPROBS in wanted or self.top_logprobs is not None
        params = SamplingParams(
            max_tokens=self.max_output_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_logprobs=(self.top_logprobs or 0) if has_logprobs else None,
            thinking_token_budget=self.thinking_token_budget,
        )
        params = params.with_given(() if self.top_p is None else ("top_p",))
        return checked_sampling(params, {"max_tokens": "max_output_tokens"})

    def request(self, history: list[JsonObject]) -> ChatRequest:
        """Return what the backend is asked, after the items of earlier responses."""
        messages = messages_of([*history, *self.items], len(history))
        if not any(message.content or message.tool_calls for message in messages):
            raise RequestError("input is empty; send some text", param="input")
        system = [Message("system", self.instructions)] if self.instructions else []
        tools = functions(self.tools or ())
        return ChatRequest(
            model=model_asked(self.model),
            messages=[*system, *messages],
            tools=tools,
            tool_choice=checked_choice(tools, _choice(self.tool_choice)),
            parallel_tool_calls=self.parallel_tool_calls is not False,
            reasoning_effort=self.reasoning.effort if self.reasoning else None,
            response_format=_format(self.text),
            sampling=self.sampling(),
            private=bool(self.private),
            origin=Origin(client=self.user or ""),
        )


def read_response(body: bytes) -> ResponsesBody:
    """Understand the body of POST /v1/responses; raises `RequestError` naming the field at fault."""
    return read_all(
        body, ResponsesBody, REFUSED, _read, lambda parsed: (*_parts(parsed), partial(_check_items, parsed))
    )


def _read(parsed: ResponsesBody) -> ResponsesBody:
    for check in _parts(parsed):
        check()
    return parsed


def _parts(parsed: ResponsesBody) -> tuple[Callable[[], object], ...]:
    """Return what is checked before the input's references are followed, each by itself, to find all that is wrong."""
    return (
        lambda: check_metadata(parsed.metadata),
        lambda: check_name("user", parsed.user),
        lambda: _check_stream(parsed),
        lambda: model_asked(parsed.model),
        parsed.sampling,
        lambda: checked_choice(functions(parsed.tools or ()), _choice(parsed.tool_choice)),
        lambda: _format(parsed.text),
    )


def _check_stream(parsed: ResponsesBody) -> None:
    if parsed.stream_options is not None and not parsed.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")


def _check_items(parsed: ResponsesBody) -> None:
    own = [item for item in parsed.items if item.get("type") != "item_reference"]
    if len(own) == len(parsed.items):  # else their numbers are not those of the input
        messages_of(own)


def _choice(choice: str | JsonObject | None) -> str | JsonObject | None:
    """Return the choice of a tool in the form of chat completions."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") not in {"function", "custom"}:
        text = "tool_choice is none, auto, required, a function of tools or a custom one"
        raise RequestError(text, param="tool_choice")
    return {"type": "function", "function": {"name": choice.get("name")}}


def _format(text: _Text | None) -> ResponseFormat | None:
    if text is None:
        return None
    refuse(text, _REFUSED_TEXT, "text.")
    form = text.format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return ResponseFormat("json_object")
    if form.schema is None:
        raise RequestError("text.format json_schema needs its schema", param="text.format.schema")
    return ResponseFormat("json_schema", JsonSchemaFormat(form.name, form.schema, form.strict, form.description or ""))
