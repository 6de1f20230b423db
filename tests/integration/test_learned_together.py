"""Agents, prompts, strategies and links that are learned in one run: the state of a choice, and whose a reward is."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from support.command_line import fresh_environment, pyagent
from support.fleets import Custom, echo

from pyagent.core.chain import Chain
from pyagent.core.chain.settings import LinkSettings
from pyagent.core.config import load_settings
from pyagent.core.errors import AgentError, Decline, PyAgentError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.step_options import Repeat
from pyagent.core.fleet.steps import Step
from pyagent.core.learning.outcomes import Outcome
from pyagent.core.messages import ChatRequest
from pyagent.fleet import Fleet
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import ScriptedBackend

PROMPTS = {"own": "", "terse": "{system} Be brief."}
STRATEGIES = ["quick", "thorough"]
CHANCES = {("own", "quick"): 0.7, ("own", "thorough"): 0.3, ("terse", "quick"): 0.2, ("terse", "thorough"): 0.95}
BEST = ("terse", "thorough", "two")


async def _solve(context: Context, task: Task) -> str:
    strategy = await context.learned_strategy(STRATEGIES, situation="sums")
    await context.generate(task.text, system="You are an agent.")
    return strategy or "none"


def _said(request: ChatRequest) -> str:
    return "rest" if request.messages[-1].text.endswith("Specialist:") else "said"


def _chain() -> Chain:
    links = [ScriptedBackend(_said, name=name) for name in ("one", "two")]
    return Chain(links, settings=[LinkSettings(use=link.name, weight=1.0) for link in links])


def _fleet(folder: Path, learning: Mapping[str, object], *agents: Agent) -> Fleet:
    loaded = load_settings(overrides={f"learning.{name}": value for name, value in learning.items()})
    backend, journal = _chain(), SqliteJournal(folder)
    return Fleet(loaded.settings, backend=backend, agents=agents, tools=(), journal=journal)


async def _events(fleet: Fleet, task: str | list[Step] = "2 + 2") -> list[ev.Event]:
    seen: list[ev.Event] = []
    try:
        async for event in fleet.run(task):
            seen.append(event)  # noqa: PERF401 - what came before an error counts
    except PyAgentError:
        pass
    return seen


def _rows(fleet: Fleet, kind: str) -> list[Outcome]:
    assert isinstance(fleet.journal, SqliteJournal)
    return fleet.journal.outcomes.rows("", kind)


def _learning(**more: object) -> dict[str, object]:
    prompts = {"solve": PROMPTS}
    return {"strategies": STRATEGIES, "backends": True, "prompts": prompts, "prompts_by": "policy"} | more


@pytest.mark.parametrize("policy", ["thompson", "q_learning"])
def test_best_combination_is_found_where_choices_depend_on_each_other(tmp_path: Path, policy: str) -> None:
    """Of eight combinations of prompt, strategy and link the best one has most of the last runs, from marks alone.

    The prompt that is better with one strategy is worse with the other: which is best is known for both together.
    """

    async def work() -> list[tuple[str, ...]]:
        random, taken = Random(11), list[tuple[str, ...]]()
        learning = _learning(policy=policy, together=True, seed=3)
        async with _fleet(tmp_path, learning, Custom("solve", _solve)) as fleet:
            for _ in range(100):
                events = await _events(fleet)
                options = {each.kind: each.option for each in events if isinstance(each, ev.OptionChosen)}
                [link] = {each.backend for each in events if isinstance(each, ev.ModelCalled)}
                prompt, strategy = options["prompt"], options["strategy"]
                chance = CHANCES[prompt, strategy] - 0.3 * (link == "one")
                fleet.mark(events[0].run, "good" if random.random() < chance else "bad")
                taken.append((prompt, strategy, link))
            strategies = {row.state.partition("#")[0] for row in _rows(fleet, "strategy/solve")}
            assert strategies == {"sums with prompt own", "sums with prompt terse"}
            links = {row.state.partition("#")[0] for row in _rows(fleet, "backend")}
            assert links == {"solve with prompt own", "solve with prompt terse"}
            assert all(
                row.state.endswith(tuple(f", strategy {each}" for each in STRATEGIES))
                for row in _rows(fleet, "backend")
            )
        return taken

    taken = asyncio.run(work())
    assert Counter(taken[-40:]).most_common(1)[0][0] == BEST
    assert taken[-40:].count(BEST) >= 20


# -- whose a reward is ------------------------------------------------------------------------------------------------


async def _give_up(context: Context, task: Task) -> str:
    await _solve(context, task)
    raise AgentError("broken", agent=context.agent)


async def _decline(context: Context, task: Task) -> str:
    await _solve(context, task)
    raise Decline("not mine")


@pytest.mark.parametrize(("first", "own"), [(_give_up, 0.0), (_decline, None)])
def test_mark_is_not_for_what_an_agent_had_that_gave_the_task_up(
    tmp_path: Path, first: object, own: float | None
) -> None:
    """Its prompt and its strategy keep what they earned by themselves; those of the agent after it get the mark."""

    async def work() -> None:
        agents = [
            Custom("first", first, score=lambda task: 0.95),  # type: ignore[arg-type]
            Custom("solve", _solve, score=lambda task: 0.8),
        ]
        prompts = {"first": PROMPTS, "solve": PROMPTS}
        async with _fleet(tmp_path, _learning(policy="q_learning", attempts=2, prompts=prompts), *agents) as fleet:
            events = await _events(fleet)
            assert isinstance(events[-1], ev.RunFinished)
            marked = fleet.mark(events[0].run, 0.9)
            assert sorted(marked.choices) == ["backend", "prompt/solve", "strategy/solve"]
            earned = {kind: [row.quality for row in _rows(fleet, kind)] for kind in marked.choices}
            assert all(qualities == [0.9] for qualities in earned.values())
            assert [row.quality for row in _rows(fleet, "strategy/first")] == [own]
            assert [row.quality for row in _rows(fleet, "prompt/first")] == [own]

    asyncio.run(work())


def test_failure_is_not_for_what_another_agent_had(tmp_path: Path) -> None:
    """The agent that declined before is not judged by the failure of the next one."""

    async def work() -> None:
        agents = [
            Custom("first", _decline, score=lambda task: 0.95),
            Custom("solve", _give_up, score=lambda task: 0.8),
        ]
        async with _fleet(tmp_path, _learning(policy="q_learning"), *agents) as fleet:
            assert isinstance((await _events(fleet))[-1], ev.RunFailed)
            assert [row.quality for row in _rows(fleet, "strategy/first")] == [None]
            assert [row.quality for row in _rows(fleet, "strategy/solve")] == [0.0]

    asyncio.run(work())


def test_check_is_for_the_agent_that_passed_it(tmp_path: Path) -> None:
    """In a loop whose agents failed and handed the task on, the last one and its strategy earn what the check gives."""

    async def solved(context: Context, task: Task) -> object:
        await _solve(context, task)
        return {"ok": True}

    async def work(number: int) -> None:
        agents = [
            Custom(f"tried{number}", _give_up, score=lambda task: 0.9),
            Custom(f"used{number}", _give_up, score=lambda task: 0.89),
            Custom("solve", solved, score=lambda task: 0.88),
        ]
        learning = _learning(policy="ucb1", attempts=3)
        step = Step(name="fix", task=Task(text="x"), repeat=Repeat(max=2, until="fix.ok"))
        async with _fleet(tmp_path / str(number), learning, *agents) as fleet:
            assert isinstance((await _events(fleet, [step]))[-1], ev.RunFinished)
            assert [row.quality for row in _rows(fleet, "agent")] == [0.0, 0.0, 1.0]
            assert [row.quality for row in _rows(fleet, "strategy/solve")] == [1.0]
            assert [row.quality for row in _rows(fleet, f"strategy/tried{number}")] == [0.0]

    for number in range(4):
        asyncio.run(work(number))


# -- agents that can stand in for each other --------------------------------------------------------------------------


def test_agents_that_are_named_stand_in_for_each_other(tmp_path: Path) -> None:
    """Whatever their scores, and without one; not an agent that says no, and none that the settings do not name."""

    async def work() -> None:
        agents = [
            Custom("high", echo, score=lambda task: 0.9),
            Custom("low", echo, score=lambda task: 0.2),
            Custom("unscored", echo),
            Custom("no", echo, score=lambda task: 0.0),
            Custom("other", echo, score=lambda task: 0.8),
        ]
        learning = {"policy": "thompson", "agents": ["high", "low", "unscored", "no"]}
        async with _fleet(tmp_path, learning, *agents) as fleet:
            taken: list[str] = []
            for _ in range(24):
                events = await _events(fleet)
                route = next(each for each in events if isinstance(each, ev.RouteChosen))
                assert route.how == "learned"
                assert route.score == {"high": 0.9, "low": 0.2, "unscored": None}[route.agent]
                fleet.mark(events[0].run, "good" if route.agent == "unscored" else "bad")
                taken.append(route.agent)
            assert set(taken) == {"high", "low", "unscored"}
            assert taken[-10:].count("unscored") >= 6
            assert {row.state for row in _rows(fleet, "agent")} == {"high"}

    asyncio.run(work())


def test_agents_without_scores_are_chosen_among_where_a_model_routes(tmp_path: Path) -> None:
    """A route that no score made is to one of them, too; one to another agent stays."""

    async def work(agents: list[str]) -> ev.RouteChosen:
        fleet = _fleet(
            tmp_path / str(len(agents)), {"policy": "ucb1", "agents": agents}, Custom("a", echo), Custom("rest", echo)
        )
        async with fleet:
            return next(each for each in await _events(fleet) if isinstance(each, ev.RouteChosen))

    assert asyncio.run(work(["a", "rest"])).how == "learned"
    route = asyncio.run(work(["a"]))
    assert (route.agent, route.how) == ("rest", "model")


def test_agent_that_is_misspelt_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name in `learning.agents` that no agent has is told with the nearest one."""
    _fleet(tmp_path, {"policy": "ucb1", "agents": ["solv"]}, Custom("solve", _solve))
    assert "learning.agents has a place for 'solv', which is no agent here; did you mean 'solve'?" in caplog.text


# -- what the commands show -------------------------------------------------------------------------------------------


def test_command_shows_combinations_and_situations(tmp_path: Path) -> None:
    """`runs stats --learned` has a row for each situation and one for each combination, the best first."""
    env = fresh_environment(tmp_path)
    (tmp_path / "pyagent.toml").write_text(
        '[learning]\npolicy = "thompson"\ntogether = true\n[learning.prompts.solve]\nown = ""\n'
        'terse = "{system} Be brief."\n[learning.objectives]\nquality = { at_least = 0.3 }\n'
    )

    async def work() -> None:
        learning = _learning(policy="thompson", together=True)
        async with _fleet(tmp_path / "data/journal", learning, Custom("solve", _solve)) as fleet:
            for _ in range(16):
                events = await _events(fleet)
                options = {each.kind: each.option for each in events if isinstance(each, ev.OptionChosen)}
                fleet.mark(events[0].run, 0.75 if options["prompt"] == "terse" else 0.25)

    asyncio.run(work())
    stats = ["runs", "stats", "--learned", "--config", str(tmp_path / "pyagent.toml")]
    told = json.loads(pyagent(*stats, "--json", env=env).stdout)
    assert told["together"] is True
    strategies = [arm for arm in told["arms"] if arm["kind"] == "strategy/solve"]
    assert [(arm["situation"], arm["arm"]) for arm in strategies] == [
        (f"sums with prompt {prompt}", strategy) for prompt in PROMPTS for strategy in STRATEGIES
    ]
    assert sum(arm["chosen"] for arm in strategies) == 16
    assert {arm["means"].get("quality") for arm in strategies if "terse" in arm["situation"]} <= {0.75, None}
    best = told["combinations"][0]
    assert best["options"].startswith(("backend one, prompt/solve terse, ", "backend two, prompt/solve terse, "))
    assert (best["mean"], best["is_on_front"], best["breaks"]) == (0.75, True, "")
    assert sum(row["runs"] for row in told["combinations"]) == 16
    table = pyagent(*stats, env=env).stdout
    assert table.startswith("policy thompson, together; maximise quality (weight 1)\n")
    assert "strategy/solve (sums with prompt terse)" in table
    assert f" 0.75  yes   {best['options']}\n" in table
