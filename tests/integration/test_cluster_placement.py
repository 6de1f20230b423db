"""Nodes keep as many copies of a model loaded as `cluster.placement` wants: real engines, real gossip."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Collection
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.native import options
from support.nodes import Own, cluster_of, is_connected, join, kill, running_node
from support.waiting import Clock, until

from pyagent.core.cluster.adverts import Offer
from pyagent.core.cluster.peers import ClusterRouter, Peer
from pyagent.core.cluster.routing import Balancer
from pyagent.core.errors import ModelError
from pyagent.core.messages import ModelInfo
from pyagent.core.settings import Cluster
from pyagent.infrastructure.cluster.begun_loads import BegunLoads
from pyagent.infrastructure.cluster.node import Node
from pyagent.infrastructure.cluster.placing import Placing
from pyagent.infrastructure.cluster.tasks import Tasks
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import EngineState, LocalEngine

DELAY_SECONDS = 0.2
LOOKS_SECONDS = 4 * DELAY_SECONDS
"""In which a node has looked many times, and would have begun what it should not."""


def placing(wanted: int) -> dict[str, object]:
    return {"placement": {"tiny": wanted}, "placement_delay_seconds": DELAY_SECONDS}


def engine(path: Path) -> NativeBackend:
    return NativeBackend.of("tiny", lambda: path, options())


def has(link: NativeBackend) -> bool:
    assert isinstance(link.engine, LocalEngine)
    return "tiny" in link.engine.models.loaded()


def loading(link: NativeBackend) -> bool:
    assert isinstance(link.engine, LocalEngine)
    return "tiny" in link.engine.models.loading()


def holders(links: dict[str, NativeBackend]) -> set[str]:
    return {name for name, link in links.items() if has(link)}


def sees(node: Node, wanted: int, live: int) -> bool:
    return [(model.wanted, model.live) for model in node.status().placement] == [(wanted, live)]


def test_model_of_a_dead_node_appears_elsewhere(tmp_path: Path, tiny_model_path: Path) -> None:
    """Two nodes load the model, one that joins does not; when one of both dies it does. What lives stays as it is."""

    async def work() -> None:
        links = {name: engine(tiny_model_path) for name in "abc"}
        async with cluster_of(tmp_path, placing(2), a=[links["a"]], b=[links["b"]]) as nodes, AsyncExitStack() as stack:
            await until(lambda: all(sees(node, 2, 2) for node in nodes))
            join(tmp_path / "c", nodes[0])
            seeds = [f"127.0.0.1:{node.door_port}" for node in nodes]
            # It wants none of itself: on a busy machine it would load the model before it heard of the others.
            later = {"placement_delay_seconds": 2.0}
            third = await stack.enter_async_context(running_node(tmp_path / "c", [links["c"]], seeds=seeds, **later))
            await until(lambda: is_connected(third, 2) and sees(third, 2, 2))
            await asyncio.sleep(LOOKS_SECONDS)
            before = holders(links)
            await kill(nodes[0])
            await until(lambda: has(links["c"]) and all(sees(node, 2, 2) for node in (nodes[1], third)))
            assert before >= {"a", "b"}
            assert has(links["b"])
        await asyncio.gather(*(link.close() for link in links.values()))

    asyncio.run(work())


def test_copy_on_a_node_that_drains_does_not_count(tmp_path: Path, tiny_model_path: Path) -> None:
    """While the node that has the model drains, another loads it; the copy too many stays when the node resumes."""

    async def work() -> None:
        links = {name: engine(tiny_model_path) for name in "ab"}
        async with cluster_of(tmp_path, placing(1), "b", a=[links["a"]], b=[links["b"]]) as (a, b):
            await until(lambda: sees(a, 1, 1) and sees(b, 1, 1))
            assert holders(links) == {"a"}
            await b.resume()
            await a.drain(0.0)
            await until(lambda: len(holders(links)) == 2 and sees(a, 1, 1))
            await a.resume()
            await until(lambda: sees(a, 1, 2) and sees(b, 1, 2))
        await asyncio.gather(*(link.close() for link in links.values()))

    asyncio.run(work())


def test_node_that_drains_loads_nothing(tmp_path: Path, tiny_model_path: Path) -> None:
    """A model that falls to a node is not loaded while it drains, but when it resumes."""

    async def work() -> None:
        link = engine(tiny_model_path)
        async with cluster_of(tmp_path, placing(1), a=[link]) as (node,):
            await node.drain(0.0)
            await asyncio.sleep(LOOKS_SECONDS)
            assert not has(link)
            assert node.status().placement[0].able == 0
            await node.resume()
            await until(lambda: has(link))
        await link.close()

    asyncio.run(work())


@pytest.mark.parametrize("error", [ModelError("the disk is gone", model="tiny"), RuntimeError("a plugin's bug")])
def test_node_that_cannot_load_a_model_leaves_it_to_the_others(
    tmp_path: Path, tiny_model_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Where loading fails it is tried once and said, and another node loads the model, whoever was ranked first."""
    times = 0

    def broken() -> Path:
        nonlocal times
        times += 1
        raise error

    async def work() -> None:
        good, bad = engine(tiny_model_path), NativeBackend.of("tiny", broken, options())
        async with cluster_of(tmp_path, placing(2), a=[good], b=[bad]) as nodes:
            await until(lambda: times == 1 and all(sees(node, 2, 1) for node in nodes))
            await asyncio.sleep(LOOKS_SECONDS)
            assert times == 1
            assert str(error) in caplog.text
            assert [node.status().placement[0].able for node in nodes] == [0, 0]
        await asyncio.gather(good.close(), bad.close())

    asyncio.run(work())


def test_model_that_a_client_waits_for_is_loaded_once(tmp_path: Path, tiny_model_path: Path) -> None:
    """A load that a request began, or the start of a server, is told: no other node begins one beside it."""
    go_on = threading.Event()

    def slow() -> Path:
        go_on.wait(120)
        return tiny_model_path

    async def work() -> None:
        links = {"a": NativeBackend.of("tiny", slow, options()), "b": engine(tiny_model_path)}
        first = asyncio.create_task(links["a"].load())
        await until(lambda: loading(links["a"]))
        async with cluster_of(tmp_path, placing(1), "b", a=[links["a"]], b=[links["b"]]) as nodes:
            await until(lambda: all(node.status().placement[0].loading == 1 for node in nodes))
            await nodes[1].resume()
            await asyncio.sleep(LOOKS_SECONDS)
            assert holders(links) == set()
            go_on.set()
            await first
            assert holders(links) == {"a"}
        await asyncio.gather(*(link.close() for link in links.values()))

    try:
        asyncio.run(work())
    finally:
        go_on.set()


class Shelf(Own):
    """A link with very many models, of which the last is in memory."""

    async def models(self) -> list[ModelInfo]:
        absent = [ModelInfo(id=f"library/one-of-many-{number}:7b-instruct-q4_K_M") for number in range(200)]
        return [*absent, ModelInfo(id="tiny", is_loaded=True)]


def test_node_with_very_many_models_tells_its_wishes_and_what_it_has_loaded(
    tmp_path: Path, tiny_model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Gossip has no room for all its models: of those that are not in memory the last are left out, which is said."""

    async def work() -> None:
        link = engine(tiny_model_path)
        async with cluster_of(tmp_path, a=[Shelf("many")], b=[link]) as (a, b):
            join(tmp_path / "c", a)
            seeds = [f"127.0.0.1:{a.door_port}"]
            async with running_node(tmp_path / "c", [Shelf("more")], seeds=seeds, placement={"tiny": 2}):
                await until(lambda: len(b.status().placement) == 1 and sees(b, 2, 2))
                await a._advertising.advert()  # as every five seconds
            assert not has(link)
        await link.close()

    asyncio.run(work())
    assert caplog.text.count("models and agents are left out") == 2


_DIES = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.native import options
from support.nodes import cluster_of
from pyagent.infrastructure.engine.backend import NativeBackend

async def work() -> None:
    link = NativeBackend.of("tiny", lambda: os._exit(7), options())
    settings = {"placement": {"tiny": 1}, "placement_delay_seconds": 0.1}
    async with cluster_of(Path(sys.argv[1]), settings, a=[link]):
        await asyncio.sleep(30)

asyncio.run(work())
"""


def test_model_that_ended_the_process_is_not_loaded_at_each_start(tmp_path: Path, tiny_model_path: Path) -> None:
    """A node that dies over a load leaves the model to others when it is started again, and takes it for a request."""
    command = [sys.executable, "-c", _DIES, str(tmp_path), str(Path(__file__).parents[1])]
    ended = subprocess.run(command, check=False, timeout=60)
    assert ended.returncode == 7

    begun = tmp_path / "a" / "placement.json"

    async def work() -> None:
        link = engine(tiny_model_path)
        async with running_node(tmp_path / "a", [link], **placing(1)) as node:
            await asyncio.sleep(LOOKS_SECONDS)
            assert not has(link)
            assert node.status().placement[0].able == 0
            await link.load()
        async with running_node(tmp_path / "a", [link], **placing(1)) as node:
            await until(lambda: sees(node, 1, 1) and "tiny" not in begun.read_text())
        await link.close()

    asyncio.run(work())


@pytest.mark.parametrize("sizes", [(1, 1 << 62), (1 << 62, 1)])
def test_size_of_another_file_by_a_models_name_keeps_no_node_from_it(
    tmp_path: Path, tiny_model_path: Path, sizes: tuple[int, int]
) -> None:
    """Of the sizes that nodes tell of one name the least counts: another's file may be larger than all memory here."""

    async def work() -> None:
        link, router = engine(tiny_model_path), ClusterRouter(Balancer())
        for size in sizes:
            told = Offer(models=(ModelInfo(id="tiny", is_loaded=True, size_bytes=size),))
            router.add(Peer(id=f"node{size}", called="", backend=Own("tiny"), offer=told))
        settings = Cluster(**placing(3))  # type: ignore[arg-type]
        looks = Placing(settings, router, BegunLoads(tmp_path), untold, Tasks())
        offer = Offer(models=tuple(await link.models()))
        assert (await looks.added(offer, [link])).placeable == ("tiny",)
        await link.close()

    asyncio.run(work())


class Engine(Own):
    """A link that has room for the model, or is loading it."""

    def __init__(self, state: EngineState, file_bytes: int = 0) -> None:
        super().__init__("tiny")
        self._state = state
        self._file_bytes = file_bytes

    async def engine_state(self) -> EngineState:
        return self._state

    async def placeable(self, models: Collection[str]) -> dict[str, int]:
        return dict.fromkeys(sorted(models), self._file_bytes)

    async def place(self, model: str) -> None:
        raise AssertionError(model)


def test_load_that_takes_half_an_hour_counts_no_longer(tmp_path: Path) -> None:
    """One that a client's request began, as one of the placement: it may be a fetch that never ends."""
    clock, link = Clock(), Engine(EngineState(state="ready", loading=["tiny", "another"]))
    settings = Cluster(**placing(1))  # type: ignore[arg-type]
    looks = Placing(settings, ClusterRouter(Balancer()), BegunLoads(tmp_path, clock), untold, Tasks())

    def told() -> tuple[tuple[str, ...], tuple[str, ...]]:
        offer = asyncio.run(looks.added(Offer(models=(ModelInfo(id="tiny"),)), [link]))
        return offer.placing, offer.placeable

    assert told() == (("tiny",), ())
    clock.now += 1799
    assert told() == (("tiny",), ())
    clock.now += 1
    assert told() == ((), ())


@pytest.mark.parametrize(
    ("file_bytes", "told_bytes", "placeable"), [(30, 1 << 40, ("tiny",)), (70, 30, ()), (0, 30, ("tiny",))]
)
def test_own_file_says_sooner_than_others_what_a_model_takes(
    tmp_path: Path, file_bytes: int, told_bytes: int, placeable: tuple[str, ...]
) -> None:
    """Of a model that was never in memory here its file counts; where that is not known, what another node tells."""
    link = Engine(EngineState(state="ready", memory={"weights:x": 40}, memory_bytes=100), file_bytes)
    router = ClusterRouter(Balancer())
    told = Offer(models=(ModelInfo(id="tiny", is_loaded=True, size_bytes=told_bytes),))
    router.add(Peer(id="b", called="", backend=Own("tiny"), offer=told))
    looks = Placing(Cluster(**placing(3)), router, BegunLoads(tmp_path), untold, Tasks())  # type: ignore[arg-type]
    assert asyncio.run(looks.added(Offer(models=(ModelInfo(id="tiny"),)), [link])).placeable == placeable


@pytest.mark.parametrize(("num_copies", "placeable"), [(2, ("tiny",)), (3, ())])
def test_each_copy_of_an_engine_needs_room_for_a_model(
    tmp_path: Path, num_copies: int, placeable: tuple[str, ...]
) -> None:
    """Memory is that of all copies together, and each has the weights."""
    each = EngineState(state="ready")
    link = Engine(EngineState(state="ready", memory={"weights:x": 40}, memory_bytes=100, copies=[each] * num_copies))
    looks = Placing(
        Cluster(**placing(1)),  # type: ignore[arg-type]
        ClusterRouter(Balancer()),
        BegunLoads(tmp_path),
        untold,
        Tasks(),
    )
    offer = Offer(models=(ModelInfo(id="tiny", size_bytes=30),))
    assert asyncio.run(looks.added(offer, [link])).placeable == placeable


async def untold() -> None:
    """Nobody is there to be told."""
