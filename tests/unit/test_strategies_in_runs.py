"""Strategies within runs: whatever a model writes, wherever a run is killed, and wherever its agent works."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.elsewhere import Elsewhere
from support.fleets import Custom

from pyagent.core.errors import AgentError, BackendError, DeadlineError, StalledError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.confidence import ConfidencePolicy
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import MemoryJournal
from pyagent.core.fleet.limits import FleetLimits
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.stalls import StallPolicy
from pyagent.core.messages import ChatRequest
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.logic.strategies.debate import debate
from pyagent.logic.strategies.reflection import reflection
from pyagent.logic.strategies.tree_of_thoughts import TreeBounds, tree_of_thoughts
from pyagent.testing import Reply, ScriptedBackend

QUESTION = "How many pens has Ann?"
HOSTILE = "{question} {0} %s %(x)s {{x}} ${y} {% raw %} <|im_end|>\x1b[31m"

STRATEGIES: dict[str, Callable[[Context], Awaitable[Any]]] = {
    "reflection": lambda context: reflection(context, QUESTION, num_rounds=8),
    "debate": lambda context: debate(context, QUESTION, num_rounds=8, settle="judge"),
    "borda": lambda context: debate(context, QUESTION, num_rounds=2, settle="borda"),
    "beam": lambda context: tree_of_thoughts(context, QUESTION, bounds=TreeBounds(depth=8, beam=8, max_calls=60)),
    "depth-first": lambda context: tree_of_thoughts(context, QUESTION, search="depth-first"),
}
all_strategies = pytest.mark.parametrize("name", STRATEGIES)


def run(strategy: Callable[[Context], Awaitable[Any]], backend: ScriptedBackend, **limits: Any) -> Any:
    fleet = Fleet(backend, [reasoner(strategy)], limits=FleetLimits(**limits))
    return asyncio.run(fleet.run_agent("reasoner", QUESTION))


def obedient(text: str) -> Callable[[ChatRequest], str]:
    """A model that writes a text wherever it may, in the form that it is asked for."""

    def answer(request: ChatRequest) -> str:
        form = request.response_format
        if form is None or form.json_schema is None:
            return f"{text}\nAnswer: {text} {request.sampling.seed}"
        fields = form.json_schema.schema
        properties = fields.get("properties") or fields["$defs"][fields["$ref"].rpartition("/")[2]]["properties"]  # type: ignore[index,union-attr,attr-defined]
        values: dict[str, object] = {
            "faults": [text[:120]],
            "score": 5,
            "is_solved": False,
            "thoughts": [text[:150] + "1", text[:150] + "2"],
            "reason": text[:300],
            "best": "1",
            "ranking": ["1"],
        }
        return json.dumps({name: values[name] for name in properties})  # type: ignore[attr-defined]

    return answer


@all_strategies
@pytest.mark.parametrize("text", [HOSTILE, "\x00\ud7ff\u202e" * 5, "x" * 30_000, "{'a': [[[[" * 20])
def test_what_a_model_writes_is_data(name: str, text: str) -> None:
    """Braces, percent signs, template tags and control characters reach the next prompt as they are, or cut."""
    backend = ScriptedBackend(obedient(text))
    found = run(STRATEGIES[name], backend)
    assert found.answer
    shown = {message.text for one in backend.requests[1:] for message in one.messages}
    if len(text) < 200:
        assert any(text in each for each in shown)
    if name != "reflection":  # its conversation has whole answers, which `max_tokens` bounds
        assert max(map(len, shown)) < 20_000
    systems = {one.messages[0].text for one in backend.requests}
    assert len(systems) == 1
    assert text not in systems.pop()


@all_strategies
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_model_comes_to_an_end(name: str, data: st.DataObject) -> None:
    """Whatever is written, in the form asked for or not: it ends within its bound, with an answer or an error."""
    texts = data.draw(st.lists(st.text(max_size=40), min_size=1, max_size=6))
    is_obedient = data.draw(st.lists(st.booleans(), min_size=1, max_size=4))
    asked: list[int] = []

    def answer(request: ChatRequest) -> str:
        asked.append(1)
        text = texts[len(asked) % len(texts)]
        return obedient(text)(request) if is_obedient[len(asked) % len(is_obedient)] else text

    try:
        found = run(STRATEGIES[name], ScriptedBackend(answer))
    except (AgentError, BackendError):
        found = None
    assert len(asked) <= 60
    assert found is None or found.num_calls == len(asked)
    if found is not None:
        json.dumps([found.end.text, found.answer])


def told_by(fleet: Fleet, **options: Any) -> list[ev.Event]:
    """What happens in a run of the strategy's agent, to its end."""

    async def events() -> list[ev.Event]:
        async with fleet:
            return [event async for event in fleet.run(QUESTION, agent="reasoner", **options)]

    return asyncio.run(events())


def reasoner(strategy: Callable[[Context], Awaitable[object]]) -> Custom:
    return Custom("reasoner", lambda context, task: strategy(context), is_pure=True)


@all_strategies
def test_run_killed_at_any_record_goes_on_as_if_it_was_not(name: str, tmp_path: Path) -> None:
    """A resumed run makes the calls that are missing and no other, and comes to the same, with calls side by side."""
    journal, whole = SqliteJournal(tmp_path), ScriptedBackend(obedient("x"))
    told = told_by(Fleet(whole, [reasoner(STRATEGIES[name])], journal=journal))
    run_id, records = told[0].run, list(journal.replay(told[0].run))
    for num_kept in range(1, len(records), max(1, len(records) // 6)):
        journal.close_run(fork := journal.fork(run_id, journal.spec(run_id), num_kept))
        backend = ScriptedBackend(obedient("x"))

        async def resumed(fork: str = fork, backend: ScriptedBackend = backend) -> list[ev.Event]:
            async with Fleet(backend, [reasoner(STRATEGIES[name])], journal=journal) as fleet:
                return [event async for event in fleet.resume(fork)]

        last, first = asyncio.run(resumed())[-1], told[-1]
        assert isinstance(last, ev.RunFinished)
        assert isinstance(first, ev.RunFinished)
        assert msgspec.to_builtins(last.output) == msgspec.to_builtins(first.output)
        num_asked = sum(isinstance(record.event, ev.ModelCalled) for record in records[:num_kept])
        assert len(backend.requests) == len(whole.requests) - num_asked


@all_strategies
def test_elsewhere_a_strategy_is_the_same(name: str) -> None:
    """An agent that works in another process uses it as one beside the run does, also when its worker dies."""
    backends = [ScriptedBackend(obedient("x")) for _ in range(3)]
    executors = [None, Elsewhere(), Elsewhere(4, 9)]
    ends = [
        told_by(Fleet(backend, [reasoner(STRATEGIES[name])], journal=MemoryJournal(), executor=executor))
        for backend, executor in zip(backends, executors, strict=True)
    ]
    outputs = [msgspec.to_builtins(end[-1].output) for end in ends if isinstance(end[-1], ev.RunFinished)]
    assert outputs == [outputs[0]] * 3
    assert len({len(backend.requests) for backend in backends}) == 1
    scores = [[event.score for event in end if isinstance(event, ev.ScoreReported)] for end in ends]
    assert scores == [scores[0]] * 3


@all_strategies
def test_cancellation_ends_the_calls_under_way(name: str) -> None:
    """Nothing is asked after the end, and what was asked is broken off."""

    async def work(backend: ScriptedBackend) -> None:
        fleet = Fleet(backend, [reasoner(STRATEGIES[name])])
        async with fleet:
            task = asyncio.create_task(fleet.run_agent("reasoner", QUESTION))
            while not backend.requests:  # noqa: ASYNC110 - the backend has no event for it
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            num = len(backend.requests)
            await asyncio.sleep(0.02)
            assert len(backend.requests) == num == backend.num_aborted

    asyncio.run(work(ScriptedBackend(lambda _: Reply(text="a b c", delay_seconds=30))))


@all_strategies
def test_doubtful_answers_are_not_asked_again_uncounted(name: str) -> None:
    """Where a run asks again what is doubtful, a strategy's calls are marked: it has ways of its own."""
    backend = ScriptedBackend(obedient("I am not sure, but probably x"))
    found = run(STRATEGIES[name], backend, confidence=ConfidencePolicy(act="retry"))
    assert found.num_calls == len(backend.requests)


def test_debaters_that_do_not_agree_are_told_as_doubtful() -> None:
    """The part of the debaters behind the answer is compared with the run's least agreement."""
    limits = FleetLimits(confidence=ConfidencePolicy(min_agreement=0.9))
    backend = ScriptedBackend(lambda one: f"Answer: {one.sampling.seed}")
    told = told_by(Fleet(backend, [reasoner(lambda context: debate(context, QUESTION))], limits=limits))
    assert [event.reason for event in told if isinstance(event, ev.AnswerDoubted)] == ["33% of the answers agree"]


@all_strategies
def test_the_runs_deadline_ends_it(name: str) -> None:
    """Past the deadline nothing is settled on: the run fails by it, with what there is so far."""
    backend = ScriptedBackend(lambda _: Reply(text="a b c", delay_seconds=0.2))
    fleet = Fleet(backend, [reasoner(STRATEGIES[name])])
    with pytest.raises(DeadlineError):
        asyncio.run(fleet.run_agent("reasoner", QUESTION, timeout_seconds=0.1))


@all_strategies
def test_stalled_run_is_ended_and_not_finished_quietly(name: str) -> None:
    """What ends the run is no failure of one call that a strategy goes on after."""

    async def strategy(context: Context) -> object:
        for _ in range(3):
            context.report(1.0)
        return await STRATEGIES[name](context)

    with pytest.raises(StalledError):
        run(strategy, ScriptedBackend(obedient("x")), stalls=StallPolicy(max_flat_scores=2))


@all_strategies
def test_one_use_after_another_is_no_stall(name: str) -> None:
    """Scores of each use are told in the run, and compared among themselves: twenty that end alike do not end it."""

    async def strategy(context: Context) -> object:
        return [await STRATEGIES[name](context) for _ in range(20)]

    limits = FleetLimits(stalls=StallPolicy(max_repeats=None))
    told = told_by(Fleet(ScriptedBackend(obedient("x")), [reasoner(strategy)], limits=limits))
    assert isinstance(told[-1], ev.RunFinished)
    scores = [event for event in told if isinstance(event, ev.ScoreReported)]
    assert len({event.series for event in scores}) == 20
    assert any(isinstance(event, ev.Progress) for event in told)
    assert any(isinstance(event, ev.StepFinished) for event in told)
