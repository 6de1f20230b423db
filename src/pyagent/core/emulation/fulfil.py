"""`fulfil`: one backend's answer to a request, what it lacks emulated where that is sound, else refused by name.

Sound is what can be checked in the answer: JSON and choices, tool calls, texts to stop at, a number of answers. A
faulty answer is sent back to the model once with what is wrong; a second one is an error. What must be checked is held
back, so that a chain can still go on to its next link. Knows no backend and no wire.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

import msgspec

from pyagent.core.abilities import SOFT, Abilities, needs, noting, without
from pyagent.core.emulation import dialect
from pyagent.core.emulation.cutting import cut
from pyagent.core.emulation.plan import Plan
from pyagent.core.emulation.schemas import check_is_schema
from pyagent.core.errors import InvalidOutputError, UnsupportedError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    JsonObject,
    Message,
    SamplingParams,
    ToolCall,
    Unsupported,
    Usage,
)
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.structured_output.lark_source import schemas_in
from pyagent.core.structured_output.matching import ModelTokensError, check_format, is_cut_at_stop
from pyagent.core.structured_output.work import TooLongToCheckError, checked_aside, go_on
from pyagent.core.tool_call_deltas import ToolCallJoiner, as_deltas

Answering = Callable[[ChatRequest], AsyncGenerator[ChatDelta, None]]

EMULATED: Abilities = frozenset(
    {
        *("json_object", "json_schema", "choice", "regex", "grammar", "any_of", "all_of"),
        *("tools", "tool_choice", "parallel_tool_calls", "strict"),
        *("n", "stop", "max_tokens"),
    }
)
_NUM_ROUNDS = 2


async def fulfil(  # noqa: PLR0913 - each is something of its own
    request: ChatRequest,
    answer: Answering,
    abilities: Abilities,
    *,
    backend: str,
    unsupported: Unsupported = "emulate",
    checks_schemas: bool = False,
) -> AsyncGenerator[ChatDelta, None]:
    """Stream the answer of `answer`, which serves requests that need no more than `abilities`.

    One that `checks_schemas` refuses by itself, before it computes, what is none.

    `unsupported` is the setting, which the request's own word overrides. Sampling hints that the backend lacks are left
    out, and named in the last delta's `usage.ignored`. Raises `UnsupportedError` naming the fields
    that can be neither served nor emulated, before anything is asked.
    """
    missing, ignored = _missing(request, abilities, backend, unsupported)
    schemas = [] if request.response_format is None or checks_schemas else [*schemas_in(request.response_format)]
    if schemas:
        deadline = Deadline.after(request.timeout_seconds)
        await checked_aside(partial(_check_schemas, schemas), deadline, request.origin.tenant)
    async with aclosing(_several(without(request, ignored), answer, abilities, missing, backend)) as deltas:
        async for delta in deltas:
            is_last = delta.finish_reason and (request.n == 1 or delta.usage)  # of several, the last has the usage
            yield noting(delta, ignored) if is_last else delta


def _check_schemas(schemas: Sequence[JsonObject]) -> None:
    for schema in schemas:
        go_on("the schemas")
        check_is_schema(schema, "response_format")


def first_asked(
    request: ChatRequest, abilities: Abilities, *, backend: str, unsupported: Unsupported = "emulate"
) -> ChatRequest:
    """Return what `fulfil` asks first, with what it tells in words. Raises `UnsupportedError` likewise."""
    missing, ignored = _missing(request, abilities, backend, unsupported)
    return Plan.of(without(request, ignored), abilities, missing).request


def _missing(
    request: ChatRequest, abilities: Abilities, backend: str, unsupported: Unsupported
) -> tuple[Abilities, Abilities]:
    """What the backend lacks and must be emulated, and which hints it will not hear."""
    missing = needs(request) - abilities
    if "json_schema" in abilities:  # a choice as a schema loses nothing
        missing -= {"choice"}
    is_emulating = (request.unsupported or unsupported) == "emulate"
    ignored = missing & SOFT if is_emulating else frozenset[str]()
    missing -= ignored
    refused = missing - EMULATED if is_emulating else missing
    if refused:
        named = sorted(refused)
        raise UnsupportedError(f"{backend} cannot do {', '.join(named)}", backend=backend, fields=named)
    return missing, ignored


async def _several(
    request: ChatRequest, answer: Answering, abilities: Abilities, missing: Abilities, backend: str
) -> AsyncGenerator[ChatDelta, None]:
    """One answer after another where several are asked of a backend that gives one; the last delta has all usage."""
    count = request.n if "n" in missing else 1
    deadline = Deadline.after(request.timeout_seconds)
    usage: list[Usage | None] = []
    for index in range(count):
        one = _with_time(request, deadline)
        if count > 1:
            one = msgspec.structs.replace(one, n=1, sampling=_seeded(request.sampling, index))
        async with aclosing(_one(one, answer, abilities, missing, backend)) as deltas:
            async for delta in deltas:
                if delta.finish_reason:
                    usage.append(delta.usage)
                    told = summed(usage) if index == count - 1 else None
                    delta = msgspec.structs.replace(delta, usage=told)  # noqa: PLW2901
                yield msgspec.structs.replace(delta, index=index) if count > 1 else delta


async def _one(
    request: ChatRequest, answer: Answering, abilities: Abilities, missing: Abilities, backend: str
) -> AsyncGenerator[ChatDelta, None]:
    limits = missing & {"stop", "max_tokens"}

    def source(asked: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        return cut(asked, answer, limits) if limits else answer(asked)

    plan = Plan.of(request, abilities, missing)
    async with aclosing(source(request) if plan.is_empty else _checked(plan, source, backend)) as deltas:
        async for delta in deltas:
            yield _first_call(delta) if "parallel_tool_calls" in missing and delta.tool_calls else delta


def _first_call(delta: ChatDelta) -> ChatDelta:
    """The delta with no call but an answer's first."""
    return msgspec.structs.replace(delta, tool_calls=[piece for piece in delta.tool_calls if piece.index == 0])


async def _checked(plan: Plan, answer: Answering, backend: str) -> AsyncGenerator[ChatDelta, None]:
    """Hold the answer back, check it, and let the model repair it once."""
    request, faults, usage = plan.request, list[str](), list[Usage | None]()
    deadline = Deadline.after(request.timeout_seconds)
    begun = request.assistant_prefix + request.answer_prefix
    num_shown = len(begun)
    if (wanted := plan.response_format) is not None:
        try:
            await checked_aside(partial(check_format, wanted), deadline, request.origin.tenant)
        except ModelTokensError as error:
            raise UnsupportedError(f"{backend}: {error}", backend=backend, fields=["grammar"]) from error
    for _ in range(_NUM_ROUNDS):
        text, held, last = begun, list[ChatDelta](), ChatDelta()
        joiner, calls, scored = ToolCallJoiner(), list[ToolCall](), ChatDelta()
        tags = dialect.TagReader(plan.tagged) if plan.tagged else None
        ready = tags.push(begun) if tags else begun
        async with aclosing(answer(_with_time(request, deadline))) as deltas:
            async for delta in deltas:
                text += delta.content
                calls += joiner.push(delta.tool_calls)
                held += [msgspec.structs.replace(delta, content="")] if delta.reasoning else []
                last = delta
                scored = delta if delta.prompt_logprobs else scored
                ready += tags.push(delta.content) if tags else delta.content
                if plan.is_shown_at_once and not faults and len(ready) > num_shown:
                    yield _of(delta, content=ready[num_shown:])
                    num_shown = len(ready)
        calls += joiner.finish(last.finish_reason)
        usage.append(last.usage)
        try:
            is_length = last.finish_reason == "length"
            is_cut = await _is_cut(plan, text, last, deadline)
            if not is_cut:
                reading = partial(plan.read, text, calls, tags, is_cut=is_length)
                shown, calls = await checked_aside(reading, deadline, request.origin.tenant)
            else:
                shown = text
        except TooLongToCheckError:
            raise
        except InvalidOutputError as error:
            faults.append(str(error))
            request = _repairing(plan.request, text or _written(calls), str(error))
            continue
        for delta in held:
            yield _of(delta, reasoning=delta.reasoning)
        if len(shown) > num_shown and not (faults and num_shown > len(begun)):
            yield _of(last, content=shown[num_shown:])
        reason = "tool_calls" if calls and not is_cut else last.finish_reason
        pieces, used = as_deltas(calls), summed(usage)
        last = msgspec.structs.replace(last, prompt_logprobs=scored.prompt_logprobs)
        yield msgspec.structs.replace(last, content="", tool_calls=pieces, finish_reason=reason, usage=used)
        return
    text = f"{backend}: the model's answers do not match {plan.param}, also when asked again: {faults[-1]}"
    raise InvalidOutputError(text, param=plan.param)


async def _is_cut(plan: Plan, text: str, last: ChatDelta, deadline: Deadline) -> bool:
    """Whether a limit or a text to stop at cut an answer, which is told as it is, as a grammar's would be."""
    if last.finish_reason != "stop":
        return last.finish_reason == "length" and not plan.tagged
    wanted, stop = plan.response_format, plan.request.sampling.stop
    if wanted is None or not stop:
        return False
    return await checked_aside(partial(is_cut_at_stop, text, wanted, stop), deadline, plan.request.origin.tenant)


def _written(calls: list[ToolCall]) -> str:
    """Calls in words, for a model that is told what is wrong with them."""
    return "\n".join(f"{call.function.name}({call.function.arguments})" for call in calls)


def _of(delta: ChatDelta, **fields: str) -> ChatDelta:
    return ChatDelta(index=delta.index, model=delta.model, backend=delta.backend, **fields)  # pyright: ignore[reportArgumentType]


def _repairing(request: ChatRequest, text: str, fault: str) -> ChatRequest:
    ask = f"That answer cannot be used: {fault}. Answer again, only with what was asked for."
    messages = [*request.messages, Message("assistant", text), Message("user", ask)]
    return msgspec.structs.replace(request, messages=messages)


def _with_time(request: ChatRequest, deadline: Deadline) -> ChatRequest:
    if request.timeout_seconds is None:
        return request
    return msgspec.structs.replace(request, timeout_seconds=deadline.remaining_seconds)


def _seeded(sampling: SamplingParams, index: int) -> SamplingParams:
    """Answers of one seed differ, and are the same each time."""
    if sampling.seed is None:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + index) & (2**63 - 1))


def summed(usage: list[Usage | None]) -> Usage | None:
    """The tokens of several answers together; None when none of them counted."""
    counted = [one for one in usage if one is not None]
    if len(counted) <= 1:
        return counted[0] if counted else None
    return msgspec.structs.replace(
        counted[-1],
        prompt_tokens=sum(one.prompt_tokens for one in counted),
        completion_tokens=sum(one.completion_tokens for one in counted),
        total_tokens=sum(one.total_tokens for one in counted),
        reasoning_tokens=sum(one.reasoning_tokens for one in counted),
        accepted_prediction_tokens=sum(one.accepted_prediction_tokens for one in counted),
        rejected_prediction_tokens=sum(one.rejected_prediction_tokens for one in counted),
        cost_usd=sum(one.cost_usd for one in counted),
    )
