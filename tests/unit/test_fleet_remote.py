"""Agents elsewhere: the same events, errors and results as beside the run, and nothing done twice."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.elsewhere import Elsewhere
from support.fleets import Custom, events_of

import pyagent.fleet
from pyagent.core.config import load_settings
from pyagent.core.errors import AgentError, ConfigError, Decline, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.confidence import ConfidencePolicy, DoubtAct
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.executor import ExecutorFactory
from pyagent.core.fleet.file_access import FileAccess, current_access, readable_path
from pyagent.core.fleet.journal import MemoryJournal
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.fleet.remote.calls import RunCalls
from pyagent.core.fleet.remote.context import RemoteContext
from pyagent.core.fleet.remote.messages import AgentCall
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import ChatRequest
from pyagent.core.plugin_options import plugin_options
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Settings
from pyagent.testing import Reply, ScriptedBackend

pytestmark = pytest.mark.anyio


class Named(msgspec.Struct, frozen=True):
    """A form to ask for."""

    name: str


class Arguments(msgspec.Struct, frozen=True):
    """A tool's."""

    text: str


def reply(request: ChatRequest) -> Reply | str:
    text = request.messages[-1].text
    if "wrong" in text:
        return "no JSON"
    return '{"name": "Ada"}' if "name" in text or "does not fit" in text else f"an answer to {text} in words"


def fleet_of(executor: Elsewhere | None, *agents: Any, effects: list[str] | None = None, **limits: Any) -> Fleet:
    async def note(arguments: Arguments) -> str:
        effects.append(arguments.text) if effects is not None else None
        await asyncio.sleep(0.002)
        return f"noted {arguments.text}"

    return Fleet(
        ScriptedBackend(reply),
        agents,
        [FleetTool("note", "notes", Arguments, note)],
        limits=FleetLimits(**limits),
        executor=executor,
    )


def plain(events: list[ev.Event]) -> list[object]:
    """Events without their times."""
    return [_without_times(msgspec.to_builtins(event, enc_hook=str)) for event in events]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(one) for key, one in value.items() if key not in _TIMES}
    return [_without_times(one) for one in value] if isinstance(value, list | tuple) else value


_TIMES = {"at", "seconds", "tokens_per_second"}


async def everything(context: Context, task: Task) -> object:
    """Use all that a context has."""
    context.progress("begins")
    with context.phase("asking"):
        named = await context.generate("a name", schema=Named)
        again = await context.retry("another name")
        wrong = await context.generate("wrong at first", schema=Named)
        said = await context.complete("a question", system="be short")
    pieces = [piece async for piece in context.stream("tell")]
    noted = [await context.call_tool("note", Arguments(text)) for text in ("one", "two")]
    tool = context.tool("note").definition()
    child = await context.spawn("child", "small work", max_tokens=10_000, timeout_seconds=50)
    parts = await context.map(lambda n: context.generate(f"part {n}"), range(3), max_concurrency=1)
    context.report(0.5, series="first")
    context.progress("ends")
    seen = (context.agent, context.step, context.depth, context.tools, context.budget.left_tokens is not None)
    return [named, again, wrong, said.text, "".join(pieces), noted, tool, child, parts, seen]


async def votes(context: Context, task: Task) -> object:
    """Tell of answers that do not agree, and of some that do."""
    return [context.reconsiders, await context.doubts(0.1), await context.doubts(0.9)]


async def small(context: Context, task: Task) -> object:
    context.progress(task.text)
    return f"child: {await context.generate(task.text)}"


def agents(**more: Any) -> tuple[Custom, Custom]:
    return Custom("all", everything, needs=("child",), **more), Custom("child", small, **more)


async def _outcome(fleet: Fleet, task: str = "go", agent: str = "all", **options: Any) -> tuple[list[Any], list[Any]]:
    async with fleet:
        events, _ = await events_of(fleet, task, agent=agent, **options)
        journal = [record.event for record in fleet.journal.replay(fleet.journal.runs()[0].run)]
    return plain(events), plain(journal)


async def test_elsewhere_events_and_journal_are_the_same() -> None:
    """A run whose agents work elsewhere shows and journals what it would beside them, in the same order."""
    here = await _outcome(fleet_of(None, *agents(), run_tokens=100_000))
    there = await _outcome(fleet_of(Elsewhere(), *agents(), run_tokens=100_000))
    assert here[0][-1]["event"] == "run_finished", here[0][-1]
    assert there == here


@pytest.mark.parametrize("act", ["retry", "mark"])
async def test_elsewhere_doubts_are_those_of_the_run(act: DoubtAct) -> None:
    """An agent elsewhere is told what its run does about doubtful answers, and they are told as beside it."""
    policy = ConfidencePolicy(act=act)
    here = await _outcome(fleet_of(None, Custom("all", votes), confidence=policy))
    there = await _outcome(fleet_of(Elsewhere(), Custom("all", votes), confidence=policy))
    assert there == here
    assert there[0][-1]["output"] == [act == "retry", act, None]
    assert [event["reason"] for event in there[0] if event["event"] == "answer_doubted"] == ["10% of the answers agree"]


@pytest.mark.parametrize("number", [1, 2, 4, 7, 11, 16, 22])
async def test_pure_agent_is_begun_again_and_nothing_is_done_twice(number: int) -> None:
    """Wherever a worker dies, a pure agent ends with the same events, and each tool ran once."""
    effects: list[str] = []
    here = await _outcome(fleet_of(None, *agents()))
    elsewhere = Elsewhere(number, number + 3)
    there = await _outcome(fleet_of(elsewhere, *agents(is_pure=True), effects=effects))
    assert there == here
    assert elsewhere.num_beginnings >= 3
    assert effects == ["one", "two"]


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), AgentError("no", agent="x"), RequestError("odd", param="text"), Decline("not mine")],
)
async def test_errors_of_agents_are_the_same(error: Exception) -> None:
    """What an agent raises elsewhere ends its step as it does beside its run."""

    async def fail(context: Context, task: Task) -> object:
        context.progress("fails")
        raise error

    here = await _outcome(fleet_of(None, Custom("all", fail)))
    assert await _outcome(fleet_of(Elsewhere(), Custom("all", fail))) == here
    assert here[0][-1]["event"] == "run_failed"


async def test_agents_elsewhere_are_held_to_budget_and_access(tmp_path: Path) -> None:
    """The run's budget and the files that it may read bind an agent elsewhere too."""
    (tmp_path / "secret").write_text("x")

    async def spend(context: Context, task: Task) -> object:
        return [await context.generate(f"part {n}") for n in range(100)]

    async def read(context: Context, task: Task) -> object:
        return readable_path(str(tmp_path / "secret")).read_text()

    events, _ = await _outcome(fleet_of(Elsewhere(), Custom("all", spend), run_tokens=1_000))
    assert events[-1]["kind"] == "BudgetError"
    access = FileAccess.below(None)
    events, _ = await _outcome(fleet_of(Elsewhere(), Custom("all", read)), file_access=access)
    assert "read no files" in events[-1]["error"]


async def test_calls_of_agents_elsewhere_have_the_runs_files() -> None:
    """What an agent elsewhere has its run do, tools and agents that it spawns, reads no more than the run may."""
    seen: list[FileAccess] = []

    async def look() -> str:
        seen.append(current_access())
        return "looked"

    async def spawned(context: Context, task: Task) -> object:
        return await context.call_tool("look", {})

    async def ask(context: Context, task: Task) -> object:
        return [await context.call_tool("look", {}), await context.spawn("child", "look")]

    fleet = Fleet(
        ScriptedBackend(reply),
        (Custom("all", ask), Custom("child", spawned)),
        [tool(effect="none")(look)],
        executor=Elsewhere(),
    )
    access = FileAccess.below(None)
    await _outcome(fleet, file_access=access)
    assert seen == [access, access]


async def test_tool_taken_by_its_name_is_called_by_the_run() -> None:
    """A tool that an agent elsewhere takes from its context runs where the run is, and is journalled there."""

    async def take(context: Context, task: Task) -> object:
        return await context.tool("note").call({"text": "three"})

    effects: list[str] = []
    events, _ = await _outcome(fleet_of(Elsewhere(), Custom("all", take), effects=effects))
    assert (events[-1]["output"], effects) == ("noted three", ["three"])
    assert "tool_called" in [event["event"] for event in events]


async def test_worker_that_was_given_up_is_refused() -> None:
    """A worker that is still there after its agent was begun again can neither ask nor tell the run anything."""
    refused: list[str] = []

    class Doubling(Elsewhere):
        async def _ask(self, calls: RunCalls, call: AgentCall, died: asyncio.Future[None]) -> object:
            if call.attempt == 2:
                with pytest.raises(AgentError, match="begun again elsewhere") as info:
                    await calls.make(msgspec.structs.replace(call, attempt=1))
                refused.append(str(info.value))
            return await super()._ask(calls, call, died)

    await _outcome(fleet_of(Doubling(2), Custom("all", small, is_pure=True)))
    assert refused


async def test_calls_out_of_turn_are_refused() -> None:
    """A name that is no call, a number used before, and a flood of early ones end in errors, not in silence."""
    found: list[str] = []

    class Odd(Elsewhere):
        async def _ask(self, calls: RunCalls, call: AgentCall, died: asyncio.Future[None]) -> object:
            done = await super()._ask(calls, call, died)
            for odd in (call, AgentCall(call.attempt, call.index + 1, "_made")):
                with pytest.raises(AgentError, match="out of turn") as info:
                    await calls.make(odd)
                found.append(str(info.value))
            return done

    await _outcome(fleet_of(Odd(), Custom("all", small)))
    assert len(found) == 4


async def test_plugin_brings_an_executor_that_settings_name(tmp_path: Path) -> None:
    """`fleet.executor` names what a plugin brings; a name that none brings is told the nearest."""
    made: list[dict[str, object]] = []

    class Brings:
        @hookimpl
        def pyagent_register_executors(self) -> dict[str, ExecutorFactory]:
            return {"elsewhere": self.make}

        def make(self, settings: Settings) -> Elsewhere:
            made.append(settings.plugins.options["elsewhere"])
            return Elsewhere()

    file = tmp_path / "pyagent.toml"
    file.write_text('fleet.executor = "elsewhere"\n[plugins.elsewhere]\nengines = 3\n[plugins.other]\na = 1\n')
    settings = load_settings(file).settings
    host = PluginHost()
    host.register(Brings(), "elsewhere")
    async with pyagent.fleet.Fleet(
        settings, backend=ScriptedBackend(reply), agents=[Custom("all", small)], journal=MemoryJournal(), host=host
    ) as fleet:
        assert await fleet.run_agent("all", "go") == "child: an answer to go in words"
        assert isinstance(fleet.executor, Elsewhere)
    assert made == [{"engines": 3}]
    wrong = msgspec.structs.replace(settings, fleet=msgspec.structs.replace(settings.fleet, executor="elsewere"))
    with pytest.raises(ConfigError, match="did you mean 'elsewhere'"):
        pyagent.fleet.Fleet(wrong, backend=ScriptedBackend(reply), journal=MemoryJournal(), host=host)
    assert PluginHost.discover(settings.plugins).unknown_names() == ["elsewhere", "other"]


def test_options_of_a_plugin_are_read_as_its_struct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of plugins are merged by name over the layers, and a wrong option is named with its table."""

    class Options(msgspec.Struct, forbid_unknown_fields=True):
        engines: int = 1
        strategy: str = "PACK"

    file = tmp_path / "pyagent.toml"
    file.write_text("[plugins.ray]\nengines = 3\n[plugins.other]\na = 1\n")
    monkeypatch.setenv("PYAGENT_PLUGINS__RAY__ENGINES", "4")
    loaded = load_settings(file)
    assert plugin_options(loaded.settings, "ray", Options) == Options(4)
    assert loaded.settings.plugins.options["other"] == {"a": 1}
    assert plugin_options(loaded.settings, "none", Options) == Options()
    for key, value in {"engines": "many", "engine": 3}.items():
        wrong = load_settings(file, {f"plugins.ray.{key}": value}).settings
        with pytest.raises(ConfigError, match=f"plugins.ray: .*{key}"):
            plugin_options(wrong, "ray", Options)


def test_remote_context_has_what_a_context_has() -> None:
    """What agents may use of a context is there elsewhere, with the same parameters."""
    own = {
        "run",
        "parent",
        "started_at",
        "run_tool",
        "usage",
        "trace",
        "totals",
        "phase_ended",
        "urgency",
        "rank",
        "_pieces",
        "system_text",
    }
    for name, member in vars(Context).items():
        if name.startswith("__") or name in own:
            continue
        there = inspect.getattr_static(RemoteContext, name)
        if inspect.isfunction(member):
            assert list(inspect.signature(member).parameters) == list(inspect.signature(there).parameters), name
