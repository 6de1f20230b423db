"""Whether a whole answer has the form that was asked for: JSON, a schema, one of some choices, strict calls. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from pyagent.core.emulation.forms import fault_of_calls, schema_of
from pyagent.core.emulation.schemas import fault_of
from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatDelta, ChatRequest, ResponseFormat


def has_form(request: ChatRequest) -> bool:
    """Whether a request asks for anything that can be checked here."""
    wanted = request.response_format
    return (wanted is not None and wanted.type != "text") or any(tool.function.strict for tool in request.tools)


def fault_of_answer(deltas: Sequence[ChatDelta], request: ChatRequest) -> str:
    """What is wrong with the form of one answer; empty when it is as asked for, or was cut off."""
    if calls := [call for delta in deltas for call in delta.tool_calls]:
        try:
            return fault_of_calls(calls, request.tools) or ""
        except RequestError:
            return ""  # no link can be blamed for it
    if deltas[-1].finish_reason != "stop":
        return ""
    begun = request.assistant_prefix + request.answer_prefix
    return fault_in(begun + "".join(delta.content for delta in deltas), request.response_format)


def fault_in(text: str, wanted: ResponseFormat | None) -> str:
    """What is wrong with an answer's form; empty when it is as asked for, or when its schema cannot be checked."""
    if wanted is None or wanted.type == "text":
        return ""
    if wanted.type == "choice":
        return "" if text in (wanted.choice or ()) else f"{text[:60]!r} is none of the choices"
    try:
        value = cast("object", msgspec.json.decode(text.encode(errors="surrogatepass")))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return f"it is not JSON: {error}"
    try:
        return fault_of(value, schema_of(wanted), "response_format") or ""
    except RequestError:
        return ""  # no link can be blamed for it
