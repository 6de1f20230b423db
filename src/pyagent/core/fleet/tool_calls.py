"""A model that calls tools: it is asked, its calls are run, their results go back to it, and it is asked again.

Bounded in rounds, in calls an answer, and in what a result may add to the prompt. The model can call what it was
offered and nothing else, and no call runs that the answer was cut in. Calls of tools without effects run side by side,
others one after the other. What goes wrong in a call is told to the model, which may do better; what ends the run ends
this too. An equal call that was made twice is not run again, and a model that makes no others has to answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.emulation.fulfil import summed
from pyagent.core.errors import AgentError, BudgetError, ContextOverflowError, NeedsAnswerError, PyAgentError
from pyagent.core.fleet.agent import text_of
from pyagent.core.fleet.doubts import reconsidered
from pyagent.core.fleet.events import HistoryCompacted
from pyagent.core.fleet.history import compacted
from pyagent.core.fleet.model_call import Completion, ModelCall, ToolResult
from pyagent.core.fleet.offered_tools import offered_tools
from pyagent.core.fleet.tool_guard import guarded
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import JsonObject, Message, SamplingParams, Tool, ToolCall, Usage
from pyagent.core.structured_output.wanted import Wanted
from pyagent.core.token_estimate import estimated_prompt_tokens
from pyagent.core.tool_call_deltas import without_cut

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

MAX_ROUNDS = 8
"""Answers with calls that a model may give before it has to answer in words."""
MAX_CALLS = 16
"""Calls of one answer that are run."""
MAX_RESULT_CHARACTERS = 16_000
"""What the model is shown of one result: about 4,000 tokens."""
MAX_EQUAL_CALLS = 2
"""Times that an equal call is run while nothing else has an effect."""
MAX_STALLED_ROUNDS = 3
"""Answers in a row of which no call is run, after which the model has to answer in words."""
MAX_PROMPT_TOKENS = 32_000
"""Length of a conversation that is shortened, to half of it."""


@dataclass(slots=True)
class ToolLoop:
    """One conversation of a model with its tools. `messages` grow at their end, until they are compacted."""

    context: Context
    messages: list[Message]
    sampling: SamplingParams
    max_rounds: int
    wanted: Wanted
    must_call: bool = False
    tools: dict[str, FleetTool] = field(default_factory=dict[str, FleetTool])
    _results: list[ToolResult] = field(default_factory=list[ToolResult])
    _usage: list[Usage | None] = field(default_factory=list[Usage | None])
    _key_to_count: Counter[bytes] = field(default_factory=Counter[bytes])
    _num_run: int = 0
    _num_stalled: int = 0
    _num_head: int = 0
    _last: object = None
    _num_misfits: int = 0

    async def answer(self, tools: Sequence[str]) -> Completion:
        """Return the answer that the model gives after calling tools, or the output of the agent it hands over to.

        Raises `AgentError` when it goes on calling them.
        """
        self.tools.update(offered_tools(self.context, tools, lambda: self.messages))
        self._num_head = len(self.messages)
        num_rounds = 0
        while True:
            must_answer = num_rounds >= self.max_rounds or self._num_stalled == MAX_STALLED_ROUNDS
            call = await self._ask(must_answer=must_answer)
            self._usage.append(call.usage)
            calls = without_cut(call.tool_calls, call.finish_reason)
            if not calls:
                call = await self._reconsidered(call)
                if (completion := await self._read(call.completion)) is not None:
                    return self._completion(completion)
                continue
            if must_answer:
                text = f"the model still calls tools after {num_rounds} rounds of calls"
                raise AgentError(text, agent=self.context.agent)
            results = await self._run_all(calls)
            if self._last is not None:
                completion = msgspec.structs.replace(
                    call.completion, text=text_of(self._last), output=self._last, is_handed_over=True
                )
                return self._completion(completion)
            self.messages += _conversation(call.completion.text, calls, results)
            self.context.keep({"text": call.completion.text, "calls": self._results})
            num_rounds += 1

    async def _reconsidered(self, call: ModelCall) -> ModelCall:
        second = await reconsidered(call)
        if second is not call:
            self._usage.append(second.usage)
        return second

    async def _read(self, completion: Completion) -> Completion | None:
        """Return the answer, read; None when it does not fit and is to be given again. A second misfit is an error."""
        if self.wanted.schema is None:
            return completion
        try:
            deadline, stop = self.context.deadline, self.sampling.stop
            output = await self.wanted.read_aside(completion.text, deadline, self.context.tenant, stop=stop)
        except ValueError as error:
            self._num_misfits += 1
            if self._num_misfits > 1:
                text = f"the model's answer to {self.context.agent} does not fit, asked twice: {error}"
                raise AgentError(text, agent=self.context.agent) from error
            hint = f"That does not fit: {error}. Answer again, exactly in the form asked for."
            self.messages += [Message("assistant", completion.text), Message("user", hint)]
            return None
        return msgspec.structs.replace(completion, output=output)

    def _completion(self, completion: Completion) -> Completion:
        usage = summed(self._usage) or Usage()
        return msgspec.structs.replace(completion, usage=usage, tool_results=tuple(self._results))

    # -- the model ----------------------------------------------------------------------------------------------------

    async def _ask(self, *, must_answer: bool) -> ModelCall:
        """Return the model's answer; a conversation too long for the model is shortened, once for each answer."""
        offered = [tool.definition() for tool in self.tools.values()]
        if estimated_prompt_tokens(self.messages, offered) > MAX_PROMPT_TOKENS:
            self._compact(offered, MAX_PROMPT_TOKENS // 2)
        try:
            return await self._called(offered, must_answer=must_answer)
        except ContextOverflowError as error:
            # Its own count, not our estimate: of tokens of a byte each there are four times as many.
            excess = error.num_tokens / max(1, estimated_prompt_tokens(self.messages, offered))
            if not self._compact(offered, int(error.limit / 2 / max(1.0, excess))):
                raise
            return await self._called(offered, must_answer=must_answer)

    async def _called(self, offered: list[Tool], *, must_answer: bool) -> ModelCall:
        choice = None
        if offered and (must_answer or (self.must_call and not self._results)):
            choice = "none" if must_answer else "required"
        messages = list(self.messages)  # the journal keeps them, and these grow
        call = ModelCall(
            self.context,
            messages,
            self.wanted.response_format,
            self.sampling,
            whole=True,
            tools=offered,
            tool_choice=choice,
        )
        await call.finish()
        return call

    def _compact(self, offered: list[Tool], max_tokens: int) -> bool:
        """Shorten the conversation; return whether that did anything."""
        before = estimated_prompt_tokens(self.messages, offered)
        self.messages = compacted(self.messages, self._num_head, offered, max_tokens)
        after = estimated_prompt_tokens(self.messages, offered)
        if after < before:
            context = self.context
            event = HistoryCompacted(
                run=context.run.id, step=context.step, agent=context.agent, tokens_before=before, tokens_after=after
            )
            context.run.emit(event)
        return after < before

    # -- its calls ----------------------------------------------------------------------------------------------------

    async def _run_all(self, calls: list[ToolCall]) -> list[ToolResult]:
        """Return the result of each call, in their order."""
        results: list[ToolResult] = []
        num_run = self._num_run
        for is_free, group in groupby(calls[:MAX_CALLS], self._is_free):
            results += await self.context.map(self._run, list(group), max_concurrency=None if is_free else 1)
        results += [_failed(each, f"only {MAX_CALLS} calls are run at once") for each in calls[MAX_CALLS:]]
        self._num_stalled = 0 if self._num_run > num_run else self._num_stalled + 1
        self._results += results
        return results

    def _is_free(self, call: ToolCall) -> bool:
        """Whether a call may run beside others: it has no effect."""
        tool = self.tools.get(call.function.name)
        return tool is None or tool.effect == "none"

    async def _run(self, call: ToolCall) -> ToolResult:
        name, text = call.function.name, call.function.arguments
        if self._last is not None:
            return _failed(call, "the conversation was handed over before it")
        if name not in self.tools:
            return _failed(call, f"there is no function {name!r}; there are {', '.join(self.tools)}")
        try:
            arguments = msgspec.json.decode(text or "{}", type=JsonObject)
        except (ValueError, RecursionError) as error:
            return _failed(call, f"the arguments are not a JSON object: {error}")
        key = name.encode() + b" " + msgspec.json.encode(arguments, order="sorted")
        if self._key_to_count[key] >= MAX_EQUAL_CALLS:
            return _failed(call, "this call was made before and is not run again; use its result, or do something else")
        self._key_to_count[key] += 1
        self._num_run += 1
        return await guarded(self.context, await self._result(call, self.tools[name], arguments, key))

    async def _result(self, call: ToolCall, tool: FleetTool, arguments: JsonObject, key: bytes) -> ToolResult:
        context = self.context
        context.progress(f"calls {tool.name} {call.function.arguments:.80}")
        try:
            returned = await context.run_tool(tool, arguments)
            output = text_of(returned)
        except PyAgentError as error:
            if isinstance(error, BudgetError | NeedsAnswerError) or context.deadline.is_past:
                raise
            return _failed(call, str(error))
        except Exception as error:  # noqa: BLE001 - an output that is not JSON either
            return _failed(call, f"the output of {tool.name} cannot be written as text: {error}")
        if tool.effect != "none":  # other calls may have other results now
            self._key_to_count = Counter({key: self._key_to_count[key]})
        if tool.is_last:
            self._last = returned
        return ToolResult(tool=tool.name, arguments=call.function.arguments, text=_bounded(output))


def _conversation(text: str, calls: list[ToolCall], results: Sequence[ToolResult]) -> list[Message]:
    """Return the answer that holds the calls, and a message for each result, as the model sees them."""
    asked = Message("assistant", text or None, tool_calls=calls)
    pairs = zip(calls, results, strict=True)
    return [asked, *(Message("tool", each.text, name=each.tool, tool_call_id=one.id) for one, each in pairs)]


def _failed(call: ToolCall, why: str) -> ToolResult:
    text = _bounded(f"error: {why}")
    return ToolResult(tool=call.function.name, arguments=call.function.arguments, text=text, is_error=True)


def _bounded(text: str) -> str:
    num_left = len(text) - MAX_RESULT_CHARACTERS
    return text if num_left <= 0 else f"{text[:MAX_RESULT_CHARACTERS]}\n[cut: {num_left:,} characters more]"
