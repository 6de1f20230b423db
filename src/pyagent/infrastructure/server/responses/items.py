"""Items of a conversation as responses have them, and the messages they stand for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.field_errors import field_error
from pyagent.core.messages import FunctionCall, ImagePart, ImageUrl, JsonObject, Message, TextPart, ToolCall
from pyagent.infrastructure.server.custom_tools import as_arguments
from pyagent.infrastructure.server.responses.namespaces import flat_name

_SEAL = "pyagent:"


def sealed(thought: str) -> str:
    """Return a thought as `encrypted_content` of a reasoning item. It hides nothing: the text is the client's own."""
    return _SEAL + thought


class _Part(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    prompt_cache_breakpoint: object = None  # prompts are kept without it


class _TextIn(_Part, tag="input_text", kw_only=True):
    text: str


class _TextOut(_Part, tag="output_text", kw_only=True):
    text: str
    annotations: object = None
    logprobs: object = None
    parsed: object = None  # OpenAI's client adds it, and sends it back


class _Refusal(_Part, tag="refusal", kw_only=True):
    refusal: str


class _Image(_Part, tag="input_image", kw_only=True):
    image_url: str | None = None
    detail: str | None = None
    file_id: str | None = None


_Parts = list[_TextIn | _TextOut | _Refusal | _Image]


class _Said(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | _Parts
    type: object = None
    id: object = None
    status: object = None
    phase: object = None

    def add_to(self, messages: list[Message]) -> None:
        thought = messages.pop().reasoning_content if self.role == "assistant" and _is_bare(messages) else None
        messages.append(Message(self.role, _content(self.content), reasoning_content=thought))


class _Call(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call the model made; several in a row are one message."""

    call_id: str
    name: str
    arguments: str
    parsed_arguments: object = None  # as `parsed` of a text
    type: object = None
    id: object = None
    status: object = None
    caller: object = None
    namespace: str | None = None

    def add_to(self, messages: list[Message]) -> None:
        function = FunctionCall(flat_name(self.namespace, self.name), self.arguments)
        call = ToolCall(id=self.call_id, function=function)
        if messages and messages[-1].role == "assistant":
            last = messages.pop()
            messages.append(msgspec.structs.replace(last, tool_calls=[*(last.tool_calls or ()), call]))
        else:
            messages.append(Message("assistant", None, tool_calls=[call]))


class _CustomCall(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call of a custom tool."""

    call_id: str
    name: str
    input: str
    type: object = None
    id: object = None
    status: object = None
    caller: object = None

    def add_to(self, messages: list[Message]) -> None:
        _Call(call_id=self.call_id, name=self.name, arguments=as_arguments(self.input)).add_to(messages)


class _CallOutput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a call gave."""

    call_id: str
    output: str | _Parts
    type: object = None
    id: object = None
    status: object = None
    caller: object = None
    name: object = None

    def add_to(self, messages: list[Message]) -> None:
        messages.append(Message("tool", _content(self.output), tool_call_id=self.call_id))


class _Reasoning(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the model thought before the message or the call that follows; a chat template may show it again."""

    type: object = None
    id: object = None
    summary: list[JsonObject] | None = None
    content: list[JsonObject] | None = None
    encrypted_content: str | None = None
    status: object = None

    @property
    def thought(self) -> str:
        """Its text, in whichever field the client kept it; what another service has sealed stays unread."""
        if self.content:
            return _texts(self.content, "")
        if self.encrypted_content and self.encrypted_content.startswith(_SEAL):
            return self.encrypted_content.removeprefix(_SEAL)
        return _texts(self.summary or (), "\n")

    def add_to(self, messages: list[Message]) -> None:
        thought = self.thought
        if not thought:
            return
        if messages and messages[-1].role == "assistant" and (messages[-1].tool_calls or _is_bare(messages)):
            last = messages.pop()  # its next call stays beside the others
            thought = "\n".join(filter(None, (last.reasoning_content, thought)))
            messages.append(msgspec.structs.replace(last, reasoning_content=thought))
        else:
            messages.append(Message("assistant", None, reasoning_content=thought))


def _texts(parts: Sequence[JsonObject], between: str) -> str:
    return between.join(text for part in parts if isinstance(text := part.get("text"), str))


def _is_bare(messages: Sequence[Message]) -> bool:
    """Return whether the last message is only what the assistant thought before it said or called anything."""
    return bool(messages) and bool((last := messages[-1]).reasoning_content) and not (last.content or last.tool_calls)


_KINDS: dict[object, type[_Said | _Call | _CustomCall | _CallOutput | _Reasoning]] = {
    "message": _Said,
    "function_call": _Call,
    "function_call_output": _CallOutput,
    "custom_tool_call": _CustomCall,
    "custom_tool_call_output": _CallOutput,
    "reasoning": _Reasoning,
}


def messages_of(items: Sequence[JsonObject]) -> list[Message]:
    """Return the messages that items stand for; raises `RequestError` naming the item at fault."""
    messages: list[Message] = []
    for number, item in enumerate(items):
        kind = item.get("type") or "message"
        if not isinstance(kind, str) or kind not in _KINDS:
            text = f"input[{number}] is {str(kind)[:40]!r}; there are {', '.join(map(str, _KINDS))}"
            raise RequestError(text, param=f"input[{number}].type", code="unsupported_parameter")
        try:
            msgspec.convert(item, _KINDS[kind]).add_to(messages)
        except msgspec.ValidationError as error:
            raise field_error(error, _KINDS[kind], f"input[{number}]") from error
    return [message for number, message in enumerate(messages) if not _is_bare(messages[number : number + 1])]


def _content(content: str | _Parts) -> str | list[TextPart | ImagePart]:
    if isinstance(content, str):
        return content
    if any(isinstance(part, _Image) for part in content):
        return [_part(part) for part in content]
    return "".join(_text(part) for part in content)


def _part(part: _TextIn | _TextOut | _Refusal | _Image) -> TextPart | ImagePart:
    if isinstance(part, _Image):
        if part.image_url is None:
            raise RequestError("an input_image needs its image_url; no files are kept", param="input")
        return ImagePart(ImageUrl(part.image_url, part.detail or "auto"))
    return TextPart(_text(part))


def _text(part: _TextIn | _TextOut | _Refusal | _Image) -> str:
    if isinstance(part, _Refusal):
        return part.refusal
    return "" if isinstance(part, _Image) else part.text
