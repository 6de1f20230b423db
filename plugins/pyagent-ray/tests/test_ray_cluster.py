"""Engines and agents on a real Ray cluster of three nodes on this machine (`make ray`)."""

from __future__ import annotations

import asyncio
import os
import signal
import string
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import support.fleets
from pyagent_ray.backend import RayBackend
from pyagent_ray.executor import RayExecutor
from pyagent_ray.options import Options
from support.fleets import Custom, Fleet, events_of
from support.tiny_model import vocabulary, write_tiny_model

from pyagent.plugin import (
    AgentError,
    BackendError,
    ChatRequest,
    Context,
    ContextOverflowError,
    DeadlineError,
    FleetTool,
    LinkSpec,
    Message,
    SamplingParams,
    Settings,
    Task,
    collect,
    make_backend,
    make_host,
)
from pyagent.testing import ScriptedBackend

pytestmark = [pytest.mark.ray, pytest.mark.anyio]
NUM_NODES = 3
PATIENCE = float(os.environ.get("RAY_TEST_PATIENCE", "240"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that can talk for longer than any deadline of these tests."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", llama__context_length=65_536)


class Nodes:
    """A cluster of Ray nodes, each a raylet with processes of its own; the first one is this process's."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster()
        self.add(num_cpus=0, include_dashboard=False)
        for _ in range(NUM_NODES - 1):
            self.add()

    def add(self, **more: Any) -> None:
        """Add a node. Ray gives one half a minute to start, which a busy machine may not have."""
        for is_last in (False, False, False, True):
            try:
                self.cluster.add_node(**{"num_cpus": 2, "object_store_memory": 80 << 20, **more})
            except Exception as error:
                if is_last or "timed out during startup" not in str(error):
                    raise
            else:
                return

    @property
    def options(self) -> Options:
        return Options(address=self.cluster.address, engines=2, cpus=1, start_seconds=PATIENCE)

    def mend(self) -> None:
        """Add what earlier tests killed, and wait until Ray counts exactly the nodes there are."""
        while 1 + len(self.cluster.worker_nodes) < NUM_NODES:
            self.add()
        self.cluster.wait_for_nodes(PATIENCE)

    def kill(self, node_id: str) -> None:
        node = next(one for one in self.cluster.worker_nodes if one.node_id == node_id)
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture(scope="module")
def started() -> Iterator[Nodes]:
    pytest.importorskip("ray", reason="`make ray` installs it")
    import ray

    for here in (sys.modules[__name__], support.fleets):  # which no worker can import
        ray.cloudpickle.register_pickle_by_value(here)
    nodes = Nodes()
    ray.init(address=nodes.cluster.address, namespace="pyagent", log_to_driver=False, configure_logging=False)
    yield nodes
    ray.shutdown()
    nodes.cluster.shutdown()


@pytest.fixture
def nodes(started: Nodes) -> Nodes:
    """The cluster with all its nodes, whichever a test before has killed."""
    started.mend()
    return started


@asynccontextmanager
async def link_of(nodes: Nodes, model: Path, **options: Any) -> AsyncGenerator[RayBackend]:
    backend = RayBackend(LinkSpec("ray", str(model)), Settings(), msgspec.structs.replace(nodes.options, **options))
    try:
        yield backend
    finally:
        await backend.close()


def places() -> dict[str, list[str]]:
    """The nodes of the actors that live, by their class."""
    import ray._private.state

    found: dict[str, list[str]] = {}
    for actor in ray._private.state.actors().values():
        if actor["State"] == "ALIVE":
            found.setdefault(actor["ActorClassName"], []).append(actor["Address"]["NodeID"])
    return found


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.1)


CAPITALS = tuple(vocabulary()[0].index(letter) for letter in string.ascii_uppercase)
"""Tokens that no text joins to others: an answer of them goes on from its text as from its tokens."""


def tell(text: str = "tell me", most: int = 60, **more: Any) -> ChatRequest:
    sampling = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True, allowed_token_ids=CAPITALS)
    return ChatRequest(messages=[Message("user", text)], sampling=sampling, **more)


async def here(model: Path, request: ChatRequest) -> str:
    backend = make_backend(f"native:{model}", Settings(), make_host(Settings()))
    try:
        return (await collect(backend.chat(request))).text
    finally:
        await backend.close()


async def test_engines_on_several_nodes_answer_as_one_here(nodes: Nodes, model: Path) -> None:
    """Engines spread over nodes, each answers as an engine in this process does, and all are ended with their link."""
    expected = await here(model, tell())
    async with link_of(nodes, model) as link:
        answers = await asyncio.gather(*(collect(link.chat(tell())) for _ in range(6)))
        assert [answer.text for answer in answers] == [expected] * 6
        assert {answer.last.backend for answer in answers} == {f"{link.name}#0", f"{link.name}#1"}
        assert len(set(places()["EngineActor"])) == 2
        assert [found.id for found in await link.models()] == [str(model)]
        assert (await link.health()).is_ready
    await until(lambda: "EngineActor" not in places())


async def test_closed_answers_and_deadlines_end_in_the_engine(nodes: Nodes, model: Path) -> None:
    """An answer that its reader leaves, or that is late, is computed no further; an error of ours arrives as itself."""
    async with link_of(nodes, model, engines=1) as link:
        async with aclosing(link.chat(tell(most=4000))) as stream:  # type: ignore[type-var]
            await anext(stream)
        with pytest.raises(DeadlineError):
            await collect(link.chat(tell(most=60_000, timeout_seconds=1.0)))
        engine = link._chain.links[0]
        await until(lambda: engine.num_running == 0)  # type: ignore[attr-defined]
        assert (await collect(link.chat(tell(most=3)))).text
        with pytest.raises(ContextOverflowError):
            await collect(link.chat(tell("word " * 100_000)))


async def test_answers_go_on_when_a_node_is_killed(nodes: Nodes, model: Path) -> None:
    """A node is killed under streams: each goes on with another engine, with the text of an undisturbed one."""
    requests = [tell(f"story {n}", most=400) for n in range(4)]
    expected = [await here(model, request) for request in requests]
    async with link_of(nodes, model) as link:
        await asyncio.gather(*(collect(link.chat(tell(most=2))) for _ in range(4)))
        is_killed = asyncio.Event()
        begun = [asyncio.Event() for _ in requests]
        killed = places()["EngineActor"][0]

        async def read(number: int) -> tuple[str, list[str]]:
            text, ways = "", []
            async for delta in link.chat(requests[number]):
                text += delta.content
                ways += [delta.resumed.kind] if delta.resumed is not None else []
                begun[number].set()
                await is_killed.wait()  # an engine is only some pieces ahead of its reader
            return text, ways

        reading = [asyncio.create_task(read(number)) for number in range(len(requests))]
        await asyncio.gather(*(one.wait() for one in begun))
        await asyncio.to_thread(nodes.kill, killed)
        is_killed.set()
        told = await asyncio.gather(*reading)
        assert [text for text, _ in told] == expected
        assert {way for _, ways in told for way in ways} == {"continue"}
        await until(lambda: len(at := places().get("EngineActor", [])) == 2 and killed not in at)  # Ray's restart
        assert (await collect(link.chat(tell(most=3)))).text


class Book:
    """What the run's tools did: their effects happen where the run is."""

    def __init__(self) -> None:
        self.effects: list[str] = []

    async def note(self, arguments: dict[str, str]) -> str:
        self.effects.append(arguments["text"])
        return f"noted {arguments['text']}"

    @property
    def tool(self) -> Any:
        schema = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
        return FleetTool("note", "notes", schema, self.note)


def node_here() -> str:
    import ray

    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""


class Worker:
    """An agent that uses its context, says where it runs, and waits in the middle while a file `wait` is there."""

    description = "works"

    def __init__(self, name: str, folder: Path, *, is_pure: bool, needs: tuple[str, ...] = ()) -> None:
        self.name = name
        self.is_pure = is_pure
        self.needs = needs
        self.num_runs = 0
        self._folder = folder

    async def run(self, context: Context, task: Task) -> dict[str, object]:
        self.num_runs += 1
        (self._folder / f"{self.name}-{os.getpid()}").write_text(node_here())
        context.progress("begins")
        with context.phase("first"):
            first = await context.call_tool("note", {"text": "one"})
        pieces = [piece async for piece in context.stream("tell")]
        (self._folder / "middle").touch()
        while (self._folder / "wait").exists():  # noqa: ASYNC110 - another process removes it
            await asyncio.sleep(0.05)
        second = await context.call_tool("note", {"text": "two"})
        child = await context.spawn(self.needs[0], "more") if self.needs else None
        return {"first": first, "told": "".join(pieces), "second": second, "child": child, "runs": self.num_runs}

    def pids(self) -> set[int]:
        return {int(path.name.rpartition("-")[2]) for path in self._folder.glob(f"{self.name}-*")}


TIMES = {"at", "seconds", "tokens_per_second"}


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key not in TIMES}
    return [without_times(one) for one in value] if isinstance(value, list | tuple) else value


async def outcome(agents: list[Any], executor: RayExecutor | None, during: Any = None) -> tuple[Any, list[str]]:
    """Events and journal of a run without their times, and what its tools did."""
    book = Book()
    backend = ScriptedBackend(lambda request: f"an answer to {request.messages[-1].text} in five words")
    async with Fleet(backend, agents, [book.tool], executor=executor) as fleet:
        async with asyncio.TaskGroup() as group:  # what `during` raises ends the run
            if during:
                group.create_task(during())
            events, error = await events_of(fleet, "go", agent=agents[0].name)
        journal = [record.event for record in fleet.journal.replay(fleet.journal.runs()[0].run)]
    told = [[without_times(msgspec.to_builtins(one, enc_hook=str)) for one in many] for many in (events, journal)]
    return (*told, str(error)), book.effects


async def test_agents_on_ray_give_the_same_events_and_journal(nodes: Nodes, tmp_path: Path) -> None:
    """A run with a pure agent and one with state shows and journals on Ray what it does in process."""
    agents = [
        Worker("all", tmp_path, is_pure=True, needs=("child",)),
        Worker("child", tmp_path, is_pure=False),
    ]
    expected = await outcome(agents, None)
    for agent in agents:
        agent.num_runs = 0
        assert agent.pids() == {os.getpid()}
    assert await outcome(agents, RayExecutor(Settings(), nodes.options)) == expected
    assert expected[0][0][-1]["event"] == "run_finished"
    assert all(len(agent.pids()) == 2 for agent in agents)
    await until(lambda: not {"AgentHost", "Desk"} & places().keys())


async def test_actor_keeps_an_agent_s_state(nodes: Nodes, tmp_path: Path) -> None:
    """An agent that keeps state stays in one actor from run to run, a pure one need not."""
    agent = Worker("state", tmp_path, is_pure=False)
    backend = ScriptedBackend(lambda request: "an answer")
    async with Fleet(backend, [agent], [Book().tool], executor=RayExecutor(Settings(), nodes.options)) as fleet:
        runs = [(await fleet.run_agent("state", "go"))["runs"] for _ in range(3)]  # type: ignore[index]
    assert runs == [1, 2, 3]
    assert agent.num_runs == 0


@pytest.mark.parametrize("way", ["process", "node"])
async def test_pure_agent_outlives_its_worker_and_does_nothing_twice(nodes: Nodes, tmp_path: Path, way: str) -> None:
    """The process or node that runs a pure agent is killed in mid-run: same events, each tool's effect once."""
    agent = Worker("pure", tmp_path, is_pure=True)
    expected = await outcome([agent], None)
    mine = agent.pids()
    agent.num_runs = 0
    (tmp_path / "middle").unlink()
    (tmp_path / "wait").touch()

    async def kill() -> None:
        await until((tmp_path / "middle").exists)
        (victim,) = agent.pids() - mine
        if way == "process":
            os.kill(victim, signal.SIGKILL)
        else:
            await asyncio.to_thread(nodes.kill, (tmp_path / f"pure-{victim}").read_text())
        (tmp_path / "wait").unlink()

    options = msgspec.structs.replace(nodes.options, agent_cpus=1)  # not on the first node, which has the run's desk
    assert await outcome([agent], RayExecutor(Settings(), options), kill) == expected
    assert expected[1] == ["one", "two"]
    assert len(agent.pids() - mine) == 2


async def test_agent_with_state_is_not_begun_again(nodes: Nodes, tmp_path: Path) -> None:
    """When the process of an agent that is not pure is killed, its step fails and says why; the next run goes well."""
    agent = Worker("state", tmp_path, is_pure=False)
    (tmp_path / "wait").touch()

    async def kill() -> None:
        await until((tmp_path / "middle").exists)
        os.kill(agent.pids().pop(), signal.SIGKILL)
        (tmp_path / "wait").unlink()

    (events, _, error), effects = await outcome([agent], RayExecutor(Settings(), nodes.options), kill)
    assert events[-1]["event"] == "run_failed"
    assert "it is not begun again, as it may keep state" in error
    assert effects == ["one"]


async def test_cancelled_and_failing_agents_end_on_ray(nodes: Nodes, tmp_path: Path) -> None:
    """A deadline ends an agent's task there too, and what an agent raises is named as it would be here."""

    async def sleep(context: Context, task: Task) -> object:
        (tmp_path / "slept").touch()
        try:
            await asyncio.sleep(600)
        finally:
            (tmp_path / "ended").touch()
        return ""

    async def fail(context: Context, task: Task) -> object:
        raise KeyError("nothing")

    agents = [Custom("sleeps", sleep, is_pure=True), Custom("fails", fail, is_pure=True)]
    async with Fleet(ScriptedBackend([]), agents, executor=RayExecutor(Settings(), nodes.options)) as fleet:
        with pytest.raises(AgentError, match="fails failed: KeyError: 'nothing'"):
            await fleet.run_agent("fails", "go")
        task = asyncio.create_task(fleet.run_agent("sleeps", "go"))
        await until((tmp_path / "slept").exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until((tmp_path / "ended").exists)


@pytest.mark.parametrize("is_pure", [True, False])
async def test_agent_that_raises_cancelled_error_itself_has_failed(nodes: Nodes, tmp_path: Path, is_pure: bool) -> None:
    """It is not begun again, and fails with the words it fails with in this process, in a task as in an actor."""

    async def give_up(context: Context, task: Task) -> object:
        with (tmp_path / "begun").open("a") as file:
            file.write("x")
        raise asyncio.CancelledError

    agents = [Custom("gives_up", give_up, is_pure=is_pure)]
    async with Fleet(ScriptedBackend([]), agents, executor=RayExecutor(Settings(), nodes.options)) as fleet:
        with pytest.raises(AgentError, match="raised CancelledError, though it was not cancelled"):
            await fleet.run_agent("gives_up", "go")
    assert (tmp_path / "begun").read_text() == "x"


async def test_cluster_without_room_is_said(nodes: Nodes, model: Path) -> None:
    """Engines for which the cluster has no room end in an error that says so, and hold no place."""
    async with link_of(nodes, model, cpus=64, start_seconds=2.0) as link:
        with pytest.raises(BackendError, match="has no room for 2 engines with 64 CPUs"):
            await collect(link.chat(tell()))


async def test_ranks_are_actors_of_this_machine(nodes: Nodes, model: Path) -> None:
    """A model in two ranks, of which Ray has one: it answers as one process does, also after the actor is killed."""
    pytest.importorskip("torch")
    request = tell(most=40)
    expected = await here(model, request)
    options = {"address": nodes.cluster.address, "rank_gpus": 0, "start_seconds": PATIENCE}
    settings = msgspec.structs.replace(
        Settings(),
        engine=msgspec.structs.replace(
            Settings().engine,
            runner="torch",
            dtype="f32",
            kv_dtype="f32",
            tensor_parallel_size=2,
            distributed_executor_backend="ray",
        ),
        plugins=msgspec.structs.replace(Settings().plugins, options={"ray": options}),
    )
    backend = make_backend(f"native:{model}", settings, make_host(settings))
    try:
        assert (await collect(backend.chat(request))).text == expected
        assert len(places()["RankActor"]) == 1
        text, has_killed = "", False
        async for delta in backend.chat(request):
            text += delta.content
            if not has_killed:
                has_killed = True
                os.kill((await backend.engine_state()).ranks[str(model)][1].process_id, signal.SIGKILL)  # type: ignore[attr-defined]
        assert text == expected
    finally:
        await backend.close()
    await until(lambda: "RankActor" not in places())
