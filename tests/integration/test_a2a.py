"""A2A at `pyagent serve`, driven by the package's own client: messages, streams, questions, cancellation, tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from a2a.client import ClientConfig, create_client
from a2a.helpers.proto_helpers import get_artifact_text, get_message_text, new_text_message
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.types import (
    Task as RemoteTask,
)
from a2a.utils.errors import A2AError
from support.a2a import served
from support.fleets import Custom, Work

from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import current_access
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.infrastructure.a2a import executor
from pyagent.testing import ScriptedBackend

KEYS = ("sk-0123456789abcdef", "sk-fedcba9876543210")


class Loud(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    times: int = 1


async def shout(context: Context, task: Task) -> object:
    context.progress("takes a breath")
    return task.text.upper() + "!" * task.arguments_as(Loud).times


async def choose(context: Context, task: Task) -> object:
    return "you said " + await context.ask("Which colour?", options=("red", "blue"))


async def who(context: Context, task: Task) -> object:
    return f"{context.tenant} {current_access().is_limited}"


def fleet_of(work: Work | None = None) -> Fleet:
    agents = [Custom("shout", shout, arguments=Loud), Custom("choose", choose), Custom("who", who)]
    return Fleet(ScriptedBackend([]), [*agents, Custom("work", work or Work())])


@asynccontextmanager
async def client_of(url: str, key: str = "", *, streaming: bool = True) -> AsyncGenerator[Any]:
    """The package's client, which reads the card first."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=30) as http:
        yield await create_client(url, ClientConfig(streaming=streaming, httpx_client=http))


def request(text: str, agent: str = "", task: RemoteTask | None = None, **arguments: object) -> SendMessageRequest:
    message = new_text_message(text, role=Role.ROLE_USER)
    if agent:
        message.metadata.update({"agent": agent} | ({"arguments": arguments} if arguments else {}))
    if task is not None:
        message.task_id, message.context_id = task.id, task.context_id
    return SendMessageRequest(message=message)


async def sent(client: Any, asked: SendMessageRequest) -> tuple[RemoteTask, list[str]]:
    """Return the task as it is at the stream's end, and what was said of its status meanwhile."""
    task, said = "", list[str]()
    async for event in client.send_message(asked):
        if event.HasField("task"):
            task = event.task.id
        if event.HasField("status_update"):
            task = event.status_update.task_id
            said.append(get_message_text(event.status_update.status.message))
    return await client.get_task(GetTaskRequest(id=task)), said


def result(task: RemoteTask) -> str:
    return "".join(get_artifact_text(each) for each in task.artifacts)


def said_last(task: RemoteTask) -> str:
    return get_message_text(task.status.message)


@pytest.mark.parametrize("streaming", [True, False])
def test_message_runs_the_agent_that_it_names(streaming: bool) -> None:
    """The card names the agents; a message's metadata names one, with arguments; the task has the result later too."""

    async def main() -> None:
        async with served(fleet_of()) as url, client_of(url, streaming=streaming) as client:
            async with httpx.AsyncClient() as http:
                card = (await http.get(f"{url}/.well-known/agent-card.json")).json()
            assert [skill["id"] for skill in card["skills"]] == ["shout", "choose", "who", "work"]
            assert card["supportedInterfaces"][0]["url"] == f"{url}/a2a"
            task, said = await sent(client, request("hi", "shout", times=2))
            assert task.status.state == TaskState.TASK_STATE_COMPLETED, task
            assert result(task) == "HI!!"
            if streaming:
                assert "shout begins" in said
            refused, _ = await sent(client, request("hi", "shuot"))
            assert refused.status.state == TaskState.TASK_STATE_REJECTED
            assert "there is no agent 'shuot'; did you mean 'shout'?" in said_last(refused)
            failed, _ = await sent(client, request("hi", "shout", time=2))
            assert failed.status.state == TaskState.TASK_STATE_FAILED
            assert "unknown field 'time'; did you mean 'times'?" in said_last(failed)
            empty, _ = await sent(client, request(" ", "shout"))
            assert "needs a text" in said_last(empty)

    asyncio.run(main())


def test_question_is_answered_by_the_next_message() -> None:
    """A task that asks is `input-required`; a message of the same task goes on with it."""

    async def main() -> None:
        async with served(fleet_of()) as url, client_of(url) as client:
            task, _ = await sent(client, request("x", "choose"))
            assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
            assert said_last(task) == "Which colour? (red, blue)"
            task, _ = await sent(client, request("blue", task=task))
            assert (task.status.state, result(task)) == (TaskState.TASK_STATE_COMPLETED, "you said blue")

    asyncio.run(main())


def test_run_whose_answer_does_not_come_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run waits for its answer for a time; a message after it is told so."""
    monkeypatch.setattr(executor, "WAIT_SECONDS", 0.05)

    async def main() -> None:
        fleet = fleet_of()
        async with served(fleet) as url, client_of(url) as client:
            task, _ = await sent(client, request("x", "choose"))
            async with asyncio.timeout(30):
                while fleet._runs:  # noqa: ASYNC110 - what it has no event for
                    await asyncio.sleep(0.01)
            task, _ = await sent(client, request("blue", task=task))
            assert task.status.state == TaskState.TASK_STATE_REJECTED
            assert "no longer waits" in said_last(task)

    asyncio.run(main())


def test_cancelled_task_ends_its_run() -> None:
    """A client that leaves its stream ends nothing; one that cancels the task ends the agent."""

    async def main() -> None:
        work = Work()
        fleet = fleet_of(work)
        async with served(fleet) as url, client_of(url) as client:
            async for event in client.send_message(request("x", "work")):
                task = event.task.id or event.status_update.task_id
                break
            await asyncio.wait_for(work.begun.wait(), 30)
            assert not work.ended.is_set()
            cancelled = await client.cancel_task(CancelTaskRequest(id=task))
            assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
            await asyncio.wait_for(work.ended.wait(), 30)
            waiting, _ = await sent(client, request("x", "choose"))
            cancelled = await client.cancel_task(CancelTaskRequest(id=waiting.id))
            assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
            assert not fleet._runs

    asyncio.run(main())


def test_tenants_see_nothing_of_each_other() -> None:
    """A key's tasks are its own: not read, listed, followed, answered or cancelled by another; no key, no task."""

    async def main() -> None:
        async with served(fleet_of(), KEYS, max_runs=1) as url:
            async with client_of(url, KEYS[0]) as ann, client_of(url, KEYS[1]) as bob:
                task, _ = await sent(ann, request("x", "who"))
                assert result(task) == "key 1 True"
                asking, _ = await sent(ann, request("x", "choose"))
                many, _ = await sent(ann, request("x", "who"))
                assert "1 tasks are under way" in said_last(many)
                for ask in (
                    lambda: bob.get_task(GetTaskRequest(id=asking.id)),
                    lambda: bob.cancel_task(CancelTaskRequest(id=asking.id)),
                    lambda: sent(bob, request("blue", task=asking)),
                    lambda: anext(bob.subscribe(SubscribeToTaskRequest(id=asking.id))),
                ):
                    with pytest.raises(A2AError):
                        await ask()
                assert not (await bob.list_tasks(ListTasksRequest())).tasks
                assert len((await ann.list_tasks(ListTasksRequest())).tasks) == 3
                assert result((await sent(bob, request("x", "who")))[0]) == "key 2 True"
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"{url}/.well-known/agent-card.json")).status_code == 200
                assert (await http.post(f"{url}/a2a", json={})).status_code == 401

    asyncio.run(main())


def test_off_unless_set_and_bounded() -> None:
    """Without `server.a2a` there are no such paths; with it a body is bounded and nonsense is told."""

    async def main() -> None:
        async with served(fleet_of(), a2a=False) as url, httpx.AsyncClient() as http:
            assert (await http.get(f"{url}/.well-known/agent-card.json")).status_code == 404
            assert (await http.post(f"{url}/a2a", json={})).status_code == 404
        async with served(fleet_of()) as url, httpx.AsyncClient() as http:
            big = await http.post(f"{url}/a2a", content=b"x" * (5 << 20), headers={"content-type": "application/json"})
            assert big.status_code == 413
            assert "error" in (await http.post(f"{url}/a2a", json=[1])).json()
            assert (await http.post(f"{url}/a2a", content=b"x")).status_code == 415

    asyncio.run(main())
