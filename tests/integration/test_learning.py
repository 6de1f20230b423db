"""Learning which agent to choose: settings, marks, the file, and what a tenant sees of another's marks."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from support.fleets import Custom, echo
from support.run_server import ALICE, ended, run_server

from pyagent.core.errors import AgentError, Decline, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.learning.outcomes import Choice, arms_of
from pyagent.core.settings import Settings
from pyagent.core.settings.learning import Learning
from pyagent.fleet import Fleet
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.infrastructure.storage.outcomes import SqliteOutcomes
from pyagent.testing import ScriptedBackend


async def _fail(context: Context, task: Task) -> object:
    raise AgentError("broken", agent="first")


def _fleet(folder: Path, policy: str = "ucb1", first: object = echo, seed: int = 0) -> Fleet:
    learning = msgspec.convert({"policy": policy, "seed": seed}, Learning)
    settings = msgspec.structs.replace(Settings(), learning=learning)
    agents = [
        Custom("first", first, score=lambda task: 0.9),  # type: ignore[arg-type]
        Custom("second", echo, score=lambda task: 0.88),
        Custom("far", echo, score=lambda task: 0.6),
    ]
    return Fleet(settings, backend=ScriptedBackend(()), agents=agents, tools=(), journal=SqliteJournal(folder))


async def _route(fleet: Fleet, tenant: str = "", **options: object) -> ev.RouteChosen:
    routes: list[ev.RouteChosen] = []
    try:
        async for event in fleet.run("x", tenant=tenant, **options):  # type: ignore[arg-type]
            routes += [event] if isinstance(event, ev.RouteChosen) else []
    except AgentError:
        pass
    return routes[-1]


async def _choices(fleet: Fleet, good: str, num: int, tenant: str = "") -> list[str]:
    """Return the agents of some runs, each marked by whether it is the good one."""
    agents: list[str] = []
    async with fleet:
        for _ in range(num):
            route = await _route(fleet, tenant)
            fleet.mark(route.run, "good" if route.agent == good else "bad")
            agents.append(route.agent)
    return agents


@pytest.mark.parametrize("policy", ["ucb1", "thompson", "gaussian"])
def test_marks_move_the_choice_to_the_better_of_near_agents(tmp_path: Path, policy: str) -> None:
    """The agent whose runs are marked good is chosen more often, one with a far lower score never."""
    agents = asyncio.run(_choices(_fleet(tmp_path, policy), "second", 12))
    assert agents.count("second") > 6
    assert "far" not in agents


def test_without_the_setting_nothing_is_learned(tmp_path: Path) -> None:
    """With `learning.policy` off the highest score wins, whatever the marks."""
    assert asyncio.run(_choices(_fleet(tmp_path, "off"), "second", 4)) == ["first"] * 4


def test_learning_goes_on_after_a_restart_and_repeats_by_seed(tmp_path: Path) -> None:
    """Two fleets on one folder choose as one fleet does, with equal marks and an equal seed."""
    whole = asyncio.run(_choices(_fleet(tmp_path / "one", "thompson"), "second", 8))
    begun = asyncio.run(_choices(_fleet(tmp_path / "two", "thompson"), "second", 4))
    assert begun + asyncio.run(_choices(_fleet(tmp_path / "two", "thompson"), "second", 4)) == whole


def test_marks_of_one_tenant_do_not_steer_another(tmp_path: Path) -> None:
    """A tenant begins with no knowledge, whatever others have marked."""
    asyncio.run(_choices(_fleet(tmp_path), "second", 6, "a"))

    async def first_of_b() -> ev.RouteChosen:
        async with _fleet(tmp_path) as fleet:
            return await _route(fleet, "b")

    route = asyncio.run(first_of_b())
    assert (route.agent, route.how) == ("first", "learned")
    assert "nothing is known" in route.reason


def test_agent_that_fails_earns_nothing(tmp_path: Path) -> None:
    """A failure counts as a reward of 0 without a mark."""

    async def work() -> str:
        async with _fleet(tmp_path, first=_fail) as fleet:
            await _route(fleet)
            assert isinstance(fleet.journal, SqliteJournal)
            [arm] = arms_of(fleet.journal.outcomes.rows("", "agent"), ["first"])
            assert (arm.num_pulls, arm.num_rewards, arm.sum) == (1, 1, 0.0)
            return (await _route(fleet)).agent

    assert asyncio.run(work()) == "second"


def test_agent_that_declines_is_not_chosen_again(tmp_path: Path) -> None:
    """The learner chooses among those that are left."""

    async def decline(context: Context, task: Task) -> object:
        raise Decline("not now")

    async def work(seed: int) -> str:
        async with _fleet(tmp_path / str(seed), "thompson", decline, seed) as fleet:
            route = await _route(fleet)
            events = [record.event for record in fleet.journal.replay(route.run)]
            assert sum(isinstance(event, ev.AgentDeclined) for event in events) <= 1
            return route.agent

    assert {asyncio.run(work(seed)) for seed in range(6)} == {"second"}


def test_private_run_leaves_no_outcome(tmp_path: Path) -> None:
    """A private run goes by score, and nothing of it is kept."""

    async def work() -> ev.RouteChosen:
        async with _fleet(tmp_path) as fleet:
            return await _route(fleet, is_private=True)

    assert asyncio.run(work()).how == "score"
    assert SqliteOutcomes(tmp_path / "outcomes.db").all() == []


def test_mark_says_what_it_does_not_take(tmp_path: Path) -> None:
    """A wrong mark, an unknown run and a run whose agent was named are refused; a second mark replaces the first."""

    async def work() -> None:
        async with _fleet(tmp_path) as fleet:
            route = await _route(fleet)
            for mark in ("great", "nan", 2, True, ""):
                with pytest.raises(RequestError, match="good, bad or a number"):
                    fleet.mark(route.run, mark)
            with pytest.raises(RequestError):
                fleet.mark("r-none", "good")
            named = await _route(fleet, agent="first")
            with pytest.raises(RequestError, match="would teach nothing"):
                fleet.mark(named.run, "good")
            fleet.mark(route.run, "good")
            assert fleet.mark(route.run, 0.25).step_to_agent == {route.step: "first"}
            assert isinstance(fleet.journal, SqliteJournal)
            [arm] = arms_of(fleet.journal.outcomes.rows("", "agent"), ["first"])
            assert (arm.num_rewards, arm.sum) == (1, 0.25)

    asyncio.run(work())


def test_forgetting_is_bounded(tmp_path: Path) -> None:
    """The newest outcomes of a tenant are kept, and what is older no longer counts."""
    outcomes = SqliteOutcomes(tmp_path / "outcomes.db", window=3)
    for number, reward in enumerate([1.0, 1.0, 0.0, 0.0, 0.0]):
        outcomes.reward(Choice(tenant="", kind="agent", run=f"r{number}", step="s", arm="a"), reward, "mark")
    [arm] = arms_of(outcomes.rows("", "agent"), ["a"])
    assert (arm.num_pulls, arm.sum, outcomes.turn("", "agent")) == (3, 0.0, 6)
    outcomes.close()


def test_marks_come_over_http(tmp_path: Path) -> None:
    """A key's run is marked by POST /v1/runs/ID/mark for the key's tenant; a wrong mark is 400 and names the field."""
    with run_server(tmp_path, has_keys=True) as server, server.client(ALICE) as alice:
        run = alice.post("/v1/runs", json={"task": "echo it"}).json()["id"]
        ended(alice, run)
        refused = alice.post(f"/v1/runs/{run}/mark", json={"mark": "great"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "mark")
        marked = alice.post(f"/v1/runs/{run}/mark", json={"mark": "good"})
        assert (marked.status_code, marked.json()["reward"]) == (200, 1.0)
        assert list(marked.json()["step_to_agent"].values()) == ["echo"]
    [of] = SqliteOutcomes(tmp_path / "outcomes.db").all()
    assert of.tenant
    assert [(row.arm, row.quality) for row in of.rows] == [("echo", 1.0)]


def test_outcomes_of_another_kind_are_told(tmp_path: Path) -> None:
    """Rows that hold what was never written are an error of PyAgent's, which names the file."""
    path = tmp_path / "outcomes.db"
    outcomes = SqliteOutcomes(path)
    outcomes.chosen(Choice(tenant="", kind="agent", run="one", step="task", arm="a"))
    outcomes.close()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE choices SET arm = x'ff'")
    reads: list[Callable[[], object]] = [
        lambda: outcomes.rows("", "agent"),
        outcomes.all,
        lambda: outcomes.of_run("", "one"),
    ]
    for read in reads:
        with pytest.raises(RequestError, match=r"outcomes cannot be kept in .*outcomes\.db"):
            read()
    outcomes.close()
