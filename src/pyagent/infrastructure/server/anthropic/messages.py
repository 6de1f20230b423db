"""Messages and their blocks as they stand in Anthropic's requests. `cache_control` changes no answer anywhere. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import FunctionCall, ImagePart, ImageUrl, JsonObject, Message, TextPart, ToolCall
from pyagent.infrastructure.server.validation import Refused, refuse

_REFUSED_IMAGE: Refused = {"transformations": (([], {}), "images are passed on as they are")}


class _Block(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    cache_control: object = None


class TextBlock(_Block, tag="text", kw_only=True):
    """Text."""

    text: str
    citations: object = None


class _Bytes(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="base64"):
    media_type: str
    data: str


class _Url(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="url"):
    url: str


class ImageBlock(_Block, tag="image", kw_only=True):
    """An image, as base64 or by its address."""

    source: _Bytes | _Url
    transformations: object = None

    def part(self) -> ImagePart:
        """Return the image as a part of a message."""
        refuse(self, _REFUSED_IMAGE, "image.")
        if isinstance(self.source, _Url):
            return ImagePart(ImageUrl(self.source.url))
        return ImagePart(ImageUrl(f"data:{self.source.media_type};base64,{self.source.data}"))


class ToolUseBlock(_Block, tag="tool_use", kw_only=True):
    """A call the assistant made."""

    id: str
    name: str
    input: JsonObject
    caller: object = None
    toolset_name: object = None


class ToolResultBlock(_Block, tag="tool_result", kw_only=True):
    """What a call gave."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock] | None = None
    is_error: bool | None = None
    toolset_name: object = None

    def message(self) -> Message:
        """Return the result as a message of its own."""
        content = _content(self.content or "")
        if self.is_error:
            content = f"Error: {content}" if isinstance(content, str) else [TextPart("Error: "), *content]
        return Message("tool", content, tool_call_id=self.tool_use_id)


class ThinkingBlock(_Block, tag="thinking", kw_only=True):
    """What the assistant thought, which a chat template may show again."""

    thinking: str
    signature: str = ""


class RedactedBlock(_Block, tag="redacted_thinking", kw_only=True):
    """What the assistant thought, sealed by its maker."""

    data: str


_Blocks = list[TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedBlock]


class InputMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message."""

    role: Literal["user", "assistant", "system"]
    content: str | _Blocks


def read_conversation(system: str | list[TextBlock] | None, inputs: Sequence[InputMessage]) -> list[Message]:
    """Return the messages as backends take them. Raises `RequestError` naming the one at fault."""
    text = system if isinstance(system, str) else "\n".join(block.text for block in system or ())
    messages = [Message("system", text)] if text else []
    for number, message in enumerate(inputs):
        if isinstance(message.content, str):
            messages.append(Message(message.role, message.content))
        else:
            messages += _of_blocks(message.role, message.content, f"messages[{number}]")
    return messages


def _of_blocks(role: Literal["user", "assistant", "system"], blocks: _Blocks, where: str) -> list[Message]:
    """Return a message's blocks as messages: results of tools first, each its own, then the rest."""
    results = [block.message() for block in blocks if isinstance(block, ToolResultBlock)]
    content = _content([block for block in blocks if isinstance(block, TextBlock | ImageBlock)])
    calls = [
        ToolCall(id=block.id, function=FunctionCall(block.name, msgspec.json.encode(block.input).decode()))
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    if (results and role != "user") or (calls and role != "assistant"):
        what = "tool_use" if calls else "tool_result"
        raise RequestError(f"{where} is the {role}'s, which cannot hold {what}", param=where)
    if not (content or calls):
        return results
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock) and role == "assistant"]
    thought = "\n".join(thoughts) or None
    return [*results, Message(role, content or None, tool_calls=calls or None, reasoning_content=thought)]


def _content(content: str | list[TextBlock | ImageBlock]) -> str | list[TextPart | ImagePart]:
    """Content as it is in OpenAI's messages; text alone is one text."""
    if isinstance(content, str):
        return content
    if all(isinstance(block, TextBlock) for block in content):
        return "\n".join(block.text for block in content if isinstance(block, TextBlock))
    return [block.part() if isinstance(block, ImageBlock) else TextPart(block.text) for block in content]
