"""Which agent gets a task: scores, the model's choice, and agents that decline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from support.fleets import Custom, echo, events_of, fleet_of

from pyagent.core.errors import Decline, NeedsAnswerError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.run_view import view_of
from pyagent.core.fleet.scores import Score
from pyagent.core.messages import ChatRequest


def _scoring(name: str, score: object, function: Callable[[Context, Task], Awaitable[object]] = echo) -> Custom:
    return Custom(name, function, score=score if callable(score) else lambda task: score)


def _routes(seen: list[ev.Event]) -> list[tuple[str, str]]:
    return [(event.agent, event.how) for event in seen if isinstance(event, ev.RouteChosen)]


def test_highest_score_routes_without_a_model() -> None:
    """The agent with the highest score gets the task, and its reason is shown."""
    score = _scoring("sum", lambda task: Score(0.8, "has a plus sign") if "+" in task.text else None)
    seen, _ = asyncio.run(events_of(fleet_of(_scoring("low", 0.6), score, Custom("other", echo)), "1+1"))
    assert [(e.agent, e.how, e.reason, e.score) for e in seen if isinstance(e, ev.RouteChosen)] == [
        ("sum", "score", "has a plus sign", 0.8)
    ]


def test_a_low_score_with_a_reason_is_journalled_as_a_number() -> None:
    """Where one agent is left: a record that has it as a text could not be read again."""
    half = _scoring("half", lambda _: Score(0.5, "it may be"))
    seen, _ = asyncio.run(events_of(fleet_of(half, _scoring("none", 0.0)), "hi"))
    assert _routes(seen) == [("half", "score")]
    for event in seen:
        assert msgspec.json.decode(ev.encode_event(event), type=type(event)) == event


def test_equal_scores_go_by_the_order_of_the_agents() -> None:
    """Of two that score alike the first gets the task."""
    seen, _ = asyncio.run(events_of(fleet_of(_scoring("b", 0.9), _scoring("a", 0.9)), "hi"))
    assert _routes(seen) == [("b", "score")]


def _declines(reason: str) -> Callable[[Context, Task], Awaitable[object]]:
    async def decline(context: Context, task: Task) -> object:
        raise Decline(reason)

    return decline


def test_declining_agent_hands_on_to_the_next() -> None:
    """An agent that declines is followed by the next best, then by one only its description speaks for."""
    fleet = fleet_of(
        _scoring("second", 0.7, _declines("not a date")),
        _scoring("first", 0.9, _declines("no sum")),
        _scoring("never", 0.0),
        Custom("general", echo),
    )
    seen, error = asyncio.run(events_of(fleet, "hi"))
    assert error is None
    assert _routes(seen) == [("first", "score"), ("second", "score"), ("general", "score")]
    declined = [(event.agent, event.reason) for event in seen if isinstance(event, ev.AgentDeclined)]
    assert declined == [("first", "no sum"), ("second", "not a date")]
    assert isinstance(seen[-1], ev.RunFinished)


def test_task_that_all_decline_is_refused_with_their_reasons() -> None:
    """When nobody is left, the error says who declined and why."""
    fleet = fleet_of(_scoring("a", 0.9, _declines("no sum")), _scoring("b", None, _declines("no file")))
    _, error = asyncio.run(events_of(fleet, "hi"))
    assert isinstance(error, RequestError)
    assert "a: no sum; b: no file" in str(error)


def test_named_agent_that_declines_is_a_refusal() -> None:
    """Asked by name, nobody else is tried, and the caller is told who declined."""
    fleet = fleet_of(_scoring("a", 0.9, _declines("no sum")), Custom("b", echo))
    with pytest.raises(RequestError, match="a declines: no sum"):
        asyncio.run(fleet.run_agent("a", "x"))


def test_declining_child_does_not_decline_for_its_parent() -> None:
    """A spawned agent's refusal reaches its parent as an error, not as the parent's own word."""

    async def spawn(context: Context, task: Task) -> object:
        return await context.spawn("child", task)

    fleet = fleet_of(_scoring("parent", 0.9, spawn), _scoring("child", 0.0, _declines("no sum")), Custom("c", echo))
    seen, error = asyncio.run(events_of(fleet, "x"))
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
    fleet = fleet_of(_scoring("broken", score), Custom("good", echo))
    for _ in range(2):
        seen, error = asyncio.run(events_of(fleet, "hi"))
        assert error is None
        assert _routes(seen) == [("good", "score")]
    assert [record.getMessage().count(complaint) for record in caplog.records] == [1], "warned of once"
    assert "agent broken" in caplog.text


def test_model_routes_when_no_score_is_sure() -> None:
    """Without a sure score the model chooses among the names, and can choose nothing else."""
    fleet = fleet_of(Custom("one", echo), Custom("two", echo), script=["two"])
    seen, _ = asyncio.run(events_of(fleet, "hi"))
    assert [(e.agent, e.how) for e in seen if isinstance(e, ev.RouteChosen)] == [("two", "model")]
    request: ChatRequest = fleet.backend.requests[0]  # type: ignore[attr-defined]
    assert request.response_format is not None
    assert request.response_format.choice == ["one", "two"]
    assert "does one" in request.messages[-1].text


def test_a_person_chooses_where_the_limits_say_so() -> None:
    """With `route="ask"` a person is asked among the agents that no score speaks for, and no model is."""

    async def main(*agents: Custom, task: str = "hi") -> tuple[list[ev.Event], list[ev.Question], int]:
        fleet = fleet_of(*agents, route="ask")
        seen: list[ev.Event] = []
        asked: list[ev.Question] = []
        async for event in fleet.run(task, waits_for_answers=True):
            seen.append(event)
            if isinstance(event, ev.QuestionAsked):
                asked.append(event.question)
                fleet.answer(event.run, event.question.id, "two")
        return seen, asked, len(fleet.backend.requests)  # type: ignore[attr-defined]

    seen, [question], num_requests = asyncio.run(main(Custom("one", echo), Custom("two", echo), _scoring("no", 0.0)))
    assert (_routes(seen), num_requests) == ([("two", "person")], 0)
    assert question.options == ("one", "two")
    assert question.text.startswith("Which agent is to do the task 'hi'?\n- one: does one")
    seen, asked, _ = asyncio.run(main(_scoring("one", 0.9), Custom("two", echo)))
    assert (_routes(seen), asked) == ([("one", "score")], [])
    seen, asked, _ = asyncio.run(main(Custom("one", echo), Custom("two", echo), task="what does one say"))
    assert (_routes(seen), asked) == ([("one", "score")], [])


def test_a_route_that_a_person_chose_is_kept() -> None:
    """A run that ended with the router's question goes on with the answer, and is not asked again."""
    fleet = fleet_of(Custom("one", echo), Custom("two", echo), route="ask")

    async def main() -> list[ev.Event]:
        before, error = await events_of(fleet, "hi")
        assert isinstance(error, NeedsAnswerError)
        [question] = [event.question for event in before if isinstance(event, ev.QuestionAsked)]
        return [event async for event in fleet.resume(before[0].run, answers={question.id: "one"})]

    after = asyncio.run(main())
    assert _routes(after) == [("one", "person")]
    assert isinstance(after[-1], ev.RunFinished)


def test_a_runs_intent_is_in_its_view() -> None:
    """What the first task was taken for is told with how and how surely, and is none before it is known."""
    fleet = fleet_of(_scoring("sum", lambda task: Score(0.8, "has a plus sign")), Custom("other", echo))
    seen, _ = asyncio.run(events_of(fleet, "1+1"))
    row = fleet.journal.summary(seen[0].run)
    assert row is not None
    intent = view_of(fleet.journal, row).intent
    assert intent is not None
    assert (intent.agent, intent.how, intent.score, intent.reason) == ("sum", "score", 0.8, "has a plus sign")
    asks = fleet_of(Custom("one", echo), Custom("two", echo), route="ask")
    before, _ = asyncio.run(events_of(asks, "hi"))
    waiting = asks.journal.summary(before[0].run)
    assert waiting is not None
    assert view_of(asks.journal, waiting).intent is None


def test_score_of_zero_rules_an_agent_out() -> None:
    """Agents that score a task 0 are out; the last one left needs no model."""
    fleet = fleet_of(_scoring("a", 0), Custom("b", echo), _scoring("c", 0.0))
    seen, _ = asyncio.run(events_of(fleet, "hi"))
    assert _routes(seen) == [("b", "score")]


def test_task_that_all_score_zero_goes_by_description() -> None:
    """When every agent says no, a model chooses among all."""
    fleet = fleet_of(_scoring("a", 0), _scoring("b", 0), script=["b"])
    seen, _ = asyncio.run(events_of(fleet, "hi"))
    assert _routes(seen) == [("b", "model")]


def test_unknown_agent_names_the_nearest() -> None:
    """A misspelt agent is refused with the one that was probably meant."""
    with pytest.raises(RequestError, match="did you mean 'summarize'"):
        asyncio.run(fleet_of(Custom("summarize", echo)).run_agent("sumarize", "x"))


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_task_is_refused(text: str) -> None:
    """A task without text, files or arguments is refused before a run begins."""
    with pytest.raises(RequestError, match="task is empty"):
        asyncio.run(fleet_of(Custom("a", echo)).run_agent("a", text))
