"""Messages and tools as they stand in Ollama's requests. Every field is honoured or refused by name. Pure."""

from __future__ import annotations

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

_IMAGES = (("iVBOR", "png"), ("/9j/", "jpeg"), ("R0lGOD", "gif"), ("UklGR", "webp"))


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: JsonObject = {}
    index: int | None = None
    description: str | None = None


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    function: _Function
    id: str | None = None
    type: str | None = None


class _Definition(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class InputTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool that the client runs. `strict` is OpenAI's: clients made for both APIs send it here, too."""

    function: _Definition
    type: Literal["function"] | None = None
    items: None = None

    def tool(self) -> Tool:
        """As backends take it."""
        function = self.function
        return Tool(
            FunctionDefinition(
                function.name, function.description or "", function.parameters or {}, function.strict or None
            )
        )


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message; what the assistant thought goes to the chat template, which may show it again."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[_Call] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


def read_messages(chat: list[ChatMessage]) -> list[Message]:
    """Messages with ids for tool calls that have none; results without an id answer the calls in order.

    A result that answers no call is told all the same, as Ollama does: litellm sends the results alone.
    """
    messages: list[Message] = []
    unanswered: list[ToolCall] = []
    for number, message in enumerate(chat):
        if message.role == "tool":
            name = message.tool_name or message.name
            call_id = message.tool_call_id or _answered(unanswered, name)
            messages.append(Message("tool", message.content or "", None if call_id else name, tool_call_id=call_id))
            continue
        calls = [
            ToolCall(
                id=call.id or f"call_{number}_{index}",
                function=FunctionCall(call.function.name, msgspec.json.encode(call.function.arguments).decode()),
            )
            for index, call in enumerate(message.tool_calls or [])
        ]
        unanswered += calls
        content = content_of(message.content or "", message.images)
        thought = message.thinking or None if message.role == "assistant" else None
        messages.append(
            Message(message.role, content, message.name, tool_calls=calls or None, reasoning_content=thought)
        )
    return messages


def _answered(unanswered: list[ToolCall], name: str | None) -> str | None:
    found = next((call for call in unanswered if name in {None, call.function.name}), None)
    if found is None:
        return None
    unanswered.remove(found)
    return found.id


def content_of(text: str, images: list[str] | None) -> str | list[TextPart | ImagePart]:
    """Return a text and images, each base64 of a file, as a message's content."""
    if not images:
        return text
    return [TextPart(text), *(ImagePart(ImageUrl(_data_url(image))) for image in images)]


def _data_url(image: str) -> str:
    kind = next((kind for beginning, kind in _IMAGES if image.startswith(beginning)), None)
    if kind is None:
        raise RequestError("images takes base64 of PNG, JPEG, GIF or WebP files", param="images")
    return f"data:image/{kind};base64,{image}"
