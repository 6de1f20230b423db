"""Tools for a model that has no way to call them: described in the prompt, called in tags that its text holds.

The tags are those that Hermes and Qwen models were trained on. Pure: requests in, requests out; text in, calls out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import cast

import msgspec

from pyagent.core.dialects.formats import HERMES
from pyagent.core.dialects.output import Parsed
from pyagent.core.emulation.schemas import fault_of
from pyagent.core.errors import InvalidOutputError
from pyagent.core.messages import ChatRequest, FunctionCall, Message, Tool, ToolCall, ToolCallDelta

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TAGS = replace(HERMES, reasoning=None)  # a backend's answer says itself what is reasoning


def instruction(tools: Sequence[Tool], *, is_parallel: bool = True) -> str:
    """Return the tools and how to call them, in words."""
    described = "\n".join(json.dumps(msgspec.to_builtins(tool.function), ensure_ascii=False) for tool in tools)
    return (
        f"You can call these functions, each described by a JSON schema of its parameters:\n{described}\n"
        f"To call one, answer with {OPEN}"
        '{"name": "FUNCTION", "arguments": {...}}'
        f"{CLOSE} and nothing after it. "
        f"{'Several calls stand one after another' if is_parallel else 'Make one call at a time'}. "
        "The results come in <tool_response> tags. "
        "Call a function only when it is needed; else answer in plain text."
    )


def told_plainly(request: ChatRequest) -> ChatRequest:
    """Return the request without tools, earlier calls and their results written into its messages."""
    names = {call.id: call.function.name for message in request.messages for call in message.tool_calls or []}
    messages = [told_message(message, names) for message in request.messages]
    return msgspec.structs.replace(request, messages=messages, tools=[], tool_choice=None)


def told_message(message: Message, names: dict[str, str]) -> Message:
    """Return a message with its calls, or as the result of a call, in words; `names` are those of calls by id."""
    if message.role == "tool":
        name = message.name or names.get(message.tool_call_id or "", "")
        told = json.dumps({"name": name, "content": message.text}, ensure_ascii=False)
        return Message("user", f"<tool_response>{told}</tool_response>")
    if not message.tool_calls:
        return message
    written = [(json.dumps(call.function.name), _compact(call.function.arguments)) for call in message.tool_calls]
    calls = [f'{OPEN}{{"name": {name}, "arguments": {arguments}}}{CLOSE}' for name, arguments in written]
    return Message(message.role, "\n".join(filter(None, [message.text, *calls])))


def _compact(arguments: str) -> str:
    """Arguments as they are always written, however the client that sends them back does."""
    try:
        return json.dumps(json.loads(arguments or "{}"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def read(text: str, tools: Sequence[Tool]) -> tuple[str, list[ToolCall]]:
    """Return an answer's text and calls. Raises `InvalidOutputError` for a call that cannot be made."""
    reader = TagReader(tools)
    reader.push(text)
    return reader.finish()


class TagReader:
    """Reads an answer's text and calls as it comes, with the parser of the dialect that the tags are from."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._name_to_tool = {tool.function.name: tool for tool in tools}
        self._parser = _TAGS.parser(tools)
        self._content: list[str] = []
        self._pieces: list[ToolCallDelta] = []
        self._has_tag = False

    def push(self, text: str) -> str:
        """Read a piece; return what can be shown now: text before the first tag, which no fault can make void."""
        return self._hear(self._parser.push(text))

    def finish(self, *, is_cut: bool = False) -> tuple[str, list[ToolCall]]:
        """End the answer; return its text and calls. Raises `InvalidOutputError` for a call that cannot be made.

        One that is not closed is made whole, unless the answer `is_cut` by its limit of tokens.
        """
        self._hear(self._parser.finish(is_cut=is_cut))
        content = "".join(self._content)
        if OPEN in content:  # a tag that begins no call is text to the parser
            raise InvalidOutputError("a function call is not valid JSON, or has no name", param="tools")
        calls = [list(pieces) for _, pieces in groupby(self._pieces, key=lambda piece: piece.index)]
        return content, [_checked(pieces, self._name_to_tool) for pieces in calls]

    def _hear(self, parsed: Parsed) -> str:
        self._content.append(parsed.content)
        self._pieces += parsed.tool_calls
        if self._has_tag:
            return ""
        shown, tag, _ = parsed.content.partition(OPEN)
        self._has_tag = bool(tag or parsed.tool_calls)
        return shown.rstrip() if tag else shown


def _checked(pieces: Sequence[ToolCallDelta], name_to_tool: dict[str, Tool]) -> ToolCall:
    """Return a call whose arguments follow the tool's schema; one that was cut has none that do."""
    name, written = pieces[0].name, "".join(piece.arguments for piece in pieces)
    if name not in name_to_tool:
        raise InvalidOutputError(f"there is no function {name!r}; there are {', '.join(name_to_tool)}", param="tools")
    try:
        arguments = cast("object", json.loads(written))
    except (ValueError, RecursionError) as error:
        raise InvalidOutputError(f"the arguments of {name} are not valid JSON: {error}", param="tools") from error
    if not isinstance(arguments, dict):
        raise InvalidOutputError(f"the arguments of {name} must be a JSON object", param="tools")
    schema = name_to_tool[name].function.parameters
    if (fault := fault_of(cast("object", arguments), schema, "tools")) is not None:
        raise InvalidOutputError(f"the arguments of {name} are wrong: {fault}", param="tools")
    return ToolCall(id=pieces[0].id, function=FunctionCall(name, written))
