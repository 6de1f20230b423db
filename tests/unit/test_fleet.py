"""The fleet's loop with scripted models: routing, budgets, deadlines, events, cancellation, failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import msgspec
import pytest

from pyagent.core.errors import AgentError, BudgetError, DeadlineError, Decline, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Agent, Task, describe
from pyagent.core.fleet.budget import Budget
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits, Step
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import ChatRequest, SamplingParams
from pyagent.testing import Reply, ScriptedBackend


class Poem(msgspec.Struct):
    lines: list[str]


class Custom:
    """An agent made of a function."""

    def __init__(self, name: str, function: Callable[[Context, Task], Awaitable[object]], **more: object) -> None:
        self.name = name
        self.description = f"does {name}"
        self.function = function
        for key, value in more.items():
            setattr(self, key, value)

    async def run(self, context: Context, task: Task) -> object:
        return await self.function(context, task)


async def _echo(context: Context, task: Task) -> object:
    return f"{task.text}!"


async def _ask(context: Context, task: Task) -> object:
    return await context.generate(task.text)


async def _sleep(context: Context, task: Task) -> object:
    await asyncio.sleep(60)
    return ""


def _fleet(*agents: Agent, script: object = (), **limits: object) -> Fleet:
    return Fleet(ScriptedBackend(script), agents, limits=FleetLimits(**limits))  # type: ignore[arg-type]


async def _events(fleet: Fleet, task: str | list[Step], **options: object) -> tuple[list[ev.Event], Exception | None]:
    seen: list[ev.Event] = []
    try:
        async for event in fleet.run(task, **options):  # type: ignore[arg-type]
            seen.append(event)  # noqa: PERF401 - what came before an error counts
    except Exception as error:
        return seen, error
    return seen, None


def test_run_tells_its_story_and_journals_it() -> None:
    """A run's events come in order, end with the result and the totals, and are replayed from the journal."""

    async def main() -> None:
        async with _fleet(Custom("ask", _ask), script=["a b c"]) as fleet:
            seen, error = await _events(fleet, "hello")
            assert error is None
            assert [type(event).__name__ for event in seen] == [
                *("RunStarted", "RouteChosen", "AgentStarted", "ModelCalled", "AgentFinished", "RunFinished")
            ]
            last = seen[-1]
            assert isinstance(last, ev.RunFinished)
            assert last.output == "a b c"
            assert (last.totals.prompt_tokens, last.totals.completion_tokens, last.totals.model_calls) == (1, 3, 1)
            assert [record.event for record in fleet.journal.replay(seen[0].run)] == seen

    asyncio.run(main())


def _scoring(name: str, score: object, function: Callable[[Context, Task], Awaitable[object]] = _echo) -> Custom:
    return Custom(name, function, score=score if callable(score) else lambda task: score)


def _routes(seen: list[ev.Event]) -> list[tuple[str, str]]:
    return [(event.agent, event.how) for event in seen if isinstance(event, ev.RouteChosen)]


def test_highest_score_routes_without_a_model() -> None:
    """The agent with the highest score gets the task, and its reason is shown."""
    score = _scoring("sum", lambda task: Score(0.8, "has a plus sign") if "+" in task.text else None)
    seen, _ = asyncio.run(_events(_fleet(_scoring("low", 0.6), score, Custom("other", _echo)), "1+1"))
    assert [(e.agent, e.how, e.reason, e.score) for e in seen if isinstance(e, ev.RouteChosen)] == [
        ("sum", "score", "has a plus sign", 0.8)
    ]


def test_equal_scores_go_by_the_order_of_the_agents() -> None:
    """Of two that score alike the first gets the task."""
    seen, _ = asyncio.run(_events(_fleet(_scoring("b", 0.9), _scoring("a", 0.9)), "hi"))
    assert _routes(seen) == [("b", "score")]


def _declines(reason: str) -> Callable[[Context, Task], Awaitable[object]]:
    async def decline(context: Context, task: Task) -> object:
        raise Decline(reason)

    return decline


def test_declining_agent_hands_on_to_the_next() -> None:
    """An agent that declines is followed by the next best, then by one only its description speaks for."""
    fleet = _fleet(
        _scoring("second", 0.7, _declines("not a date")),
        _scoring("first", 0.9, _declines("no sum")),
        _scoring("never", 0.0),
        Custom("general", _echo),
    )
    seen, error = asyncio.run(_events(fleet, "hi"))
    assert error is None
    assert _routes(seen) == [("first", "score"), ("second", "score"), ("general", "score")]
    declined = [(event.agent, event.reason) for event in seen if isinstance(event, ev.AgentDeclined)]
    assert declined == [("first", "no sum"), ("second", "not a date")]
    assert isinstance(seen[-1], ev.RunFinished)


def test_task_that_all_decline_is_refused_with_their_reasons() -> None:
    """When nobody is left, the error says who declined and why."""
    fleet = _fleet(_scoring("a", 0.9, _declines("no sum")), _scoring("b", None, _declines("no file")))
    _, error = asyncio.run(_events(fleet, "hi"))
    assert isinstance(error, RequestError)
    assert "a: no sum; b: no file" in str(error)


def test_named_agent_that_declines_is_a_refusal() -> None:
    """Asked by name, nobody else is tried, and the caller is told who declined."""
    fleet = _fleet(_scoring("a", 0.9, _declines("no sum")), Custom("b", _echo))
    with pytest.raises(RequestError, match="a declines: no sum"):
        asyncio.run(fleet.run_agent("a", "x"))


def test_declining_child_does_not_decline_for_its_parent() -> None:
    """A spawned agent's refusal reaches its parent as an error, not as the parent's own word."""

    async def spawn(context: Context, task: Task) -> object:
        return await context.spawn("child", task)

    fleet = _fleet(_scoring("parent", 0.9, spawn), _scoring("child", 0.0, _declines("no sum")), Custom("c", _echo))
    seen, error = asyncio.run(_events(fleet, "x"))
    assert "child declines: no sum" in str(error)
    assert _routes(seen) == [("parent", "score")]


async def _async_score(task: Task) -> float:
    return 1.0


def _raise(error: BaseException) -> float:
    raise error


@pytest.mark.parametrize(
    ("score", "complaint"),
    [
        (lambda task: _raise(ValueError("bad")), "raised ValueError: bad"),
        (lambda task: _raise(SystemExit(3)), "raised SystemExit"),
        (lambda: 1.0, "raised TypeError"),
        (float("nan"), "returned nan"),
        (7, "returned 7"),
        ("high", "returned 'high'"),
        (True, "returned True"),
        (_async_score, "returned <coroutine"),
        (lambda task: time.sleep(60), "gave no answer"),
    ],
)
def test_broken_score_takes_only_its_agent_out(
    score: object, complaint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent whose score raises, hangs or is nonsense is named and passed over; the task finds another."""
    if complaint == "gave no answer":
        monkeypatch.setattr("pyagent.core.fleet.scores.SCORE_SECONDS", 0.2)
    fleet = _fleet(_scoring("broken", score), Custom("good", _echo))
    for _ in range(2):
        seen, error = asyncio.run(_events(fleet, "hi"))
        assert error is None
        assert _routes(seen) == [("good", "score")]
    assert [record.getMessage().count(complaint) for record in caplog.records] == [1], "warned of once"
    assert "agent broken" in caplog.text


def test_model_routes_when_no_score_is_sure() -> None:
    """Without a sure score the model chooses among the names, and can choose nothing else."""
    fleet = _fleet(Custom("one", _echo), Custom("two", _echo), script=["two"])
    seen, _ = asyncio.run(_events(fleet, "hi"))
    assert [(e.agent, e.how) for e in seen if isinstance(e, ev.RouteChosen)] == [("two", "model")]
    request: ChatRequest = fleet.backend.requests[0]  # type: ignore[attr-defined]
    assert request.response_format is not None
    assert request.response_format.choice == ["one", "two"]
    assert "does one" in request.messages[-1].text


def test_score_of_zero_rules_an_agent_out() -> None:
    """Agents that score a task 0 are out; the last one left needs no model."""
    fleet = _fleet(_scoring("a", 0), Custom("b", _echo), _scoring("c", 0.0))
    seen, _ = asyncio.run(_events(fleet, "hi"))
    assert _routes(seen) == [("b", "score")]


def test_task_that_all_score_zero_goes_by_description() -> None:
    """When every agent says no, a model chooses among all."""
    fleet = _fleet(_scoring("a", 0), _scoring("b", 0), script=["b"])
    seen, _ = asyncio.run(_events(fleet, "hi"))
    assert _routes(seen) == [("b", "model")]


def test_unknown_agent_names_the_nearest() -> None:
    """A misspelt agent is refused with the one that was probably meant."""
    with pytest.raises(RequestError, match="did you mean 'summarize'"):
        asyncio.run(_fleet(Custom("summarize", _echo)).run_agent("sumarize", "x"))


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_task_is_refused(text: str) -> None:
    """A task without text, files or arguments is refused before a run begins."""
    with pytest.raises(RequestError, match="task is empty"):
        asyncio.run(_fleet(Custom("a", _echo)).run_agent("a", text))


def test_steps_get_the_results_they_come_after() -> None:
    """A graph of steps hands results on, and the run's output is the last step's."""

    async def join(context: Context, task: Task) -> object:
        return " ".join(str(task.results[name]) for name in sorted(task.results))

    steps = [
        Step(name="join", agent="join", task=Task(text="join"), after=("x", "y")),
        Step(name="x", agent="echo", task=Task(text="1")),
        Step(name="y", agent="echo", task=Task(text="2")),
    ]
    seen, error = asyncio.run(_events(_fleet(Custom("join", join), Custom("echo", _echo)), steps))
    assert error is None
    assert isinstance(seen[-1], ev.RunFinished)
    assert seen[-1].output == "1! 2!"


def test_cyclic_steps_are_refused() -> None:
    """Steps that wait for each other are refused by name before anything runs."""
    steps = [
        Step(name="a", agent="e", task=Task(text="1"), after=("b",)),
        Step(name="b", agent="e", task=Task(text="2"), after=("a",)),
    ]
    seen, error = asyncio.run(_events(_fleet(Custom("e", _echo)), steps))
    assert seen == []
    assert "a -> b -> a" in str(error)


def test_agents_that_need_each_other_are_refused() -> None:
    """A fleet whose agents need each other in a circle does not start, and the circle is named."""
    with pytest.raises(RequestError, match="a -> b -> a"):
        _fleet(Custom("a", _echo, needs=("b",)), Custom("b", _echo, needs=("a",)))


def test_budget_is_reserved_before_the_call_and_partial_results_kept() -> None:
    """The call that would break the budget is never made; what was done before it is in the last event."""

    async def greedy(context: Context, task: Task) -> object:
        await context.spawn("echo", "kept")
        return await context.generate("x" * 3000)

    fleet = _fleet(Custom("greedy", greedy), Custom("echo", _echo), script=["never"], run_tokens=1000)
    steps = [
        Step(name="first", agent="echo", task=Task(text="kept")),
        Step(name="second", agent="greedy", task=Task(text="go"), after=("first",)),
    ]
    seen, error = asyncio.run(_events(fleet, steps))
    assert isinstance(error, BudgetError)
    assert error.resource == "tokens"
    assert "run r-" in str(error)
    assert fleet.backend.requests == []  # type: ignore[attr-defined]
    assert isinstance(seen[-1], ev.RunFailed)
    assert (seen[-1].kind, seen[-1].partial) == ("BudgetError", {"first": "kept!"})


def test_settled_budget_counts_what_was_used() -> None:
    """After a call only its real use counts, so a long row of small calls fits a small budget."""

    budgets: list[Budget] = []

    async def many(context: Context, task: Task) -> object:
        budgets.append(context.run.budget)
        return "".join([await context.generate("hi") for _ in range(20)])

    fleet = _fleet(Custom("many", many), script=["a"] * 20, run_tokens=600)
    assert asyncio.run(fleet.run_agent("many", "go")) == "a" * 20
    (budget,) = budgets
    assert (budget.used_tokens, budget.reserved_tokens) == (40, 0)


def test_spawned_agent_has_its_own_limit_inside_the_run() -> None:
    """A child's budget is refused at its own level, by its name."""

    async def parent(context: Context, task: Task) -> object:
        return await context.spawn("ask", "hi", max_tokens=100)

    with pytest.raises(BudgetError, match=r"parent/1\.ask is 100 tokens"):
        asyncio.run(_fleet(Custom("parent", parent), Custom("ask", _ask)).run_agent("parent", "go"))


def test_deadline_is_passed_down_and_kept() -> None:
    """The backend is told the time left; an agent that sleeps past it is ended."""
    fleet = _fleet(Custom("ask", _ask), Custom("sleep", _sleep), script=["ok"])

    async def main() -> None:
        await fleet.run_agent("ask", "hi", timeout_seconds=30)
        timeout = fleet.backend.requests[0].timeout_seconds  # type: ignore[attr-defined]
        assert 29 < timeout <= 30
        with pytest.raises(DeadlineError, match="agent sleep"):
            await fleet.run_agent("sleep", "hi", timeout_seconds=0.05)

    asyncio.run(main())


def test_run_seconds_bound_a_run_without_timeout() -> None:
    """The fleet's own limit on a run's time holds when the caller gives none."""
    with pytest.raises(DeadlineError):
        asyncio.run(_fleet(Custom("sleep", _sleep), run_seconds=0.05).run_agent("sleep", "x"))


def test_calls_at_once_are_bounded() -> None:
    """However many children ask, no more calls are under way than the fleet allows."""
    running = most = 0

    class Counting(ScriptedBackend):
        async def chat(self, request: ChatRequest):  # type: ignore[override]
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                async for delta in super().chat(request):
                    yield delta
            finally:
                running -= 1

    async def fan(context: Context, task: Task) -> object:
        return await context.map(lambda n: context.spawn("ask", f"{n}"), range(40))

    backend = Counting(lambda request: request.messages[-1].text)
    fleet = Fleet(backend, [Custom("fan", fan), Custom("ask", _ask)], limits=FleetLimits(max_concurrency=3))
    assert asyncio.run(fleet.run_agent("fan", "go")) == [str(n) for n in range(40)]
    assert most == 3


def test_cancelling_a_run_reaches_every_child_and_stream() -> None:
    """Leaving the iterator ends children at every depth, aborts streams, and the journal says how the run ended."""

    async def nest(context: Context, task: Task) -> object:
        return await context.map(lambda n: context.spawn("ask", f"{n}"), range(3))

    async def main() -> None:
        backend = ScriptedBackend(lambda _: Reply(text="a b c", delay_seconds=30))
        fleet = Fleet(backend, [Custom("nest", nest), Custom("ask", _ask)])
        async with aclosing(fleet.run("go", agent="nest")) as run:
            run_id = ""
            async for event in run:
                run_id = event.run
                if isinstance(event, ev.AgentStarted) and event.step == "nest/3.ask":
                    await asyncio.sleep(0.02)
                    break
        assert len(asyncio.all_tasks()) == 1
        assert backend.num_aborted == 3
        records = [record.event for record in fleet.journal.replay(run_id)]
        assert isinstance(records[-1], ev.RunFailed)
        assert records[-1].kind == "CancelledError"
        assert sum(isinstance(event, ev.AgentFailed) for event in records) == 4

    asyncio.run(main())


def test_leaving_the_fleet_ends_its_runs_and_closes_agents() -> None:
    """What still runs when the fleet ends is cancelled; agents are closed, those that need others first."""
    closed: list[str] = []

    def closing(name: str) -> Callable[[], Awaitable[None]]:
        async def close() -> None:
            closed.append(name)

        return close

    async def main() -> None:
        base = Custom("base", _sleep, close=closing("base"))
        user = Custom("user", _echo, needs=("base",), close=closing("user"))
        async with _fleet(user, base) as fleet:
            job = asyncio.create_task(fleet.run_agent("base", "x"))
            await asyncio.sleep(0.02)
        with pytest.raises(asyncio.CancelledError):
            await job
        assert closed == ["user", "base"]

    asyncio.run(main())


def test_structured_answer_is_asked_for_twice() -> None:
    """An answer that does not fit the schema is asked for again with the reason, and then is an instance."""

    async def write(context: Context, task: Task) -> Poem:
        return await context.generate("a poem", schema=Poem)

    fleet = _fleet(Custom("write", write), script=['{"lines": 3}', '{"lines": ["a"]}'])
    assert asyncio.run(fleet.run_agent("write", "x")) == Poem(["a"])
    second: ChatRequest = fleet.backend.requests[1]  # type: ignore[attr-defined]
    assert "Expected `array`, got `int`" in second.messages[-1].text
    assert second.response_format is not None
    assert second.response_format.type == "json_schema"


def test_answer_that_never_fits_is_an_agent_error() -> None:
    """After the second misfit the agent fails, with the reason."""

    async def write(context: Context, task: Task) -> object:
        return await context.generate("a poem", schema=Poem)

    with pytest.raises(AgentError, match="asked twice"):
        asyncio.run(_fleet(Custom("write", write), script=["no", "{}"]).run_agent("write", "x"))


def test_cut_answers_say_so() -> None:
    """An answer that ended at its limit says so, whole and streamed, in events, and when it does not fit a form."""
    told: list[object] = []

    async def ask(context: Context, task: Task) -> object:
        for _ in range(2):
            answer = await context.complete("hi")
            told.append((answer.text, answer.is_cut, answer.finish_reason))
        stream = context.stream("hi")
        told.append(("".join([piece async for piece in stream]), stream.is_cut, stream.finish_reason))
        with pytest.raises(AgentError, match="it was cut after 12 tokens"):
            await context.generate("hi", schema=Poem, sampling=SamplingParams(max_tokens=12))
        return "done"

    cut = Reply("half a", finish_reason="length")
    script = [Reply("whole"), cut, cut, Reply('{"lines": ["a', finish_reason="length"), cut]
    seen, error = asyncio.run(_events(_fleet(Custom("ask", ask), script=script), "x"))
    assert error is None
    assert told == [("whole", False, "stop"), ("half a", True, "length"), ("half a", True, "length")]
    reasons = [event.finish_reason for event in seen if isinstance(event, ev.ModelCalled)]
    assert reasons == ["stop", "length", "length", "length", "length"]
    shown = [event.text for event in seen if isinstance(event, ev.Progress)]
    assert shown[0] == "an answer was cut after 2 tokens"


def test_retry_asks_again_with_the_answer_and_the_hint() -> None:
    """`retry` shows the model its answer and what is wrong, and gives the same type again."""

    async def write(context: Context, task: Task) -> object:
        first = await context.generate("a poem", schema=Poem)
        return await context.retry("more lines") if len(first.lines) < 2 else first

    fleet = _fleet(Custom("write", write), script=['{"lines": ["a"]}', '{"lines": ["a", "b"]}'])
    assert asyncio.run(fleet.run_agent("write", "x")) == Poem(["a", "b"])
    texts = [message.text for message in fleet.backend.requests[1].messages]  # type: ignore[attr-defined]
    assert texts == ["a poem", '{"lines": ["a"]}', "more lines"]


@pytest.mark.parametrize("output", [None, "", "  "])
def test_empty_result_does_not_spread(output: object) -> None:
    """An agent that gives nothing fails instead."""

    async def nothing(context: Context, task: Task) -> object:
        return output

    with pytest.raises(AgentError, match="empty answer"):
        asyncio.run(_fleet(Custom("nothing", nothing)).run_agent("nothing", "x"))


class Promising:
    name = "promising"
    description = "promises a poem"

    async def run(self, context: Context, task: Task) -> Poem:
        return "no poem"  # type: ignore[return-value]


def test_result_of_another_type_does_not_spread() -> None:
    """An agent that promises a type and gives another fails, and its schema is known."""
    with pytest.raises(AgentError, match="promises Poem and gave str"):
        asyncio.run(_fleet(Promising()).run_agent("promising", "x"))
    info = describe(Promising())
    assert info.output is not None
    assert "lines" in str(info.output)


def test_foreign_exception_becomes_an_agent_error() -> None:
    """A bug in an agent is reported by the agent's name, with its cause; the fleet goes on."""

    async def bug(context: Context, task: Task) -> object:
        return 1 / 0

    async def main() -> None:
        async with _fleet(Custom("bug", bug), Custom("echo", _echo)) as fleet:
            with pytest.raises(AgentError, match="bug failed: ZeroDivisionError") as caught:
                await fleet.run_agent("bug", "x")
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
            assert await fleet.run_agent("echo", "x") == "x!"

    asyncio.run(main())


class Pair(msgspec.Struct):
    left: int
    right: int


async def _add(pair: Pair) -> object:
    return pair.left + pair.right


def test_tools_are_typed_and_reported() -> None:
    """A tool gets checked arguments; its call is an event; wrong arguments and unknown tools are refused."""

    async def use(context: Context, task: Task) -> object:
        with pytest.raises(RequestError, match="did you mean 'add'"):
            await context.call_tool("ad", {})
        with pytest.raises(RequestError, match="cannot take these arguments"):
            await context.call_tool("add", {"left": "x"})
        return await context.call_tool("add", {"left": 1, "right": 2})

    tool = FleetTool("add", "adds", Pair, _add)
    fleet = Fleet(ScriptedBackend([]), [Custom("use", use)], [tool])
    seen, error = asyncio.run(_events(fleet, "x"))
    assert error is None
    calls = [event for event in seen if isinstance(event, ev.ToolCalled)]
    assert [(call.output, call.error is None) for call in calls] == [(None, False), (3, True)]
    assert tool.definition().function.parameters["properties"]


class Typed:
    name = "typed"
    description = "adds"
    arguments = Pair

    async def run(self, context: Context, task: Task) -> int:
        pair = task.arguments_as(Pair)
        return pair.left + pair.right


def test_typed_arguments_are_checked_at_the_door() -> None:
    """A JSON text is the agent's arguments; what does not fit is refused before the agent runs."""
    fleet = _fleet(Typed())
    assert asyncio.run(fleet.run_agent("typed", '{"left": 1, "right": 2}')) == 3
    assert asyncio.run(fleet.run_agent("typed", Task(arguments={"left": 1, "right": 2}))) == 3
    for bad in ('{"left": 1}', '{"left": "1", "right": 2}', '{"left"'):
        with pytest.raises(RequestError, match="arguments"):
            asyncio.run(fleet.run_agent("typed", bad))


def test_agent_that_spawns_itself_ends() -> None:
    """Endless nesting is ended with the agent's name."""

    async def again(context: Context, task: Task) -> object:
        return await context.spawn("again", task)

    with pytest.raises(AgentError, match="spawning itself"):
        asyncio.run(_fleet(Custom("again", again)).run_agent("again", "x"))


def test_streamed_text_is_shown_but_not_journalled() -> None:
    """Pieces of an answer are events for the eye; the journal holds the answer whole."""

    async def speak(context: Context, task: Task) -> object:
        with context.phase("speaking"):
            return "".join([piece async for piece in context.stream(task.text)])

    fleet = _fleet(Custom("speak", speak), script=["one two"])
    seen, _ = asyncio.run(_events(fleet, "x"))
    assert [event.text for event in seen if isinstance(event, ev.TextDelta)] == ["one", " two"]
    assert [event.name for event in seen if isinstance(event, ev.StepFinished)] == ["speaking"]
    kept = [record.event for record in fleet.journal.replay(seen[0].run)]
    assert not any(isinstance(event, ev.TextDelta) for event in kept)
    assert [event.answer for event in kept if isinstance(event, ev.ModelCalled)] == ["one two"]


def test_events_are_json_lines() -> None:
    """Every event is one line of JSON that says its kind."""

    async def odd(context: Context, task: Task) -> object:
        return {"pair": Pair(1, 2), "odd": complex(1, 2)}

    seen, _ = asyncio.run(_events(_fleet(Custom("odd", odd)), "x"))
    lines = [ev.encode_event(event) for event in seen]
    assert all(b"\n" not in line for line in lines)
    assert msgspec.json.decode(lines[0])["event"] == "run_started"
    assert msgspec.json.decode(lines[-1])["output"] == {"pair": {"left": 1, "right": 2}, "odd": "(1+2j)"}


def test_private_runs_say_so() -> None:
    """A private run's requests are marked, so that a chain keeps them on this machine."""
    fleet = _fleet(Custom("ask", _ask), script=["ok"])
    asyncio.run(fleet.run_agent("ask", "hi", is_private=True))
    assert fleet.backend.requests[0].private is True  # type: ignore[attr-defined]


def test_hints_say_who_waits_for_a_tool_and_who_is_done() -> None:
    """While a tool runs its caller's prompt is retained, for as long as the tool took before; then it is expected."""

    class Nothing(msgspec.Struct):
        pass

    async def look(_: Nothing) -> str:
        await asyncio.sleep(0.05)
        return "seen"

    async def work(context: Context, task: Task) -> object:
        await context.call_tool("look", Nothing())  # before anything was asked: nothing is worth keeping
        await context.generate("what?")
        await context.call_tool("look", Nothing())
        return await context.generate("and now?")

    backend = ScriptedBackend(lambda request: "that")
    fleet = Fleet(backend, [Custom("one", work)], [FleetTool("look", "looks", Nothing, look)])
    asyncio.run(fleet.run_agent("one", "go"))
    request = backend.requests[0]
    assert request.session == f"{request.origin.run}/one:one"
    assert request.origin.agent == "one"
    assert [hint.kind for hint in backend.hints] == ["retain", "retain", "demote", "release"]
    retain, again, demote, release = backend.hints
    assert 0.04 < (retain.expected_seconds or 0) < 10
    assert again.expected_seconds == 5.0
    assert retain.session == again.session == demote.session == request.session
    assert release.run == request.origin.run


def test_hints_keep_the_beginning_that_spawned_agents_share() -> None:
    """The system text of spawned agents is retained once for the run; their parent waits for all of them, once."""

    async def child(context: Context, task: Task) -> object:
        return await context.generate(task.text, system="You are one of many.")

    async def parent(context: Context, task: Task) -> object:
        await context.generate("plan")
        return await context.map(lambda number: context.spawn("child", f"part {number}"), range(4))

    backend = ScriptedBackend(lambda request: "done")
    asyncio.run(Fleet(backend, [Custom("parent", parent), Custom("child", child)]).run_agent("parent", "go"))
    run = backend.requests[0].origin.run
    mine = [hint.kind for hint in backend.hints if hint.session == f"{run}/parent:parent"]
    assert mine == ["retain", "retain", "demote"]
    shared = [(hint.kind, hint.run, hint.messages[0].text) for hint in backend.hints if hint.run and hint.messages]
    assert shared == [("retain", run, "You are one of many.")]
    assert all(hint.messages[0].text == "You are one of many." for hint in backend.hints if hint.messages)
    assert backend.hints[-1].kind == "release"
    assert sum(hint.kind == "demote" for hint in backend.hints) == 5


def test_hints_that_a_backend_cannot_take_hurt_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A run goes on when a plugin's backend fails at a hint; the fault is logged."""

    class Clumsy(ScriptedBackend):
        def hint(self, hint: object) -> None:
            raise RuntimeError("what?")

    assert asyncio.run(Fleet(Clumsy(["fine"]), [Custom("ask", _ask)]).run_agent("ask", "hi")) == "fine"
    assert "failed to take a hint" in caplog.text
