"""Agents, tools and backends that misbehave: their own step fails, named, and everything else goes on."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleets import echo, events_of

from pyagent.core.errors import AgentError, BudgetError, DeadlineError, RequestError
from pyagent.core.fleet import containment, watchdog
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.fleet.steps import Step
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import ChatDelta, ChatRequest
from pyagent.testing import Reply, ScriptedBackend

Work = Callable[[Context, Task], Awaitable[object]]


class Custom:
    """An agent made of a function."""

    def __init__(self, name: str, function: Callable[[Context, Task], object], **more: object) -> None:
        self.name = name
        self.description = f"does {name}"
        self.function = function
        for key, value in more.items():
            setattr(self, key, value)

    def run(self, context: Context, task: Task) -> object:
        return self.function(context, task)


class NoArguments(msgspec.Struct):
    pass


class Ending(BaseException):
    """What no handler expects."""


def _fleet(*agents: object, script: object = (), tools: tuple[FleetTool, ...] = (), **limits: object) -> Fleet:
    backend = script if callable(getattr(script, "chat", None)) else ScriptedBackend(script)  # type: ignore[arg-type]
    return Fleet(backend, agents, tools, limits=FleetLimits(**limits))  # type: ignore[arg-type]


def _raises(error: BaseException) -> Work:
    async def work(context: Context, task: Task) -> object:
        raise error

    return work


def _raises_at_once(context: Context, task: Task) -> object:
    raise SystemExit(7)


async def _yields(context: Context, task: Task) -> AsyncIterator[str]:
    yield "piece"


async def _maps(context: Context, task: Task) -> object:
    async def part(number: int) -> int:
        await asyncio.sleep(0)
        if number == 1:
            raise SystemExit(7)
        return number

    return await context.map(part, range(3))


async def _maps_cancelled(context: Context, task: Task) -> object:
    async def part(number: int) -> int:
        raise asyncio.CancelledError

    return await context.map(part, range(3))


async def _gathers(context: Context, task: Task) -> object:
    async def part() -> None:
        await asyncio.sleep(0)
        raise SystemExit(7)

    return await asyncio.gather(part(), part())


FAULTY = {
    "the agent bad raised SystemExit in a task: 7": _gathers,
    "SystemExit: 7": _raises(SystemExit(7)),
    "KeyboardInterrupt": _raises(KeyboardInterrupt()),
    "Ending: odd": _raises(Ending("odd")),
    "GeneratorExit": _raises(GeneratorExit()),
    "CancelledError, though it was not cancelled": _raises(asyncio.CancelledError()),
    "SystemExit: 7 ": _raises_at_once,
    "is an async generator": _yields,
    "returned str": lambda context, task: "no coroutine",
    "a part of bad raised SystemExit: 7": _maps,
    "a part of bad raised CancelledError": _maps_cancelled,
}


@pytest.mark.parametrize("complaint", FAULTY)
def test_agent_that_would_end_the_program_fails_its_own_step(complaint: str) -> None:
    """What an agent raises or returns, its step fails with the agent named, and the steps beside it finish."""

    async def slow(context: Context, task: Task) -> object:
        await asyncio.sleep(0.05)
        return "fine"

    steps = [Step(name="one", agent="bad", task=Task(text="x")), Step(name="two", agent="good", task=Task(text="x"))]
    seen, error = asyncio.run(events_of(_fleet(Custom("bad", FAULTY[complaint]), Custom("good", slow)), steps))
    assert isinstance(error, AgentError)
    assert complaint.strip() in str(error)
    assert "bad" in str(error)
    [failed] = [event for event in seen if isinstance(event, ev.AgentFailed)]
    assert (failed.agent, failed.step) == ("bad", "one")
    assert isinstance(seen[-1], ev.RunFailed)
    assert seen[-1].partial == {"two": "fine"}


def test_task_of_an_agent_may_be_cancelled_before_it_starts() -> None:
    """The tasks an agent begins are tasks as they always are: cancelled at once, named, with their results."""

    async def work(context: Context, task: Task) -> object:
        early = asyncio.create_task(asyncio.sleep(60))
        early.cancel()
        with pytest.raises(asyncio.CancelledError):
            await early
        async with asyncio.timeout(60):
            return await asyncio.create_task(echo(context, task), name="mine")

    assert asyncio.run(_fleet(Custom("a", work)).run_agent("a", "hi")) == "hi!"


@pytest.mark.parametrize("error", [SystemExit(7), asyncio.CancelledError(), Ending("odd")])
def test_tool_that_would_end_the_program_fails_its_call(error: BaseException) -> None:
    """A tool's failure of any kind reaches the agent as an error that names the tool, and the agent may go on."""

    async def call(arguments: NoArguments) -> object:
        raise error

    async def use(context: Context, task: Task) -> object:
        with pytest.raises(AgentError, match=f"the tool exit raised {type(error).__name__}"):
            await context.call_tool("exit", {})
        return "went on"

    tool = FleetTool("exit", "ends", NoArguments, call)
    assert asyncio.run(_fleet(Custom("a", use), tools=(tool,)).run_agent("a", "x")) == "went on"


@pytest.mark.parametrize("error", [SystemExit(7), asyncio.CancelledError(), Ending("odd")])
def test_backend_that_would_end_the_program_fails_the_call(error: BaseException) -> None:
    """A backend's failure of any kind is an error of the call that names the backend."""

    class Bad(ScriptedBackend):
        async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
            raise error
            yield  # a generator

    async def ask(context: Context, task: Task) -> object:
        return await context.generate("hi")

    _, raised = asyncio.run(events_of(_fleet(Custom("a", ask), script=Bad([], name="odd")), "x"))
    assert f"the backend odd raised {type(error).__name__}" in str(raised)


@pytest.mark.filterwarnings("ignore:.*coroutine object:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("swallowed", [asyncio.CancelledError, BaseException])
def test_deadline_does_not_wait_for_an_agent_that_swallows_cancellation(
    swallowed: type[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run ends, the agent is named and left behind, and what it does afterwards is refused and not shown."""
    monkeypatch.setattr(containment, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr("pyagent.core.fleet.run.GRACE_SECONDS", 0.1)

    async def stubborn(context: Context, task: Task) -> object:
        while True:
            try:
                await asyncio.sleep(60)
            except swallowed:
                with contextlib.suppress(Exception):
                    context.progress("still here")
                    await context.generate("more?")

    async def main() -> None:
        fleet = _fleet(Custom("stubborn", stubborn), script=["never asked"])
        seen, error = await events_of(fleet, "x", timeout_seconds=0.1)
        assert isinstance(error, DeadlineError)
        assert isinstance(seen[-1], ev.RunFailed)
        assert fleet.backend.requests == []  # type: ignore[attr-defined]
        await fleet.close()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert "the agent stubborn does not end when it is cancelled" in caplog.text


def test_program_ends_beside_an_agent_that_swallows_everything() -> None:
    """`asyncio.run` returns although an agent's task cannot be ended."""
    program = """
        import asyncio
        from pyagent.core.fleet.orchestrator import Fleet
        from pyagent.testing import ScriptedBackend

        class Stubborn:
            name = "stubborn"
            description = "stays"
            async def run(self, context, task):
                while True:
                    try:
                        await asyncio.sleep(60)
                    except BaseException:
                        pass

        async def main():
            async with Fleet(ScriptedBackend([]), [Stubborn()]) as fleet:
                await fleet.run_agent("stubborn", "x", timeout_seconds=0.1)

        try:
            asyncio.run(main())
        except Exception as error:
            print(type(error).__name__, error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (
        0,
        "DeadlineError the deadline passed while waiting for the agent stubborn",
    ), done.stderr
    assert "the agent stubborn does not end when it is cancelled" in done.stderr


def test_leaving_the_fleet_does_not_wait_for_an_agent_that_swallows_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closing ends within its grace, whatever a run's agent does."""
    monkeypatch.setattr("pyagent.core.fleet.run.GRACE_SECONDS", 0.1)

    async def stubborn(context: Context, task: Task) -> object:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    async def main() -> None:
        async with _fleet(Custom("stubborn", stubborn)) as fleet:
            run = fleet.run("x")
            while not isinstance(await anext(run), ev.AgentStarted):
                pass
        await run.aclose()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_agent_that_blocks_the_loop_is_named_and_its_late_result_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be interrupted is told while it lasts, and does not count when it comes after the deadline."""
    monkeypatch.setattr(watchdog, "BLOCKED_SECONDS", 0.2)

    async def block(context: Context, task: Task) -> object:
        await asyncio.sleep(0)
        while "blocked the event loop" not in caplog.text:
            time.sleep(0.05)  # noqa: ASYNC251 - the fault itself
        return "late"

    _, error = asyncio.run(events_of(_fleet(Custom("sleeper", block)), "x", timeout_seconds=0.1))
    assert isinstance(error, DeadlineError)
    assert "the agent sleeper has blocked the event loop" in caplog.text
    assert __file__ in caplog.text


async def _breed(context: Context, task: Task) -> object:
    return await context.map(lambda _: context.spawn("breed", "again"), range(4))


def test_agents_without_end_are_stopped_by_their_number() -> None:
    """A run may start so many agents, though none of them asks a model."""
    seen, error = asyncio.run(events_of(_fleet(Custom("breed", _breed), run_agents=50), "x"))
    assert isinstance(error, BudgetError)
    assert error.resource == "agents"
    assert "budget.run.agents" in str(error)
    assert sum(isinstance(event, ev.AgentStarted) for event in seen) == 50


def test_deadline_holds_for_agents_that_ask_no_model() -> None:
    """Agents that only start agents end with the run's time."""

    async def breed(context: Context, task: Task) -> object:
        while True:
            await context.spawn("leaf", "x")

    fleet = _fleet(Custom("breed", breed), Custom("leaf", echo), run_agents=10**9, run_seconds=0.2)
    _, error = asyncio.run(asyncio.wait_for(events_of(fleet, "x", agent="breed"), 120))
    assert isinstance(error, DeadlineError)


@pytest.mark.parametrize("fault", ["raise", "exit", "hang", "swallow"])
def test_agent_that_cannot_be_closed_spares_the_others(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent whose close raises, exits or hangs is named; the run's result stands and the rest is closed."""
    monkeypatch.setattr(containment, "CLOSE_SECONDS", 0.1)
    closed: list[str] = []

    async def bad() -> None:
        if fault == "raise":
            raise RuntimeError("stuck")
        if fault == "exit":
            raise SystemExit(1)
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if fault == "hang":
                    raise

    async def good() -> None:
        closed.append("good")

    agents = [Custom("a", echo, close=good), Custom("bad", echo, close=bad), Custom("c", echo, close=good)]

    async def main() -> object:
        async with _fleet(*agents) as fleet:
            return await fleet.run_agent("a", "hi")

    assert asyncio.run(asyncio.wait_for(main(), 60)) == "hi!"
    assert closed == ["good", "good"]
    assert "the agent bad cannot be closed" in caplog.text


def test_skipped_steps_and_every_failure_are_told() -> None:
    """A run that fails names each step that failed, and for each that did not run the one that failed before it."""
    steps = [
        Step(name="a", agent="bad", task=Task(text="x")),
        Step(name="b", agent="worse", task=Task(text="x")),
        Step(name="c", agent="good", task=Task(text="x")),
        Step(name="d", agent="good", task=Task(text="x"), after=("c", "a")),
        Step(name="e", agent="good", task=Task(text="x"), after=("d",)),
    ]
    agents = (Custom("bad", _raises(ValueError("no"))), Custom("worse", _raises(KeyError("k"))), Custom("good", echo))
    seen, error = asyncio.run(events_of(_fleet(*agents), steps))
    last = seen[-1]
    assert isinstance(last, ev.RunFailed)
    assert [(failure.step, failure.kind) for failure in last.failures] == [("a", "AgentError"), ("b", "AgentError")]
    assert "worse failed: KeyError" in last.failures[1].error
    assert last.skipped == {"d": "a", "e": "a"}
    assert last.partial == {"c": "x!"}
    skipped = [(event.step, event.cause) for event in seen if isinstance(event, ev.StepSkipped)]
    assert skipped == [("d", "a"), ("e", "a")]
    assert "bad failed: ValueError: no" in str(error)
    assert any("the step b failed too" in note for note in error.__notes__)  # type: ignore[union-attr]
    assert "the step e did not run: a failed before it" in error.__notes__  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        (5, "got int"),
        ([], "at least one step"),
        ([5], "got a int"),
        ([Step(name="a/b", task=Task(text="x"))], "without a slash"),
        ([Step(name="", task=Task(text="x"))], "without a slash"),
    ],
)
def test_what_is_no_task_is_refused_by_name(task: object, complaint: str) -> None:
    """A run says what it takes."""
    with pytest.raises(RequestError, match=complaint):
        asyncio.run(_one(_fleet(Custom("a", echo)), task))


async def _one(fleet: Fleet, task: object) -> None:
    async for _ in fleet.run(task):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("task", [5, [], [Step(name="a", task=Task(text="x"))]])
def test_run_agent_takes_one_task(task: object) -> None:
    """`run_agent` with something else says so in its own words."""
    with pytest.raises(RequestError, match="a takes one task"):
        asyncio.run(_fleet(Custom("a", echo)).run_agent("a", task))  # type: ignore[arg-type]


def test_agents_of_one_name_are_refused() -> None:
    """Two agents of one name given by hand are an error, not a silent replacement."""
    with pytest.raises(RequestError, match="two agents are called 'a'"):
        _fleet(Custom("a", echo), Custom("a", echo))


def test_closed_fleet_runs_nothing() -> None:
    """A fleet that was closed refuses tasks."""

    async def main() -> None:
        async with _fleet(Custom("a", echo)) as fleet:
            pass
        with pytest.raises(RequestError, match="the fleet is closed"):
            await fleet.run_agent("a", "x")

    asyncio.run(main())


# -- nestings ----------------------------------------------------------------------------------------------------------

Plan = tuple[str, list["Plan"]]
PLANS: st.SearchStrategy[Plan] = st.recursive(
    st.tuples(st.sampled_from(["generate", "tool"]), st.just([])),
    lambda inner: st.tuples(st.sampled_from(["stream", "spawn", "map"]), st.lists(inner, max_size=3)),
    max_leaves=8,
)


class CountingBackend(ScriptedBackend):
    """Counts the calls that are being computed: those whose next piece somebody waits for."""

    def __init__(self) -> None:
        super().__init__(lambda request: Reply("one two three"))
        self.num_active = self.most_active = 0

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        deltas = super().chat(request)
        while True:
            self.num_active += 1
            self.most_active = max(self.most_active, self.num_active)
            try:
                delta = await anext(deltas, None)
            finally:
                self.num_active -= 1
            if delta is None:
                return
            yield delta


async def _follow(context: Context, plan: Plan) -> None:
    kind, parts = plan
    if kind == "generate":
        await context.generate("hi")
    elif kind == "tool":
        await context.call_tool("nop", {})
    elif kind == "spawn":
        await context.spawn("planned", Task(text="x", results={"plans": parts}))
    elif kind == "map":
        await context.map(lambda part: _follow(context, part), parts)
    else:
        left = list(parts)
        async for _ in context.stream("hi"):
            if left:
                await _follow(context, left.pop())


async def _planned(context: Context, task: Task) -> object:
    for plan in task.results["plans"]:  # type: ignore[attr-defined]
        await _follow(context, plan)
    return "done"


@settings(max_examples=60, deadline=None)
@given(st.lists(PLANS, min_size=1, max_size=3), st.integers(1, 2))
def test_no_nesting_of_calls_locks_up(plans: list[Plan], max_concurrency: int) -> None:
    """Streams, answers, tools and agents inside each other all end, however few slots the run has."""

    async def nop(arguments: NoArguments) -> object:
        await asyncio.sleep(0)
        return "ok"

    backend = CountingBackend()
    tool = FleetTool("nop", "does nothing", NoArguments, nop)
    fleet = _fleet(Custom("planned", _planned), script=backend, tools=(tool,), max_concurrency=max_concurrency)
    task = Task(text="x", results={"plans": plans})
    assert asyncio.run(asyncio.wait_for(fleet.run_agent("planned", task), 120)) == "done"
    assert backend.most_active <= max_concurrency


def test_streams_of_several_agents_that_call_inside_them_do_not_lock_up() -> None:
    """As many agents as there are slots, each asking the model while it reads a stream, all finish."""

    async def reads(context: Context, task: Task) -> object:
        pieces = []
        async for piece in context.stream("tell"):
            pieces.append(piece)
            await context.spawn("child", piece)
        return "".join(pieces)

    async def asks(context: Context, task: Task) -> object:
        return await context.generate("more")

    async def fan_out(context: Context, task: Task) -> object:
        return await context.map(lambda _: context.spawn("reads", "x"), range(8))

    backend = ScriptedBackend(lambda request: Reply("one two three", delay_seconds=0.001))
    agents = [Custom("reads", reads), Custom("child", asks), Custom("top", fan_out)]
    fleet = _fleet(*agents, script=backend, max_concurrency=8)
    assert asyncio.run(asyncio.wait_for(fleet.run_agent("top", "x"), 120)) == ["one two three"] * 8
