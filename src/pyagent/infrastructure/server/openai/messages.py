"""Messages and tools as they stand in OpenAI's requests, and what becomes of each of their fields.

A message has the fields that OpenAI knows for its role, and those that clients send back of an answer they were given;
the latter change no answer. Others are refused by name. Pure: structs in, values of `core.messages` out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import (
    FunctionCall,
    FunctionDefinition,
    ImagePart,
    ImageUrl,
    JsonObject,
    Message,
    TextPart,
    Tool,
    ToolCall,
)
from pyagent.infrastructure.server.custom_tools import InputGrammar, as_arguments, custom_tool
from pyagent.infrastructure.server.validation import Refused, refuse

_REFUSED: Refused = {
    "audio": ((), "no audio is kept"),
    "function_call": ((), "use `tool_calls`, which replaced it"),
}
_REFUSED_TOOL: Refused = {"type": (("function", "custom"), "only functions and custom tools are")}


class _Part(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    # prompts are kept without them; the second is what clients made for several services send
    prompt_cache_breakpoint: object = None
    cache_control: object = None


class Text(_Part, tag="text", kw_only=True):
    """Text."""

    text: str


class _Url(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    detail: str | None = None


class Image(_Part, tag="image_url", kw_only=True):
    """An image by its address, or as data."""

    image_url: _Url


class Refusal(_Part, tag="refusal", kw_only=True):
    """What the assistant said instead of an answer."""

    refusal: str


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str = "{}"
    parsed_arguments: object = None  # OpenAI's client adds it, and sends it back


class _CustomCall(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    input: str


class Call(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call the assistant made."""

    id: str
    function: _Function | None = None
    type: str = "function"
    custom: _CustomCall | None = None
    index: int | None = None  # of a streamed call, which clients send back

    def call(self, where: str) -> ToolCall:
        """Return the call; raises `RequestError` for one of no function and no custom tool."""
        refuse(self, _REFUSED_TOOL, f"{where}.")
        if self.type == "custom" and self.custom is not None:
            return ToolCall(id=self.id, function=FunctionCall(self.custom.name, as_arguments(self.custom.input)))
        if self.function is None:
            raise RequestError(f"{where} needs its function, with name and arguments", param=f"{where}.function")
        return ToolCall(id=self.id, function=FunctionCall(self.function.name, self.function.arguments))


class _Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role"):
    name: str | None = None
    cache_control: object = None


class SystemMessage(_Message, tag="system", kw_only=True):
    """What holds for the whole conversation."""

    content: str | list[Text]


class DeveloperMessage(_Message, tag="developer", kw_only=True):
    """The same by its newer name."""

    content: str | list[Text]


class UserMessage(_Message, tag="user", kw_only=True):
    """What the user says and shows."""

    content: str | list[Text | Image]


class ToolMessage(_Message, tag="tool", kw_only=True):
    """What a call gave. OpenAI takes text alone; others, images too."""

    content: str | list[Text | Image]
    tool_call_id: str | None = None


class AssistantMessage(_Message, tag="assistant", kw_only=True):
    """What the assistant said, and what it thought, which a chat template may show to the model again."""

    content: str | list[Text | Refusal] | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None
    # refused
    audio: object = None
    function_call: object = None
    # parts of an answer, OpenAI's and others', which clients send back
    annotations: object = None
    parsed: object = None
    reasoning: object = None
    reasoning_content: object = None
    provider_specific_fields: object = None


InputMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class _Definition(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class _InputFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text", "grammar"] = "text"
    grammar: InputGrammar | None = None


class _Custom(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    format: _InputFormat | None = None


class InputTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool that the client runs."""

    function: _Definition | None = None
    type: str = "function"
    custom: _Custom | None = None
    cache_control: object = None  # as in a message

    def tool(self, where: str) -> Tool:
        """As backends take it; raises `RequestError` for one that is neither a function nor a custom tool."""
        refuse(self, _REFUSED_TOOL, f"{where}.")
        if self.type == "custom":
            return self._custom(f"{where}.custom")
        if self.function is None:
            raise RequestError(f"{where} needs its function, with a name", param=f"{where}.function")
        function = self.function
        return Tool(
            FunctionDefinition(
                function.name, function.description or "", function.parameters or {}, function.strict or None
            )
        )

    def _custom(self, where: str) -> Tool:
        custom = self.custom
        if custom is None:
            raise RequestError(f"{where} is required", param=where)
        form = custom.format
        if form is not None and (form.type == "grammar") != (form.grammar is not None):
            text = f"{where}.format of type {form.type} {'needs its' if form.grammar is None else 'takes no'} grammar"
            raise RequestError(text, param=f"{where}.format.grammar")
        return custom_tool(custom.name, custom.description, form and form.grammar, f"{where}.format.grammar")


def custom_names(tools: Sequence[InputTool]) -> frozenset[str]:
    """Return the names of the custom tools."""
    return frozenset(tool.custom.name for tool in tools if tool.type == "custom" and tool.custom is not None)


def read_messages(messages: Sequence[InputMessage]) -> list[Message]:
    """Return the messages as backends take them. Raises `RequestError` naming the field at fault."""
    return [_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def read_tools(tools: Sequence[InputTool]) -> list[Tool]:
    """Return the tools as backends take them. Raises `RequestError` naming the field at fault."""
    return [tool.tool(f"tools[{number}]") for number, tool in enumerate(tools)]


def _message(message: InputMessage, where: str) -> Message:
    match message:
        case SystemMessage():
            return Message("system", _content(message.content), message.name)
        case DeveloperMessage():
            return Message("developer", _content(message.content), message.name)
        case UserMessage():
            return Message("user", _content(message.content), message.name)
        case ToolMessage():
            return Message("tool", _content(message.content), message.name, tool_call_id=message.tool_call_id)
        case AssistantMessage():
            refuse(message, _REFUSED, f"{where}.")
            calls = [call.call(f"{where}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls or ())]
            content = message.refusal if message.content is None else _content(message.content)
            thought = message.reasoning_content or message.reasoning
            thought = thought if isinstance(thought, str) and thought else None
            return Message("assistant", content, message.name, calls or None, reasoning_content=thought)


def _content(content: str | Sequence[Text | Image | Refusal]) -> str | list[TextPart | ImagePart]:
    if isinstance(content, str):
        return content
    return [_part(part) for part in content]


def _part(part: Text | Image | Refusal) -> TextPart | ImagePart:
    match part:
        case Text():
            return TextPart(part.text)
        case Refusal():
            return TextPart(part.refusal)
        case Image():
            return ImagePart(ImageUrl(part.image_url.url, part.image_url.detail or "auto"))
