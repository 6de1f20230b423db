"""Validate a whole answer against the request: JSON, a JSON schema, a choice, the arguments of strict tools."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pyagent.core.emulation.response_formats import fault_of_calls
from pyagent.core.errors import InvalidOutputError, RequestError
from pyagent.core.messages import ChatDelta, ChatRequest, ResponseFormat
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.structured_output.matching import fault_of_text, is_cut_at_stop
from pyagent.core.structured_output.work import TooLongToCheckError, checked_aside
from pyagent.core.tool_call_deltas import whole_calls, without_cut


def wants_structured_output(request: ChatRequest) -> bool:
    """Return whether a request asks for anything that `validate_answer` checks."""
    wanted = request.response_format
    return (wanted is not None and wanted.type != "text") or any(tool.function.strict for tool in request.tools)


async def check_answer(deltas: Sequence[ChatDelta], request: ChatRequest, name: str, deadline: Deadline) -> None:
    """Raise `InvalidOutputError` for a finished answer of the link `name` that does not match the request."""
    for index in {delta.index for delta in deltas}:
        mine = [delta for delta in deltas if delta.index == index]
        if fault := await validate_aside(mine, request, deadline):
            param = "tools" if any(delta.tool_calls for delta in mine) else "response_format"
            raise InvalidOutputError(f"{name}: the answer does not match {param}: {fault}", param=param)


async def validate_aside(deltas: Sequence[ChatDelta], request: ChatRequest, deadline: Deadline) -> str:
    """Return what `validate_answer` does, while the event loop goes on; empty where that takes too long."""
    if not _is_checkable(deltas):
        return ""
    try:
        return await checked_aside(partial(validate_answer, deltas, request), deadline, request.origin.tenant)
    except TooLongToCheckError:
        return ""  # no link can be blamed for it


def validate_answer(deltas: Sequence[ChatDelta], request: ChatRequest) -> str:
    """Return what is wrong with one answer; empty when it matches the request, or was cut off."""
    if calls := whole_calls(deltas):
        try:
            return fault_of_calls(without_cut(calls, deltas[-1].finish_reason), request.tools) or ""
        except RequestError:
            return ""  # no link can be blamed for it
    if not _is_checkable(deltas):
        return ""
    begun = request.assistant_prefix + request.answer_prefix
    text = begun + "".join(delta.content for delta in deltas)
    return _validate_text(text, request.response_format, request.sampling.stop)


def _is_checkable(deltas: Sequence[ChatDelta]) -> bool:
    """Whether anything is known to be whole: an answer that was cut off may have matched."""
    return deltas[-1].finish_reason == "stop" or any(delta.tool_calls for delta in deltas)


def _validate_text(text: str, wanted: ResponseFormat | None, stop: Sequence[str]) -> str:
    """Return why a text does not match `wanted`; empty when it does, or when that cannot be checked in time.

    Also where a text to stop at cut it, which is what the request asks for: its finish reason "stop" says so.
    """
    try:
        fault = (wanted and fault_of_text(text, wanted)) or ""
        return "" if wanted and fault and is_cut_at_stop(text, wanted, stop) else fault
    except RequestError:
        return ""  # no link can be blamed for it
