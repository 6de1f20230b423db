"""Tools for a model that has no way to call them: described in the prompt, called in tags that its text holds.

The tags are those that Hermes and Qwen models were trained on. Pure: requests in, requests out; text in, calls out.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from typing import cast

import msgspec

from pyagent.core.emulation.schemas import fault_of
from pyagent.core.errors import InvalidOutputError
from pyagent.core.messages import ChatRequest, FunctionCall, JsonObject, Message, Tool, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_BLOCK = re.compile(f"{OPEN}(.*?)(?:{CLOSE}|(?={OPEN})|$)", re.DOTALL)


def instruction(tools: Sequence[Tool], *, is_parallel: bool = True) -> str:
    """The tools and how to call them, in words."""
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
    """The request without tools, earlier calls and their results written into its messages."""
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
    """The text before the calls, and the calls. Raises `InvalidOutputError` for a call that cannot be made."""
    prose, tag, _ = text.partition(OPEN)
    if not tag:
        return text, []
    by_name = {tool.function.name: tool for tool in tools}
    return prose.rstrip(), [_read_call(block.strip(), by_name) for block in _BLOCK.findall(text)]


def _read_call(block: str, by_name: dict[str, Tool]) -> ToolCall:
    try:
        said = cast("object", json.JSONDecoder().raw_decode(block)[0])
    except (ValueError, RecursionError) as error:
        raise InvalidOutputError(f"a function call is not valid JSON: {error}", param="tools") from error
    call = cast("JsonObject", said) if isinstance(said, dict) else {}
    name, arguments = call.get("name"), call.get("arguments", {})
    tool = by_name.get(name) if isinstance(name, str) else None
    if tool is None:
        raise InvalidOutputError(f"there is no function {name!r}; there are {', '.join(by_name)}", param="tools")
    if not isinstance(arguments, dict):
        raise InvalidOutputError(f"the arguments of {name} must be a JSON object", param="tools")
    if (fault := fault_of(cast("object", arguments), tool.function.parameters, "tools")) is not None:
        raise InvalidOutputError(f"the arguments of {name} are wrong: {fault}", param="tools")
    function = FunctionCall(tool.function.name, json.dumps(arguments, ensure_ascii=False))
    return ToolCall(id=f"call_{uuid.uuid4().hex[:12]}", function=function)


def safe_length(text: str) -> int:
    """How much of a text's beginning can be shown now: up to the first tag, or what may become one."""
    place = text.find(OPEN)
    if place >= 0:
        return len(text[:place].rstrip())
    for length in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if text.endswith(OPEN[:length]):
            text = text[:-length]
            break
    return len(text.rstrip())
