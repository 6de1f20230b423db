"""A task of the protocol is a run: what it does is told as status, what it asks waits for the next message of the task.

The package cancels `execute` when the task is cancelled; a client that leaves a stream cancels nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Message, TaskState
from google.protobuf.json_format import MessageToDict

from pyagent.core.errors import CapacityError, RequestError
from pyagent.core.fleet.agent import Task, text_of, unknown_name
from pyagent.core.fleet.events import AgentStarted, Event, Progress, Question, QuestionAsked, RunFinished
from pyagent.core.messages import JsonObject
from pyagent.infrastructure.called_runs import MAX_TASK_CHARACTERS, CalledRun, Caller, told_error

if TYPE_CHECKING:
    from pyagent.core.fleet.orchestrator import Fleet

CALLER = "caller"
"""Where a request's state has its `Caller`."""
WAIT_SECONDS = 600.0
"""How long a run waits for the next message of its task, which is to answer what it asks."""
MAX_RESULT_CHARACTERS = 1_000_000
_MAX_TOLD_CHARACTERS = 2_000
_PROGRESS_SECONDS = 0.1


@dataclass(slots=True)
class _Waiting:
    """A run that asked, and when it is given up."""

    run: CalledRun
    question: Question
    expires: asyncio.TimerHandle


@dataclass(slots=True)
class RunExecutor(AgentExecutor):
    """Runs tasks. Each tenant may have `max_runs` under way, those that wait for an answer included."""

    fleet: Callable[[], Awaitable[Fleet]]
    max_runs: int
    count_run: Callable[[str], Awaitable[None]]
    _waiting: dict[str, _Waiting] = field(default_factory=dict[str, _Waiting])
    _tenant_to_count: Counter[str] = field(default_factory=Counter[str])
    _ending: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run the task, or go on with it by the answer that the message is."""
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        caller = cast("Caller", context.call_context.state[CALLER])
        if context.current_task is None and context.message is not None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        try:
            run = await self._run(context, caller)
        except (RequestError, CapacityError) as error:
            await updater.reject(_said(updater, told_error(error, "the task", caller)))
            return
        await updater.start_work()
        await self._follow(context.task_id or "", run, updater)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Say that the task was cancelled; its run has ended, or is ended here where it waits."""
        if (waiting := self._waiting.get(context.task_id or "")) is not None:
            self._give_up(context.task_id or "")
            await asyncio.wait([waiting.run.job] if waiting.run.job else [])
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()

    async def _run(self, context: RequestContext, caller: Caller) -> CalledRun:
        """Return the run that the message begins, or goes on with. Raises `RequestError` for what it does not take."""
        if context.current_task is not None:
            return self._answered(context.task_id or "", caller, context.get_user_input())
        text = context.get_user_input()
        if not text.strip() or len(text) > MAX_TASK_CHARACTERS:
            raise RequestError(f"a message needs a text of up to {MAX_TASK_CHARACTERS:,} characters", param="message")
        if self._tenant_to_count[caller.tenant] >= self.max_runs:
            raise RequestError(f"{self.max_runs} tasks are under way (server.max_runs); send it later", param="message")
        fleet = await self.fleet()
        wanted = cast("JsonObject", _whole(MessageToDict(context.message.metadata) if context.message else {}))
        agent, arguments = wanted.get("agent"), wanted.get("arguments", cast("object", {}))
        if agent is not None and (not isinstance(agent, str) or agent not in fleet.agents):
            raise unknown_name("agent", str(agent), list(fleet.agents))
        if not isinstance(arguments, dict):
            raise RequestError("the message's metadata needs a table as `arguments`", param="message")
        await self.count_run(caller.tenant)
        run = CalledRun(fleet, agent, Task(text=text, arguments=cast("JsonObject", arguments)), caller, can_ask=True)
        self._tenant_to_count[caller.tenant] += 1
        run.begin()
        return run

    def _answered(self, task: str, caller: Caller, answer: str) -> CalledRun:
        waiting = self._waiting.get(task)
        if waiting is None or waiting.run.caller.tenant != caller.tenant:
            raise RequestError("the run no longer waits for an answer; send the task anew", param="message")
        waiting.run.caller = caller
        waiting.run.answer(waiting.question, answer)
        waiting.expires.cancel()
        del self._waiting[task]
        return waiting.run

    async def _follow(self, task: str, run: CalledRun, updater: TaskUpdater) -> None:
        """Tell what the run does until it ends or asks; it ends with the task, unless it waits."""
        try:
            await self._told(task, run, updater)
        except Exception as error:  # noqa: BLE001 - the client is told
            await updater.failed(_said(updater, told_error(error, "the task", run.caller)))
        finally:
            if task not in self._waiting:
                await asyncio.shield(self._closed(run))

    async def _told(self, task: str, run: CalledRun, updater: TaskUpdater) -> None:
        told_at = 0.0
        while (event := await run.next()) is not None:
            if isinstance(event, RunFinished):
                text = text_of(event.output)[:MAX_RESULT_CHARACTERS]
                await updater.add_artifact([new_text_part(text)], name="result")
                await updater.complete()
                return
            if isinstance(event, QuestionAsked):
                self._wait(task, run, event.question)
                await updater.requires_input(_said(updater, _asked(event.question)))
                return
            if (text := _progress(event)) and time.monotonic() - told_at >= _PROGRESS_SECONDS:
                told_at = time.monotonic()
                await updater.update_status(TaskState.TASK_STATE_WORKING, _said(updater, text))
        raise RequestError("the run ended without a result")

    def _wait(self, task: str, run: CalledRun, question: Question) -> None:
        expires = asyncio.get_running_loop().call_later(WAIT_SECONDS, self._give_up, task)
        self._waiting[task] = _Waiting(run, question, expires)

    def _give_up(self, task: str) -> None:
        waiting = self._waiting.pop(task)
        waiting.expires.cancel()
        ending = asyncio.create_task(self._closed(waiting.run))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _closed(self, run: CalledRun) -> None:
        self._tenant_to_count[run.caller.tenant] -= 1
        await run.close()


def _said(updater: TaskUpdater, text: str) -> Message:
    return updater.new_agent_message([new_text_part(text[:_MAX_TOLD_CHARACTERS])])


def _asked(question: Question) -> str:
    return f"{question.text} ({', '.join(question.options)})" if question.options else question.text


def _progress(event: Event) -> str:
    if isinstance(event, AgentStarted):
        return f"{event.agent} begins"
    return f"{event.agent}: {event.text}" if isinstance(event, Progress) else ""


def _whole(value: object) -> object:
    """Return a value of the protocol, whose numbers are all floats, with whole ones as whole numbers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {str(key): _whole(inner) for key, inner in cast("dict[object, object]", value).items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in cast("list[object]", value)]
    return value
