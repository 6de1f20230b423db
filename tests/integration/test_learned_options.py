"""Strategies, prompts, links and attempts that are chosen by outcomes, in whole runs; and what the commands show."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from support.command_line import fresh_environment, pyagent
from support.fleets import Custom, ask, echo

from pyagent.core.chain import Chain
from pyagent.core.chain.settings import LinkSettings
from pyagent.core.config import load_settings
from pyagent.core.errors import AgentError, ConfigError, Decline, PyAgentError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import MemoryJournal
from pyagent.core.fleet.step_options import Repeat
from pyagent.core.fleet.steps import Step
from pyagent.core.learning.outcomes import Choice
from pyagent.core.learning.prompts import PromptVariant
from pyagent.core.learning.sequential import verdict
from pyagent.core.messages import ChatRequest, Message
from pyagent.fleet import Fleet
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.infrastructure.storage.outcomes import SqliteOutcomes
from pyagent.logic.agents.reasoning import ReasoningAgent
from pyagent.testing import ScriptedBackend

ANSWER = "Steps.\nAnswer: 4"
SHORT = {"own": "", "short": "{system} Be brief."}


def _answer(request: ChatRequest) -> str:
    return ANSWER


def _fleet(
    folder: Path, learning: Mapping[str, object], *agents: Agent, backend: object = None, journal: object = None
) -> Fleet:
    loaded = load_settings(overrides={f"learning.{name}": value for name, value in learning.items()})
    return Fleet(
        loaded.settings,
        backend=backend or ScriptedBackend(_answer),  # type: ignore[arg-type]
        agents=agents,
        tools=(),
        journal=journal or SqliteJournal(folder),  # type: ignore[arg-type]
    )


async def _events(fleet: Fleet, task: str | list[Step] = "How much is 2 + 2?", **options: object) -> list[ev.Event]:
    seen: list[ev.Event] = []
    try:
        async for event in fleet.run(task, **options):  # type: ignore[arg-type]
            seen.append(event)  # noqa: PERF401 - what came before an error counts
    except PyAgentError:
        pass
    return seen


def _options(events: list[ev.Event]) -> list[tuple[str, str, str]]:
    return [(each.kind, each.option, each.how) for each in events if isinstance(each, ev.OptionChosen)]


def _outcomes(fleet: Fleet) -> SqliteOutcomes:
    assert isinstance(fleet.journal, SqliteJournal)
    return fleet.journal.outcomes


# -- strategies -------------------------------------------------------------------------------------------------------


def test_strategy_that_earns_more_is_taken_more(tmp_path: Path) -> None:
    """Of two strategies named in the settings the one whose runs are marked good is taken in most; costs are known."""

    async def work() -> None:
        learning = {"policy": "thompson", "strategies": ["chain-of-thought", "self-consistency"]}
        async with _fleet(tmp_path, learning, ReasoningAgent()) as fleet:
            taken: list[str] = []
            for _ in range(14):
                events = await _events(fleet)
                [(kind, option, how)] = _options(events)
                assert (kind, how) == ("strategy", "learned")
                output = next(each.output for each in events if isinstance(each, ev.RunFinished))
                assert getattr(output, "strategy", "") == option
                marked = fleet.mark(events[0].run, "good" if option == "self-consistency" else "bad")
                assert marked.choices == {"strategy/reasoning": option}
                taken.append(option)
            assert taken.count("self-consistency") > 9
            rows = _outcomes(fleet).rows("", "strategy/reasoning")
            assert {row.state for row in rows} == {"numbers"}
            assert all(row.seconds and row.tokens for row in rows)

    asyncio.run(work())


def test_strategy_that_a_task_names_is_not_exchanged(tmp_path: Path) -> None:
    """Arguments decide before anything learned; without the setting nothing is recorded."""

    async def work() -> None:
        learning = {"policy": "ucb1", "strategies": ["self-consistency", "reflection"]}
        async with _fleet(tmp_path, learning, ReasoningAgent()) as fleet:
            task = Task(text="2 + 2?", arguments={"strategy": "chain-of-thought"})
            assert _options(await _events(fleet, task)) == []  # type: ignore[arg-type]
            assert _options(await _events(fleet, is_private=True)) == []
        async with _fleet(tmp_path, {"policy": "ucb1"}, ReasoningAgent()) as fleet:
            assert _options(await _events(fleet)) == []
            assert _outcomes(fleet).all() == []

    asyncio.run(work())


def test_misspelt_strategies_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the settings leave an agent fewer than two strategies there is one warning, with those it has."""

    async def work() -> None:
        learning = {"policy": "ucb1", "strategies": ["chain-of-thought", "self_consistency"]}
        async with _fleet(tmp_path, learning, ReasoningAgent()) as fleet:
            assert [_options(await _events(fleet)) for _ in range(2)] == [[], []]

    asyncio.run(work())
    [warning] = [record.message for record in caplog.records if "learning.strategies" in record.message]
    assert "self-consistency" in warning


def test_votes_are_rewards_where_they_count(tmp_path: Path) -> None:
    """With `vote` among the rewards the agreement of samples is one, which a mark replaces and a vote does not."""

    async def work() -> None:
        replies = ["Answer: 4", "Answer: 4", "Answer: 5", "Answer: 4"]
        backend = ScriptedBackend(lambda request: replies[(request.sampling.seed or 0) % 4])
        learning = {"policy": "ucb1", "strategies": ["self-consistency", "debate"], "rewards": ["vote"]}
        async with _fleet(tmp_path, learning, ReasoningAgent(), backend=backend) as fleet:
            events = await _events(fleet)
            run = events[0].run
            [row] = _outcomes(fleet).rows("", "strategy/reasoning")
            assert (row.arm, row.quality) == ("self-consistency", 0.8)
            fleet.mark(run, 0.25)
            [choice] = _outcomes(fleet).of_run("", run)
            _outcomes(fleet).reward(choice, 1.0, "vote")
            assert _outcomes(fleet).rows("", "strategy/reasoning")[0].quality == 0.25

    asyncio.run(work())


# -- prompts ----------------------------------------------------------------------------------------------------------


async def _talk(context: Context, task: Task) -> object:
    return await context.generate(task.text, system="You are an agent.")


def test_variant_is_what_the_model_is_told_and_stays_with_the_run(tmp_path: Path) -> None:
    """The system prompt of all calls is the variant's, equal for an agent's calls in a run; runs differ by id."""

    async def twice(context: Context, task: Task) -> object:
        await _talk(context, task)
        return await context.complete([Message("system", "You are an agent."), Message("user", "again")])

    async def work() -> None:
        backend = ScriptedBackend(_answer)
        learning = {"prompts": {"talk": SHORT}}
        async with _fleet(tmp_path, learning, Custom("talk", twice), backend=backend) as fleet:
            seen: dict[str, int] = {"own": 0, "short": 0}
            for _ in range(12):
                backend.requests.clear()
                [(_, option, how)] = _options(await _events(fleet))
                told = {request.messages[0].text for request in backend.requests}
                assert told == {"You are an agent." + (" Be brief." if option == "short" else "")}
                assert how == "test"
                seen[option] += 1
            assert min(seen.values()) > 0

    asyncio.run(work())


def test_better_variant_is_given_to_all_once_the_test_says_so(tmp_path: Path) -> None:
    """After enough marks one variant is better, and from then on every run has it and nothing more is recorded."""

    async def work() -> None:
        learning = {"prompts": {"talk": SHORT}}
        async with _fleet(tmp_path, learning, Custom("talk", _talk)) as fleet:
            for _ in range(60):
                events = await _events(fleet)
                [chosen] = [each for each in events if isinstance(each, ev.OptionChosen)]
                if "better" in chosen.reason:
                    break
                fleet.mark(events[0].run, "good" if chosen.option == "short" else "bad")
            num_rows = len(_outcomes(fleet).rows("", "prompt/talk"))
            assert 5 < num_rows < 60
            assert [_options(await _events(fleet)) for _ in range(5)] == [[("prompt", "short", "test")]] * 5
            assert len(_outcomes(fleet).rows("", "prompt/talk")) == num_rows

    asyncio.run(work())


def test_all_agents_of_a_name_in_a_run_have_one_variant(tmp_path: Path) -> None:
    """What is told in the middle of a run does not change it: ten spawned agents are one outcome, of one text."""

    arms = [PromptVariant(name=name, text=text).arm for name, text in SHORT.items()]

    async def many(context: Context, task: Task) -> object:
        for number in range(10):
            await context.spawn("talk", f"part {number}")
            [choice] = _outcomes(fleet).of_run("", context.run.id)  # one for all of them
            another = next(arm for arm in arms if arm != choice.arm)
            for other in range(40):  # this variant becomes the worse one
                arm = choice.arm if other % 2 else another
                taken = Choice(tenant="", kind=choice.kind, run=f"x{number}-{other}", step="", arm=arm)
                _outcomes(fleet).reward(taken, float(other % 2 == 0), "mark")
        return ""

    fleet = _fleet(tmp_path, {"prompts": {"talk": SHORT}}, Custom("many", many), Custom("talk", _talk))

    async def work() -> None:
        async with fleet:
            events = await _events(fleet, "x", agent="many")
            options = _options(events)
            assert len(options) == 10
            assert len(set(options)) == 1
            assert verdict(_outcomes(fleet).rows("", "prompt/talk"), arms).better.partition("#")[0] != options[0][1]

    asyncio.run(work())


def test_resumed_run_has_its_variant_though_the_settings_changed(tmp_path: Path) -> None:
    """The text stands in the journal: a run that goes on tells its models the same, and a check finds no change."""

    async def fail_once(context: Context, task: Task) -> object:
        said = await _talk(context, task)
        if not (tmp_path / "mended").exists():
            raise AgentError("broken", agent="talk")
        return said

    async def work() -> None:
        agent, backend = Custom("talk", fail_once), ScriptedBackend(_answer)
        first = {"talk": {"one": "First. {system}", "two": "Second. {system}"}}
        async with _fleet(tmp_path, {"prompts": first}, agent, backend=backend) as fleet:
            run = (await _events(fleet))[0].run
        (tmp_path / "mended").touch()
        async with _fleet(tmp_path, {}, agent, backend=backend) as fleet:
            assert [event async for event in fleet.resume(run)]
            assert len(backend.requests) == 1
            report = await fleet.check_replay(run)
            assert (report.difference, report.num_calls) == ("", 1)

    asyncio.run(work())


def test_prompts_can_be_learned_by_the_policy(tmp_path: Path) -> None:
    """With `prompts_by = "policy"` a bandit takes the better variant in most runs."""

    async def work() -> None:
        learning = {"policy": "thompson", "prompts": {"talk": SHORT}, "prompts_by": "policy"}
        async with _fleet(tmp_path, learning, Custom("talk", _talk)) as fleet:
            taken: list[str] = []
            for _ in range(14):
                events = await _events(fleet)
                [(_, option, how)] = _options(events)
                assert how == "learned"
                fleet.mark(events[0].run, "good" if option == "own" else "bad")
                taken.append(option)
            assert taken.count("own") > 9

    asyncio.run(work())


# -- links ------------------------------------------------------------------------------------------------------------


def test_link_that_earns_more_is_asked_first(tmp_path: Path) -> None:
    """Of neighbours with weights the one whose runs are marked good gets most runs; a run stays with one link."""

    async def work() -> None:
        links = [ScriptedBackend(_answer, name=name) for name in ("one", "two")]
        own = [LinkSettings(use=link.name, weight=1.0) for link in links]
        chain = Chain(links, settings=own, private=["one", "two"])
        learning = {"policy": "thompson", "backends": True}
        async with _fleet(tmp_path, learning, Custom("ask", ask), backend=chain) as fleet:
            taken: list[str] = []
            for _ in range(14):
                events = await _events(fleet)
                [backend] = {each.backend for each in events if isinstance(each, ev.ModelCalled)}
                assert fleet.mark(events[0].run, "good" if backend == "two" else "bad").choices == {"backend": backend}
                taken.append(backend)
            assert taken.count("two") > 9
            assert all(row.seconds for row in _outcomes(fleet).rows("", "backend"))
            num_rows = len(_outcomes(fleet).rows("", "backend"))
            assert isinstance((await _events(fleet, is_private=True))[-1], ev.RunFinished)
            [delta async for delta in chain.chat(ChatRequest(messages=[Message("user", "no run")]))]
            assert len(_outcomes(fleet).rows("", "backend")) == num_rows

    asyncio.run(work())


# -- attempts and checks ----------------------------------------------------------------------------------------------


async def _fail(context: Context, task: Task) -> object:
    raise AgentError("broken", agent=context.agent)


def _three(first: object = _fail) -> list[Agent]:
    return [
        Custom("first", first, score=lambda task: 0.9),  # type: ignore[arg-type]
        Custom("second", _fail, score=lambda task: 0.89),
        Custom("third", echo, score=lambda task: 0.88),
    ]


@pytest.mark.parametrize(
    ("policy", "least"),
    [("q_learning", 4), ("sarsa", 4), ("double_q", 4), ("td_lambda", 4), ("ucb1", 4), ("actor_critic", 3)],
)
def test_task_goes_to_another_agent_when_one_fails(tmp_path: Path, policy: str, least: int) -> None:
    """With attempts a run succeeds by the agent that can, and of its last eight runs many begin with that one.

    A uniform choice would in 2.7 of them; the actor moves by small steps.
    """

    async def work() -> None:
        async with _fleet(tmp_path, {"policy": policy, "attempts": 3}, *_three()) as fleet:
            routes: list[list[str]] = []
            for _ in range(24):
                events = await _events(fleet, "x")
                assert isinstance(events[-1], ev.RunFinished)
                routes.append([each.agent for each in events if isinstance(each, ev.RouteChosen)])
                fleet.mark(events[0].run, "good")
            assert all(len(set(route)) == len(route) and route[-1] == "third" for route in routes)
            rows = _outcomes(fleet).rows("", "agent")
            assert {row.attempt for row in rows} > {1}
            assert {row.state.partition(" after ")[0] for row in rows} == {"first"}
            assert all((row.attempt == 1) == (row.state == "first") for row in rows)
            assert sum(route == ["third"] for route in routes[-8:]) >= least

    asyncio.run(work())


def test_mark_is_for_the_agent_that_gave_the_result(tmp_path: Path) -> None:
    """The one that failed keeps its 0, also where the next was the only one left."""

    async def work() -> None:
        agents = [_three()[0], Custom("far", echo, score=lambda task: 0.6)]
        agents.append(Custom("near", _fail, score=lambda task: 0.9))
        async with _fleet(tmp_path, {"policy": "q_learning", "attempts": 3}, *agents) as fleet:
            events = await _events(fleet, "x")
            assert isinstance(events[-1], ev.RunFinished)
            fleet.mark(events[0].run, "good")
            rows = _outcomes(fleet).rows("", "agent")
            assert [(row.attempt, row.quality) for row in rows] == [(1, 0.0), (2, 0.0), (3, 1.0)]
            assert (rows[2].arm, rows[2].state) == ("far", "first after first, near")

    asyncio.run(work())


def test_agent_that_declines_is_not_judged_by_the_next_ones_failure(tmp_path: Path) -> None:
    """A failure is the agent's own that failed, not the one's that was chosen before it and declined."""

    async def decline(context: Context, task: Task) -> object:
        raise Decline("not mine")

    async def work() -> None:
        agents = [_three(decline)[0], _three()[1]]
        async with _fleet(tmp_path, {"policy": "ucb1"}, *agents) as fleet:
            events = await _events(fleet, "x")
            assert [each.agent for each in events if isinstance(each, ev.RouteChosen)] == ["first", "second"]
            assert [(row.arm, row.quality) for row in _outcomes(fleet).rows("", "agent")] == [("first", None)]

    asyncio.run(work())


def test_attempts_end_at_their_number(tmp_path: Path) -> None:
    """With two attempts and two agents that fail the run fails, by the last one's error; with one nothing is tried."""

    async def work(attempts: int) -> list[str]:
        folder = tmp_path / str(attempts)
        async with _fleet(folder, {"policy": "ucb1", "attempts": attempts}, *_three()[:2]) as fleet:
            events = await _events(fleet, "x")
            assert isinstance(events[-1], ev.RunFailed)
            return [each.agent for each in events if isinstance(each, ev.RouteChosen)]

    assert asyncio.run(work(1)) == ["first"]
    assert asyncio.run(work(2)) == ["first", "second"]
    assert asyncio.run(work(9)) == ["first", "second"]


def test_loop_that_ends_rewards_what_met_its_condition(tmp_path: Path) -> None:
    """Each round's choice earns 1 where the loop's condition is met after it, else 0; not where checks do not count."""
    counts: list[int] = []

    async def count(context: Context, task: Task) -> object:
        counts.append(1)
        return {"ok": len(counts) >= 3}

    step = Step(name="fix", task=Task(text="x"), repeat=Repeat(max=5, until="fix.ok"))

    async def work(rewards: list[str]) -> list[float | None]:
        counts.clear()
        agents = [Custom(name, count, score=lambda task: 0.9) for name in ("a", "b")]
        async with _fleet(tmp_path / "-".join(rewards), {"policy": "ucb1", "rewards": rewards}, *agents) as fleet:
            await _events(fleet, [step])
            return [row.quality for row in _outcomes(fleet).rows("", "agent")]

    assert asyncio.run(work(["check"])) == [0.0, 0.0, 1.0]
    assert asyncio.run(work(["vote"])) == [None, None, None]


# -- the file, settings and commands ----------------------------------------------------------------------------------


def test_outcomes_of_the_version_before_are_kept(tmp_path: Path) -> None:
    """A file that the release before wrote is brought to this one's tables, with its marks."""
    path = tmp_path / "outcomes.db"
    with closing(sqlite3.connect(path)) as old, old:
        old.execute(
            "CREATE TABLE outcomes (tenant TEXT NOT NULL, kind TEXT NOT NULL, turn INTEGER NOT NULL, arm TEXT NOT NULL,"
            " run TEXT NOT NULL, step TEXT NOT NULL, reward REAL, PRIMARY KEY (tenant, kind, turn)) WITHOUT ROWID"
        )
        old.execute("CREATE UNIQUE INDEX outcome_of_step ON outcomes (tenant, kind, run, step)")
        old.execute("INSERT INTO outcomes VALUES ('t', 'agent', 1, 'math', 'r-1', 's', 0.75)")
        old.execute("INSERT INTO outcomes VALUES ('t', 'agent', 2, 'code', 'r-2', 's', NULL)")
        old.execute("PRAGMA user_version = 1")
    outcomes = SqliteOutcomes(path)
    rows = outcomes.rows("t", "agent")
    assert [(row.arm, row.quality, row.judged) for row in rows] == [("math", 0.75, 1), ("code", None, 0)]
    outcomes.reward(Choice(tenant="t", kind="agent", run="r-2", step="s", arm="code"), 1.0, "mark")
    assert [row.judged for row in outcomes.rows("t", "agent")] == [1, 2]
    outcomes.close()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"prompts": {"talk": {"one": "x"}}}, "two variants"),
        ({"prompts": {"talk": {"a#b": "x", "c": "y"}}}, "without #"),
        ({"prompts": {"talk": {"a": {"text": "x", "wait": 1}, "b": "y"}}}, "text and weight"),
        ({"prompts": {"talk": {"a": {"weight": 0}, "b": "y"}}}, "expected a number above 0, at most 1000"),
        ({"prompts": {"talk": {"a": "x" * 20_001, "b": "y"}}}, "at most 20,000"),
        ({"objectives": {"beauty": {}}}, "quality, seconds, usd, tokens"),
        ({"objectives": {"quality": {"at_most": 1}}}, "at_least"),
        ({"objectives": {"quality": {"weight": 0}}}, "weight greater than 0"),
        ({"objectives": {}}, "one of quality"),
        ({"rewards": ["applause"]}, "check and vote"),
        ({"attempts": 0}, "expected a whole number from 1 to 10"),
        ({"policy": "luck"}, "q_learning"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(given: dict[str, object], text: str) -> None:
    """Each mistake is named, with what is expected."""
    with pytest.raises(ConfigError, match=text) as refused:
        load_settings(overrides={f"learning.{key}": value for key, value in given.items()})
    assert len(str(refused.value).splitlines()) == 1


def test_without_a_journal_on_disk_nothing_is_learned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A fleet in memory says so once, and its agents have their own prompts."""

    async def work() -> list[tuple[str, str, str]]:
        learning = {"prompts": {"talk": SHORT}}
        async with _fleet(tmp_path, learning, Custom("talk", _talk), journal=MemoryJournal()) as fleet:
            return _options(await _events(fleet))

    assert asyncio.run(work()) == []
    assert "not on disk" in caplog.text


def test_outcomes_that_cannot_be_written_end_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the file is no database, runs go on as without learning, with a warning."""

    async def work() -> list[ev.Event]:
        learning = {"policy": "ucb1", "prompts": {"third": SHORT}, "attempts": 3}
        (tmp_path / "outcomes.db").write_text("no database, but long enough to be read as one\n" * 50)
        async with _fleet(tmp_path, learning, *_three(echo)) as fleet:
            return await _events(fleet, "x")

    assert isinstance(asyncio.run(work())[-1], ev.RunFinished)
    assert "outcomes cannot be kept" in caplog.text


def test_commands_show_arms_and_tests(tmp_path: Path) -> None:
    """`runs show` says what was chosen and why; `runs stats --learned` has arms, means, the front and the test."""
    env = fresh_environment(tmp_path)
    (tmp_path / "pyagent.toml").write_text(
        '[learning]\npolicy = "q_learning"\n[learning.prompts.math]\nown = ""\nshort = "Be brief."\n'
        "[learning.objectives]\nquality = { weight = 1, at_least = 0.2 }\nseconds = { weight = 0.5, scale = 5 }\n"
    )
    config = ["--config", str(tmp_path / "pyagent.toml")]
    run = pyagent("run", "17*23", "--json", *config, env=env)
    assert run.returncode == 0, run.stderr
    name = json.loads(run.stdout.splitlines()[0])["run"]
    shown = pyagent("runs", "show", name, *config, env=env)
    assert "by weight among own, short: tested" in shown.stdout
    marked = pyagent("runs", "mark", name, "0.8", *config, env=env)
    assert "with 0.8" in marked.stdout
    assert "prompt/math" in marked.stdout
    stats = json.loads(pyagent("runs", "stats", "--learned", "--json", *config, env=env).stdout)
    assert stats["objectives"] == {"quality": "maximise", "seconds": "minimise"}
    known = [arm for arm in stats["arms"] if arm["marks"]]
    assert [(arm["kind"], arm["means"]["quality"], arm["is_on_front"]) for arm in known] == [("prompt/math", 0.8, True)]
    [test] = stats["tests"]
    assert (test["agent"], test["variants"], test["p"], test["is_over"]) == ("math", ["own", "short"], 1.0, False)
    table = pyagent("runs", "stats", "--learned", *config, env=env).stdout
    assert "math: own and short: always-valid p 1 of 0 pairs; goes on" in table
