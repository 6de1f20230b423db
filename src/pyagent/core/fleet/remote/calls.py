"""The run's end of an agent that works elsewhere: makes the agent's calls with its own context, in their order.

For an agent that may be begun again each call is recorded with what came of it. When it is begun again, the nth call of
a kind with the same arguments is given what the nth one got, or waits for it: none is made twice. Calls of a beginning
before the last are refused: that worker was given up, and may still be there. A call is made with the run's access to
files, whatever task carries it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from pyagent.core.errors import AgentError
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import FileAccess, current_access, grant
from pyagent.core.fleet.memory import read_notes, take_note
from pyagent.core.fleet.model_call import TextStream
from pyagent.core.fleet.remote.messages import AgentCall, AgentView, ToolView

_MAX_LATE_CALLS = 4_096
"""Calls that may wait for an earlier one: the way keeps no order, but it loses none for long."""


class RunCalls:
    """The calls of one agent. `begin` before each time it begins, `close` when it has ended.

    The agents it spawns have the run's access to files, or the one that is given.
    """

    def __init__(self, context: Context, *, is_repeatable: bool, spawned_access: FileAccess | None = None) -> None:
        self._context = context
        self._access = current_access()
        self._spawned_access = spawned_access or self._access
        self._is_repeatable = is_repeatable
        self._attempt = 0
        self._next = 0
        self._early: dict[int, asyncio.Future[None]] = {}
        self._recorded: defaultdict[bytes, list[asyncio.Task[object]]] = defaultdict(list)
        self._taken = Counter[bytes]()
        self._running = set[asyncio.Task[object]]()
        self._streams: list[TextStream] = []
        self._makers: dict[str, Callable[..., Awaitable[object]]] = {
            "answer": context.answer,
            "complete": self._complete,
            "likelihood": context.likelihood,
            "embed": context.embed,
            "call_tool": context.call_tool,
            "spawn": self._spawn,
            "ask": self._ask,
            "keep": self._keep,
            "progress": self._progress,
            "phase_ended": self._phase_ended,
            "report": self._report,
            "doubts": context.doubts,
            "learned_strategy": self._learned_strategy,
            "note": self._note,
            "notes": partial(read_notes, context),
            "chain": context.chain,
            "webhooks": context.webhooks,
            "stream": self._stream,
            "piece": self._piece,
            "close_stream": self._close_stream,
        }

    def begin(self) -> AgentView:
        """Return what the agent is told; what a beginning before asked and did not get is forgotten."""
        context, run = self._context, self._context.run
        self._attempt += 1
        self._next = 0
        self._taken.clear()
        for waiting in self._early.values():
            waiting.set_result(None)  # to find that its beginning is over
        self._early.clear()
        definitions = {name: tool.definition().function for name, tool in run.tools.items()}
        return AgentView(
            run=run.id,
            agent=context.agent,
            step=context.step,
            depth=context.depth,
            attempt=self._attempt,
            tenant=run.tenant,
            session=context.session,
            max_concurrency=run.limits.max_concurrency,
            seconds=context.deadline.remaining_seconds if context.deadline.is_set else None,
            left_tokens=context.budget.left_tokens,
            tools=tuple(
                ToolView(name, one.description or "", one.parameters or {}) for name, one in definitions.items()
            ),
            trace=dict(context.trace),
            file_access=self._access,
            reconsiders=context.reconsiders,
        )

    async def make(self, call: AgentCall) -> object:
        """Return what comes of a call; raises what the context raises."""
        self._check(call)
        await self._turn(call.index)
        self._check(call)
        task = self._task_of(call)
        self._pass_turn()
        return await asyncio.shield(task)

    async def skip(self, attempt: int, index: int) -> None:
        """Take the turn of a call that is refused and not made: the calls after it wait for that."""
        if attempt != self._attempt or index < self._next or len(self._early) > _MAX_LATE_CALLS:
            return
        await self._turn(index)
        if attempt == self._attempt:
            self._pass_turn()

    async def close(self) -> None:
        """End what is under way for the agent."""
        self._attempt += 1
        for waiting in self._early.values():
            waiting.set_result(None)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for stream in self._streams:
            with suppress(Exception):
                await stream.aclose()

    # -- in order, and once --------------------------------------------------------------------------------------------

    def _check(self, call: AgentCall) -> None:
        name = self._context.agent
        if call.attempt != self._attempt:
            raise AgentError(f"{name} has ended, or was begun again elsewhere", agent=name)
        if call.name not in self._makers or call.index < self._next or len(self._early) > _MAX_LATE_CALLS:
            raise AgentError(f"{name} asks its run for {call.name!r:.40} out of turn", agent=name)

    async def _turn(self, index: int) -> None:
        """Wait until all calls before this one have begun."""
        if index != self._next:
            waiting = self._early[index] = asyncio.get_running_loop().create_future()
            await asyncio.shield(waiting)

    def _pass_turn(self) -> None:
        self._next += 1
        if (waiting := self._early.pop(self._next, None)) is not None:
            waiting.set_result(None)

    def _task_of(self, call: AgentCall) -> asyncio.Task[object]:
        """Return the task that makes the call, or that made it for a beginning before."""
        key = call.key() if self._is_repeatable else b""
        recorded = self._recorded[key] if self._is_repeatable else []
        nth = self._taken[key]
        self._taken[key] += 1
        if nth < len(recorded) and not recorded[nth].cancelled():
            return recorded[nth]
        task = asyncio.create_task(self._made(call), name=f"{call.name} for the agent {self._context.agent}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        recorded[nth : nth + 1] = [task]
        return task

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # the agent may be gone and never hear of it

    async def _made(self, call: AgentCall) -> object:
        grant(self._access)  # of this task alone, which began where calls arrive: in no run, or in another's
        with self._context.scopes.at(call.number):
            return await self._makers[call.name](*call.args, *call.unlike)

    # -- what is done -------------------------------------------------------------------------------------------------

    async def _complete(  # noqa: PLR0913, PLR0917 - as they cross
        self, messages: Any, sampling: Any, tools: Any, max_rounds: int, schema: Any, must_call: bool
    ) -> object:
        complete = partial(self._context.complete, messages, sampling=sampling, tools=tools, max_rounds=max_rounds)
        return await complete(schema=schema, must_call=must_call)

    async def _spawn(self, agent: str, task: Any, max_tokens: int | None, seconds: float | None) -> object:
        grant(self._spawned_access)
        return await self._context.spawn(agent, task, max_tokens=max_tokens, timeout_seconds=seconds)

    async def _ask(self, text: str, options: Any, kind: Any) -> object:
        return await self._context.ask(text, options=options, kind=kind)

    async def _keep(self, partial: object) -> object:
        return self._context.keep(partial)

    async def _progress(self, text: str) -> object:
        return self._context.progress(text)

    async def _phase_ended(self, name: str, error: str | None, seconds: float) -> object:
        return self._context.phase_ended(name, seconds, error)

    async def _report(self, score: float, series: str) -> object:
        return self._context.report(score, series=series)

    async def _learned_strategy(self, options: Any, situation: str) -> object:
        return await self._context.learned_strategy(options, situation=situation)

    async def _note(self, spec: Any) -> object:
        return take_note(self._context, spec)

    async def _stream(self, messages: Any, sampling: Any) -> object:
        self._streams.append(self._context.stream(messages, sampling=sampling))
        return len(self._streams) - 1

    async def _piece(self, number: int, _: int) -> object:
        """Return the next piece of a stream, as a tuple of one; at its end how it ended."""
        stream = self._streams[number]
        try:
            return (await anext(stream),)
        except StopAsyncIteration:
            return {"finish_reason": stream.finish_reason, "doubt": stream.doubt}

    async def _close_stream(self, number: int) -> object:
        return await self._streams[number].aclose()
