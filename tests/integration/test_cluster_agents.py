"""Runs of agents on peers: what has effects is done once or not at all, whatever happens to the node that does it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from support.nodes import is_connected, join, running_node
from support.server import Model, words
from support.waiting import until

from pyagent.core.backends import collect
from pyagent.core.errors import (
    AgentError,
    BackendError,
    CapacityError,
    ClusterError,
    DeadlineError,
    PyAgentError,
    RequestError,
)
from pyagent.core.messages import ChatDelta, ChatRequest, Message
from pyagent.infrastructure.cluster.effects import AskedRuns
from pyagent.infrastructure.cluster.node import Node

Script = list[ChatDelta | float | Exception]
Leave = Callable[[str, str], Awaitable[None]]
REQUEST = ChatRequest(model="agent:payer", messages=[Message("user", "pay")])


def _here(request: ChatRequest) -> Script:
    text = f"there is no model {request.model!r}"
    return words("here") if request.model == "here" else [RequestError(text, code="model_not_found")]


def payer(script: Script) -> Model:
    return Model(lambda _: script, ["agent:payer"])


@asynccontextmanager
async def cluster(folder: Path, script: Script) -> AsyncIterator[tuple[Node, dict[str, Node], dict[str, Model]]]:
    """A node without the agent, and two that have it; each agent counts its runs."""
    async with AsyncExitStack() as stack:
        join(folder / "a", None)
        a = await stack.enter_async_context(running_node(folder / "a", [Model(_here, ["here"])]))
        nodes, agents = dict[str, Node](), dict[str, Model]()
        for name in "bc":
            join(folder / name, a)
            agents[name] = payer(script)
            seeds = [f"127.0.0.1:{a.door_port}"]
            links = [Model(_here, ["here"])]
            started = running_node(folder / name, links, seeds=seeds, agents=agents[name])
            nodes[name] = await stack.enter_async_context(started)
        await until(lambda: is_connected(a, 2) and all("payer" in peer.offer.agents for peer in a.router))
        yield a, nodes, agents


def num_runs(agents: dict[str, Model]) -> int:
    return sum(len(agent.requests) for agent in agents.values())


async def _lose(nodes: dict[str, Node], agents: dict[str, Model]) -> None:
    await until(lambda: num_runs(agents) == 1)
    [name] = [name for name, agent in agents.items() if agent.requests]
    await nodes[name]._transport.stop()


async def _nothing(_nodes: dict[str, Node], _agents: dict[str, Model]) -> None:
    return None


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize(
    ("script", "meanwhile", "error"),
    [
        pytest.param([60.0], _lose, BackendError, id="lost before a word"),
        pytest.param([ChatDelta(reasoning="pays"), 60.0], _lose, BackendError, id="lost in the middle"),
        pytest.param([AgentError("no money", agent="payer")], _nothing, AgentError, id="failed"),
        pytest.param([CapacityError("full")], _nothing, CapacityError, id="full in the middle of its work"),
        pytest.param([RequestError("no", code="model_not_found")], _nothing, RequestError, id="lacks a model itself"),
    ],
)
def test_failed_run_is_not_begun_elsewhere(
    tmp_path: Path, script: Script, meanwhile: Callable[..., object], error: type[PyAgentError], *, is_whole: bool
) -> None:
    """A run that fails, or whose node is lost, ends with that error: no other node runs the agent again."""

    async def work() -> None:
        async with cluster(tmp_path, script) as (a, nodes, agents):
            lose = asyncio.create_task(meanwhile(nodes, agents))  # type: ignore[arg-type]
            request = ChatRequest(model=REQUEST.model, messages=REQUEST.messages, whole=is_whole)
            with pytest.raises(PyAgentError) as raised:
                await collect(a.chain.chat(request))
            await lose
            causes = (raised.value, raised.value.__cause__)
            assert any(isinstance(one, error) for one in causes), raised.value
            assert num_runs(agents) == 1
            if meanwhile is _lose:
                assert "may have had its effects" in str(raised.value)

    asyncio.run(work())


def test_slow_run_has_all_the_time_of_its_request(tmp_path: Path) -> None:
    """A run's time is not divided among the nodes that could do it: it ends with the deadline, begun once."""

    async def work() -> None:
        async with cluster(tmp_path, [60.0]) as (a, _nodes, agents):
            request = ChatRequest(model=REQUEST.model, messages=REQUEST.messages, timeout_seconds=2.0)
            with pytest.raises(DeadlineError):
                await collect(a.chain.chat(request))
            assert num_runs(agents) == 1
            await until(lambda: all(agent.num_running == 0 for agent in agents.values()))

    asyncio.run(work())


def test_run_that_nobody_waits_for_does_not_begin(tmp_path: Path) -> None:
    """A node that takes a run up late, after its caller went elsewhere, does not begin it: the effect is there once."""

    async def work() -> None:
        async with cluster(tmp_path, words("paid")) as (a, nodes, agents):
            leave, late = asyncio.Event(), nodes["b"]._answering._ask_leave

            async def stand_still(peer_id: str, run: str) -> None:
                await leave.wait()
                await late(peer_id, run)

            nodes["b"]._answering._ask_leave = stand_still  # type: ignore[assignment]
            [first] = [peer.backend for peer in a.router if peer.id == nodes["b"].keys.node_id]
            asked = asyncio.create_task(collect(first.chat(REQUEST)))
            await until(lambda: nodes["b"]._answering.num_running == 1)
            asked.cancel()
            leave.set()
            await until(lambda: nodes["b"]._answering.num_running == 0)
            assert agents["b"].requests == []

    asyncio.run(work())


def test_leave_is_given_once_to_the_peer_that_was_asked_while_its_caller_waits() -> None:
    """No other peer may begin a run, nor the right one twice, nor when its caller has gone."""

    async def work() -> None:
        asked = AskedRuns()
        with asked.waiting("b") as run:
            for peer_id, run_id in (("c", run.id), ("b", "0" * 16), ("b", "\udcff")):
                with pytest.raises(ClusterError):
                    await asked.begin(peer_id, run_id.encode(errors="replace"), ())
            assert not run.has_begun
            await asked.begin("b", run.id.encode(), ())
            assert run.has_begun
            with pytest.raises(ClusterError):
                await asked.begin("b", run.id.encode(), ())
        with asked.waiting("b") as other:
            pass
        with pytest.raises(ClusterError):
            await asked.begin("b", other.id.encode(), ())

    asyncio.run(work())


def test_run_whose_node_is_lost_before_it_had_leave_is_done_elsewhere(tmp_path: Path) -> None:
    """A node that is lost before it could begin has had no effect: the next one does the run."""

    async def work() -> None:
        async with cluster(tmp_path, words("paid")) as (a, nodes, agents):
            standing: list[str] = []
            for name, node in nodes.items():
                usual = node._answering._ask_leave

                async def first_stands_still(peer_id: str, run: str, name: str = name, usual: Leave = usual) -> None:
                    standing.append(name)
                    if len(standing) == 1:
                        await asyncio.sleep(60)
                    await usual(peer_id, run)

                node._answering._ask_leave = first_stands_still  # type: ignore[assignment]
            asked = asyncio.create_task(collect(a.chain.chat(REQUEST)))
            await until(lambda: len(standing) == 1)
            await nodes[standing[0]]._transport.stop()
            assert (await asked).text == "paid"
            assert num_runs(agents) == 1

    asyncio.run(work())


@pytest.mark.parametrize("reason", ["drains", "gone"])
def test_run_that_was_refused_goes_to_another_node(tmp_path: Path, reason: str) -> None:
    """A node that takes no run, as it drains or its agent is gone, has not begun one: the other node is asked."""

    async def work() -> None:
        async with cluster(tmp_path, words("paid")) as (a, nodes, agents):
            if reason == "drains":
                nodes["b"]._answering.is_draining = True  # not told yet
            else:
                agents["b"].model_ids = []
            for _ in range(6):
                assert (await collect(a.chain.chat(REQUEST))).text == "paid"
            assert (agents["b"].requests, len(agents["c"].requests)) == ([], 6)

    asyncio.run(work())
