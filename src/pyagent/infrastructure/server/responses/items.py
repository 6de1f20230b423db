"""Items of a conversation as responses have them, and the messages they stand for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.field_errors import MAX_FAULTS, field_error, together
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


_Content = str | list[TextPart | ImagePart]
_Parts = list[_TextIn | _TextOut | _Refusal | _Image]


class _Turns:
    """Puts items together to messages: what an assistant thought, said and called in a row is one.

    Parts of it are joined when it ends, since there may be any number of them.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._is_open = False
        self._content: _Content | None = None
        self._thoughts: list[str] = []
        self._calls: list[ToolCall] = []

    def add(self, message: Message) -> None:
        """Add a message that is none of the assistant's."""
        self.end().append(message)

    def say(self, role: Literal["user", "assistant", "system", "developer"], content: _Content) -> None:
        """Add what a role said; the assistant says it after what it thought last."""
        if role != "assistant":
            self.add(Message(role, content))
            return
        if not self._is_bare:
            self.end()
        self._is_open, self._content = True, content

    def call(self, call: ToolCall) -> None:
        """Add a call of the assistant's."""
        self._is_open = True
        self._calls.append(call)

    def think(self, thought: str) -> None:
        """Add a thought: its next call stays beside the others."""
        if not self._calls and not self._is_bare:
            self.end()
        self._is_open = True
        self._thoughts.append(thought)

    def end(self) -> list[Message]:
        """End the message of the assistant's, if one is under way; of thoughts alone there is none. Return all."""
        if self._is_open and not self._is_bare:
            thoughts, calls = "\n".join(self._thoughts) or None, self._calls or None
            message = Message("assistant", self._content, tool_calls=calls, reasoning_content=thoughts)
            self._messages.append(message)
        self._is_open, self._content, self._thoughts, self._calls = False, None, [], []
        return self._messages

    @property
    def _is_bare(self) -> bool:
        """Whether the message under way is thoughts alone."""
        return bool(self._thoughts) and not self._content and not self._calls


class _Said(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | _Parts
    type: object = None
    id: object = None
    status: object = None
    phase: object = None

    def add_to(self, turns: _Turns) -> None:
        turns.say(self.role, _content(self.content))


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

    def add_to(self, turns: _Turns) -> None:
        function = FunctionCall(flat_name(self.namespace, self.name), self.arguments)
        turns.call(ToolCall(id=self.call_id, function=function))


class _CustomCall(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call of a custom tool."""

    call_id: str
    name: str
    input: str
    type: object = None
    id: object = None
    status: object = None
    caller: object = None

    def add_to(self, turns: _Turns) -> None:
        _Call(call_id=self.call_id, name=self.name, arguments=as_arguments(self.input)).add_to(turns)


class _CallOutput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a call gave."""

    call_id: str
    output: str | _Parts
    type: object = None
    id: object = None
    status: object = None
    caller: object = None
    name: object = None

    def add_to(self, turns: _Turns) -> None:
        turns.add(Message("tool", _content(self.output), tool_call_id=self.call_id))


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

    def add_to(self, turns: _Turns) -> None:
        if thought := self.thought:
            turns.think(thought)


def _texts(parts: Sequence[JsonObject], between: str) -> str:
    return between.join(text for part in parts if isinstance(text := part.get("text"), str))


_KINDS: dict[object, type[_Said | _Call | _CustomCall | _CallOutput | _Reasoning]] = {
    "message": _Said,
    "function_call": _Call,
    "function_call_output": _CallOutput,
    "custom_tool_call": _CustomCall,
    "custom_tool_call_output": _CallOutput,
    "reasoning": _Reasoning,
}


def messages_of(items: Sequence[JsonObject], num_earlier: int = 0) -> list[Message]:
    """Return the messages that items stand for, of which so many are of earlier responses.

    Raises `RequestError` naming the items at fault, the first of them where they are many.
    """
    turns, errors = _Turns(), list[RequestError]()
    for number, item in enumerate(items, -num_earlier):
        try:
            _add(item, f"input[{number}]", turns)
        except RequestError as error:
            errors.append(error)
            if len(errors) == MAX_FAULTS:
                break
    if errors:
        raise together(errors)
    return turns.end()


def _add(item: JsonObject, where: str, turns: _Turns) -> None:
    kind = item.get("type") or "message"
    if not isinstance(kind, str) or kind not in _KINDS:
        text = f"{where} is {str(kind)[:40]!r}; there are {', '.join(map(str, _KINDS))}"
        raise RequestError(text, param=f"{where}.type", code="unsupported_parameter")
    try:
        msgspec.convert(item, _KINDS[kind]).add_to(turns)
    except msgspec.ValidationError as error:
        raise field_error(error, _KINDS[kind], where) from error


def _content(content: str | _Parts) -> _Content:
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
