"""The task graph: order, cycles, concurrency, failure and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.errors import RequestError
from pyagent.core.fleet.graph import run_graph, topological_order


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """Acyclic graphs: each node may need earlier ones; given in a shuffled order."""
    count = draw(st.integers(1, 12))
    edges = {f"n{i}": draw(st.lists(st.integers(0, max(0, i - 1)), unique=True, max_size=4)) for i in range(count)}
    graph = {name: [f"n{j}" for j in after if f"n{j}" != name] for name, after in edges.items()}
    return {name: graph[name] for name in draw(st.permutations(list(graph)))}


@given(graphs())
def test_order_puts_each_after_what_it_needs(graph: dict[str, list[str]]) -> None:
    """Every name comes once, after everything it needs."""
    order = topological_order(graph)
    assert sorted(order) == sorted(graph)
    position = {name: index for index, name in enumerate(order)}
    assert all(position[needed] < position[name] for name, after in graph.items() for needed in after)


@pytest.mark.parametrize(
    ("graph", "cycle"),
    [
        ({"a": ["b"], "b": ["a"]}, "a -> b -> a"),
        ({"a": ["a"]}, "a -> a"),
        ({"x": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]}, "a -> b -> c -> a"),
    ],
)
def test_cycle_is_refused_by_name(graph: dict[str, list[str]], cycle: str) -> None:
    """The error spells the cycle out, and only the cycle."""
    with pytest.raises(RequestError, match=f": {cycle};") as caught:
        topological_order(graph)
    assert caught.value.code == "cycle"


def test_unknown_step_is_refused() -> None:
    """A step after one that does not exist is refused by both names."""
    with pytest.raises(RequestError, match="'a' comes after 'z'"):
        topological_order({"a": ["z"]})


def test_long_chain_needs_no_recursion() -> None:
    """Ten thousand steps in a row are ordered."""
    graph = {f"n{i}": [f"n{i + 1}"] if i < 9_999 else [] for i in range(10_000)}
    assert topological_order(graph)[0] == "n9999"


@given(graphs(), st.integers(1, 4))
def test_run_respects_order_and_bound(graph: dict[str, list[str]], bound: int) -> None:
    """A step sees the outputs of what it needs, and never more than the bound run at once."""
    running = most = 0

    async def work(name: str, outputs: dict[str, str]) -> str:
        nonlocal running, most
        assert dict(outputs) == {needed: needed.upper() for needed in graph[name]}
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return name.upper()

    outcomes = asyncio.run(run_graph(graph, work, max_concurrency=bound))
    assert {name: outcome.output for name, outcome in outcomes.items()} == {name: name.upper() for name in graph}
    assert most <= bound


def test_independent_steps_run_side_by_side() -> None:
    """Two steps that wait for each other's start can only end when both run at once."""

    async def main() -> None:
        barrier = asyncio.Barrier(2)

        async def work(name: str, _: object) -> str:
            async with asyncio.timeout(60):
                await barrier.wait()
            return name

        outcomes = await run_graph({"a": [], "b": []}, work, max_concurrency=2)
        assert all(outcome.state == "done" for outcome in outcomes.values())

    asyncio.run(main())


async def _failing(name: str, _: object) -> str:
    if name == "bad":
        raise ValueError("no")
    await asyncio.sleep(0.01)
    return name


def test_failure_skips_dependents_and_spares_siblings() -> None:
    """What comes after a failed step is skipped with the cause; the others finish."""
    graph = {"bad": [], "good": [], "child": ["bad"], "grandchild": ["child", "good"]}
    skipped: list[tuple[str, str]] = []
    run = run_graph(graph, _failing, max_concurrency=4, on_skip=lambda *names: skipped.append(names))
    outcomes = asyncio.run(run)
    assert sorted(skipped) == [("child", "bad"), ("grandchild", "bad")]
    assert {name: (o.state, o.cause) for name, o in outcomes.items()} == {
        "bad": ("failed", None),
        "good": ("done", None),
        "child": ("skipped", "bad"),
        "grandchild": ("skipped", "bad"),
    }


def test_each_edge_is_looked_at_a_few_times() -> None:
    """A step after hundreds of others costs what its edges cost, and not all edges again for each step that ends."""
    num_looks = 0

    class Counted(list[str]):
        def __iter__(self) -> Iterator[str]:
            nonlocal num_looks
            num_looks += len(self)
            return super().__iter__()

    async def work(_name: str, outputs: Mapping[str, int]) -> int:
        return len(outputs)

    first = [f"a{number}" for number in range(100)]
    graph = {name: Counted() for name in first} | {f"b{number}": Counted(first) for number in range(100)}
    outcomes = asyncio.run(run_graph(graph, work, max_concurrency=4))
    assert {outcomes[name].output for name in graph if name.startswith("b")} == {100}
    assert num_looks <= 10 * 100 * 100


def test_cancelling_reaches_every_step() -> None:
    """When the caller is cancelled, every step under way ends before the caller does."""
    ended: list[str] = []

    async def main() -> None:
        started = asyncio.Barrier(4)

        async def work(name: str, _: object) -> str:
            try:
                await started.wait()
                await asyncio.sleep(60)
            finally:
                ended.append(name)
            return name

        job = asyncio.create_task(run_graph({"a": [], "b": [], "c": []}, work, max_concurrency=3))
        await started.wait()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert sorted(ended) == ["a", "b", "c"]

    asyncio.run(main())
