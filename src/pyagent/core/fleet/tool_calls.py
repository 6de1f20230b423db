"""A model that calls tools: it is asked, its calls are run, their results go back to it, and it is asked again.

Bounded in rounds, in calls an answer, and in what a result may add to the prompt. The model can call what it was
offered and nothing else, and no call runs that the answer was cut in. What goes wrong in a call is told to the model,
which may do better; what ends the run ends this too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.emulation.fulfil import summed
from pyagent.core.errors import AgentError, BudgetError, NeedsAnswerError, PyAgentError
from pyagent.core.fleet.agent import text_of
from pyagent.core.fleet.model_call import Completion, ModelCall, ToolResult
from pyagent.core.messages import JsonObject, Message, SamplingParams, ToolCall, Usage
from pyagent.core.tool_call_deltas import without_cut

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

MAX_ROUNDS = 8
"""Answers with calls that a model may give before it has to answer in words."""
MAX_CALLS = 16
"""Calls of one answer that are run."""
MAX_RESULT_CHARACTERS = 16_000
"""What the model is shown of one result: about 4,000 tokens."""


async def complete_with_tools(
    context: Context, messages: list[Message], tools: Sequence[str], sampling: SamplingParams, max_rounds: int
) -> Completion:
    """Return the answer that the model gives after calling tools. Raises `AgentError` when it goes on calling them."""
    offered = [context.tool(name).definition() for name in dict.fromkeys(tools)]
    names = [tool.function.name for tool in offered]
    results, usage = list[ToolResult](), list[Usage | None]()
    for num_rounds in range(max_rounds + 1):
        choice = "none" if num_rounds == max_rounds else None
        call = ModelCall(context, messages, None, sampling, whole=True, tools=offered, tool_choice=choice)
        await call.finish()
        usage.append(call.usage)
        calls = without_cut(call.tool_calls, call.finish_reason)
        if not calls:
            used = summed(usage) or Usage()
            return msgspec.structs.replace(call.completion, usage=used, tool_results=tuple(results))
        if choice is None:
            told = await context.map(lambda each: _result(context, each, names), calls[:MAX_CALLS])
            told += [_failed(each, f"only {MAX_CALLS} calls are run at once") for each in calls[MAX_CALLS:]]
            results += told
            messages = [*messages, *_conversation(call.completion.text, calls, told)]
    raise AgentError(f"the model still calls tools after {max_rounds} rounds of calls", agent=context.agent)


def _conversation(text: str, calls: list[ToolCall], results: Sequence[ToolResult]) -> list[Message]:
    """Return the answer that holds the calls, and a message for each result, as the model sees them."""
    asked = Message("assistant", text or None, tool_calls=calls)
    pairs = zip(calls, results, strict=True)
    return [asked, *(Message("tool", each.text, name=each.tool, tool_call_id=one.id) for one, each in pairs)]


async def _result(context: Context, call: ToolCall, names: Sequence[str]) -> ToolResult:
    name, text = call.function.name, call.function.arguments
    if name not in names:
        return _failed(call, f"there is no function {name!r}; there are {', '.join(names)}")
    try:
        arguments = msgspec.json.decode(text, type=JsonObject)
    except (ValueError, RecursionError) as error:
        return _failed(call, f"the arguments are not a JSON object: {error}")
    context.progress(f"calls {name} {text:.80}")
    try:
        output = text_of(await context.call_tool(name, arguments))
    except PyAgentError as error:
        if isinstance(error, BudgetError | NeedsAnswerError) or context.deadline.is_past:
            raise
        return _failed(call, str(error))
    except Exception as error:  # noqa: BLE001 - an output that is not JSON either
        return _failed(call, f"the output of {name} cannot be written as text: {error}")
    return ToolResult(tool=name, arguments=text, text=_bounded(output))


def _failed(call: ToolCall, why: str) -> ToolResult:
    text = _bounded(f"error: {why}")
    return ToolResult(tool=call.function.name, arguments=call.function.arguments, text=text, is_error=True)


def _bounded(text: str) -> str:
    num_left = len(text) - MAX_RESULT_CHARACTERS
    return text if num_left <= 0 else f"{text[:MAX_RESULT_CHARACTERS]}\n[cut: {num_left:,} characters more]"
