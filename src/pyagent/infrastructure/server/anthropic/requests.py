"""Anthropic's requests as they come over HTTP, and what becomes of each of their fields and blocks.

Every field is honoured, changes no answer here (`IGNORED`, and `cache_control` anywhere: prompts are kept without it),
or is refused by name. Pure: bytes in, a `ChatRequest` out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import (
    ChatRequest,
    FunctionDefinition,
    JsonObject,
    JsonSchemaFormat,
    Message,
    Origin,
    ResponseFormat,
    SamplingParams,
    Tool,
)
from pyagent.infrastructure.server.anthropic.messages import InputMessage, TextBlock, read_conversation
from pyagent.infrastructure.server.validation import (
    Refused,
    check_name,
    checked_choice,
    checked_sampling,
    model_asked,
    read_all,
    refuse,
)

IGNORED = ("cache_control", "service_tier", "diagnostics")
_CLEARING = "clear_thinking_"
"""Edits that begin so are made: they take earlier thinking out."""
REFUSED: Refused = {
    "container": ((), "nothing is run here"),
    "mcp_servers": (([],), "nothing is called from here; offer the servers' tools as tools"),
    "inference_geo": ((), "requests stay with the links of the chain"),
    "speed": (("standard",), "there is one speed"),
}
_REFUSED_TOOL: Refused = {
    "type": (("custom",), "only tools that the client runs itself are"),
    "allowed_callers": (([], ["direct"]), "nothing but the model calls tools"),
    "defer_loading": ((False,), "every tool is shown to the model"),
}


class InputTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool that the client runs. Its streamed calls come whole, but in pieces where its input is wanted eagerly."""

    name: str
    input_schema: JsonObject | None = None
    description: str = ""
    type: object = None
    cache_control: object = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    input_examples: list[JsonObject] | None = None
    allowed_callers: object = None
    defer_loading: object = None


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which tool to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whether reasoning is wanted. Its budget is a part of max_tokens; `adaptive` leaves it to the model."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: str | None = None


class _Format(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: JsonObject


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the answer must look like. `effort` is ignored: some clients send it with every request."""

    format: _Format | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class _Turns(msgspec.Struct):
    value: int = 1


class _Edit(msgspec.Struct):
    type: str
    keep: Literal["all"] | _Turns | None = None


class ContextManagement(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be taken out of long conversations."""

    edits: list[_Edit] | None = None

    def check(self) -> None:
        """Raise `RequestError` for an edit that is not made here."""
        for number, edit in enumerate(self.edits or ()):
            if not edit.type.startswith(_CLEARING):
                where = f"context_management.edits[{number}].type"
                text = f"{where}={edit.type!r:.60} is not supported: send only the messages that are to be read"
                raise RequestError(text, param=where, code="unsupported_parameter")

    def cleared(self, messages: list[Message]) -> list[Message]:
        """Return the messages with the thoughts of as many of the newest turns as the edits keep."""
        kept = [edit.keep or _Turns() for edit in self.edits or () if edit.keep != "all"]
        num_left = min((turns.value for turns in kept), default=len(messages))
        thoughtful = [number for number, message in enumerate(messages) if message.reasoning_content]
        void = {*thoughtful[: max(0, len(thoughtful) - num_left)]}
        return [
            msgspec.structs.replace(message, reasoning_content=None) if number in void else message
            for number, message in enumerate(messages)
        ]


class _Metadata(msgspec.Struct, forbid_unknown_fields=True):
    user_id: str | None = None


class CountBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/messages/count_tokens."""

    model: str
    messages: list[InputMessage]
    system: str | list[TextBlock] | None = None
    tools: list[InputTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    private: bool | None = None  # not Anthropic's
    # ignored
    cache_control: object = None
    service_tier: object = None
    diagnostics: object = None
    # refused
    container: object = None
    mcp_servers: object = None
    inference_geo: object = None
    speed: object = None

    def request(self, sampling: SamplingParams, client: str = "") -> ChatRequest:
        """Return what the backend is asked."""
        messages, assistant_prefix = self._conversation()
        if self.context_management is not None:
            self.context_management.check()
            messages = self.context_management.cleared(messages)
        tools = self._tools()
        return ChatRequest(
            model=model_asked(self.model),
            messages=messages,
            assistant_prefix=assistant_prefix,
            tools=tools,
            tool_choice=checked_choice(tools, _choice(self.tool_choice)),
            parallel_tool_calls=not (self.tool_choice and self.tool_choice.disable_parallel_tool_use),
            reasoning_effort="none" if self.thinking is not None and self.thinking.type == "disabled" else None,
            response_format=_format(self.output_config),
            sampling=sampling,
            private=bool(self.private),
            origin=Origin(client=client),
        )

    def parts(self) -> tuple[Callable[[], object], ...]:
        """Return what is checked, each by itself, to find all that is wrong."""
        return (
            self._conversation,
            lambda: self.context_management and self.context_management.check(),
            *(partial(_tool, tool, number) for number, tool in enumerate(self.tools or ())),
            lambda: checked_choice(self._tools(), _choice(self.tool_choice)),
            lambda: model_asked(self.model),
        )

    def _tools(self) -> list[Tool]:
        return [_tool(tool, number) for number, tool in enumerate(self.tools or ())]

    def _conversation(self) -> tuple[list[Message], str]:
        """Return the messages, and the answer's beginning."""
        if not self.messages:
            raise RequestError("messages is empty; send at least one message", param="messages")
        earlier, assistant_prefix = self._begun()
        return read_conversation(self.system, earlier), assistant_prefix

    def _begun(self) -> tuple[list[InputMessage], str]:
        """Return the messages without the last one where that is the assistant's: the answer's beginning."""
        *earlier, last = self.messages
        if last.role != "assistant":
            return self.messages, ""
        where = f"messages[{len(earlier)}]"
        blocks = [TextBlock(text=last.content)] if isinstance(last.content, str) else last.content
        texts = [block.text for block in blocks if isinstance(block, TextBlock)]
        if len(texts) < len(blocks):
            raise RequestError(f"{where} begins the answer, and can hold text only", param=where)
        text = "\n".join(texts)  # as texts of other messages are joined
        if text != text.rstrip():
            raise RequestError(f"{where} begins the answer, and cannot end with white space", param=where)
        if text and self.thinking is not None and self.thinking.type != "disabled":
            raise RequestError(f"{where} begins the answer, which leaves no room for thinking", param="thinking")
        if not earlier:
            raise RequestError("messages has only the answer's beginning; send a user's message", param="messages")
        return earlier, text


class MessagesBody(CountBody, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/messages."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: _Metadata | None = None


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request understood."""

    request: ChatRequest
    model: str
    is_streamed: bool
    has_thinking: bool
    eager_tools: frozenset[str]


def _budget(thinking: Thinking | None) -> int | None:
    """Return how many tokens the model may think, where that is said."""
    if thinking is None or thinking.budget_tokens is None or thinking.type != "enabled":
        return None
    if thinking.budget_tokens < 1:
        text = f"thinking.budget_tokens must be at least 1, got {thinking.budget_tokens}"
        raise RequestError(text, param="thinking.budget_tokens")
    return thinking.budget_tokens


def read_messages(body: bytes) -> ParsedRequest:
    """Understand the body of POST /v1/messages; raises `RequestError` naming the field at fault."""
    return read_all(body, MessagesBody, REFUSED, _read_messages, _message_parts)


def _message_parts(parsed: MessagesBody) -> tuple[Callable[[], object], ...]:
    return (
        lambda: _sampling(parsed, None),
        lambda: _budget(parsed.thinking),
        lambda: check_name("metadata.user_id", _client(parsed)),
        *parsed.parts(),
    )


def _sampling(parsed: MessagesBody, thinking_budget: int | None) -> SamplingParams:
    sampling = SamplingParams(
        max_tokens=parsed.max_tokens,
        temperature=1.0 if parsed.temperature is None else parsed.temperature,
        top_p=1.0 if parsed.top_p is None else parsed.top_p,
        top_k=parsed.top_k or 0,
        stop=tuple(parsed.stop_sequences or ()),
        thinking_token_budget=thinking_budget,
    )
    sampling = sampling.with_given(name for name in ("top_p", "top_k") if getattr(parsed, name) is not None)
    return checked_sampling(sampling, {"stop": "stop_sequences"})


def _client(parsed: MessagesBody) -> str:
    return (parsed.metadata.user_id if parsed.metadata else None) or ""


def _read_messages(parsed: MessagesBody) -> ParsedRequest:
    sampling, client = _sampling(parsed, _budget(parsed.thinking)), _client(parsed)
    check_name("metadata.user_id", client)
    return ParsedRequest(
        request=parsed.request(sampling, client),
        model=parsed.model or "default",
        is_streamed=bool(parsed.stream),
        has_thinking=parsed.thinking is not None and parsed.thinking.type != "disabled",
        eager_tools=frozenset(tool.name for tool in parsed.tools or () if tool.eager_input_streaming),
    )


def read_count(body: bytes) -> ChatRequest:
    """Understand the body of POST /v1/messages/count_tokens."""
    return read_all(body, CountBody, REFUSED, lambda parsed: parsed.request(SamplingParams()), CountBody.parts)


def _tool(tool: InputTool, number: int) -> Tool:
    refuse(tool, _REFUSED_TOOL, f"tools[{number}].")
    examples = [msgspec.json.encode(example).decode() for example in tool.input_examples or ()]
    lines = [tool.description, *(f"Example of its input: {example}" for example in examples)]
    description = "\n".join(filter(None, lines))
    return Tool(FunctionDefinition(tool.name, description, tool.input_schema or {}, tool.strict or None))


def _choice(choice: ToolChoice | None) -> str | JsonObject | None:
    if choice is None:
        return None
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return {"any": "required"}.get(choice.type, choice.type)


def _format(config: OutputConfig | None) -> ResponseFormat | None:
    if config is None or config.format is None:
        return None
    return ResponseFormat("json_schema", JsonSchemaFormat(schema=config.format.schema))
