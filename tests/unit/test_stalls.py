"""A run that gets nowhere is ended, and one that still improves never is."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyagent.core.errors import RequestError, StalledError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.limits import FleetLimits
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.stalls import MAX_HASHES, StallPolicy, Stalls
from pyagent.core.fleet.step_options import Repeat
from pyagent.core.fleet.steps import Step
from pyagent.core.messages import Message
from pyagent.testing import ScriptedBackend

LIMIT = 10
POLICY = StallPolicy(max_repeats=LIMIT, max_flat_scores=LIMIT)


def score(value: float, agent: str = "a", series: str = "") -> ev.ScoreReported:
    return ev.ScoreReported(run="r", step="s", agent=agent, score=value, series=series)


def num_until_stalled(scores: Sequence[float], policy: StallPolicy = POLICY) -> int | None:
    stalls = Stalls(policy)
    for number, value in enumerate(scores, 1):
        stalls.add(score(value))
        if stalls.reason:
            return number
    return None


def model(answer: str, question: str = "q", step: str = "s", call: str = "1", agent: str = "a") -> ev.ModelCalled:
    messages = [Message("user", question)]
    return ev.ModelCalled(run="r", step=step, agent=agent, backend="b", messages=messages, answer=answer, call=call)


# -- the rule -------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.data(), st.floats(1e-6, 1e6), st.floats(-1e3, 1e3), st.integers(1, 120))
def test_scores_that_improve_never_stall(data: st.DataObject, slope: float, start: float, length: int) -> None:
    """A rise with scatter below half of what it gains in a window, and steps shorter than a window, go on for ever."""
    scatter = data.draw(st.lists(st.floats(-0.49, 0.49), min_size=length, max_size=length))
    gain = slope * (LIMIT - 1)
    assert num_until_stalled([start + slope * n + gain * part for n, part in enumerate(scatter)]) is None
    plateau = data.draw(st.integers(1, LIMIT))
    assert num_until_stalled([float(number // plateau) for number in range(length)]) is None


@given(st.floats(-1e6, 1e6), st.lists(st.floats(0, 1e3), min_size=LIMIT, max_size=LIMIT))
def test_flat_scores_stall_at_once_after_the_window(best: float, below: list[float]) -> None:
    """As many scores as the setting says that are no better than the best: flat, or falling."""
    falling = [best - each for each in sorted(below)]
    assert num_until_stalled([best, *[best] * LIMIT]) == LIMIT + 1
    assert num_until_stalled([best, *falling]) == LIMIT + 1
    assert num_until_stalled([best] * 100, StallPolicy(max_flat_scores=None)) is None


def test_noisy_rises_are_rarely_ended() -> None:
    """By the setting's default, of 200 runs of 100 scores that rise by a tenth of their scatter each, at most 1 % end.

    Of runs that only scatter, most do.
    """
    chance = random.Random(3)
    rising = [[0.1 * place + chance.gauss(0, 1) for place in range(100)] for _ in range(200)]
    flat = [[chance.gauss(0, 1) for _ in range(300)] for _ in range(100)]
    assert sum(num_until_stalled(each, StallPolicy()) is not None for each in rising) <= 2
    assert sum(num_until_stalled(each, StallPolicy()) is not None for each in flat) >= 95


def test_scores_that_recover_go_on() -> None:
    """A window below the best that rises steadily is no stall yet."""
    assert num_until_stalled([100.0, *[float(number) for number in range(50)]]) is None


def test_one_agent_that_improves_keeps_the_run() -> None:
    """The flat scores of another do not end it; what is as good as before does not count as better."""
    stalls = Stalls(POLICY)
    for number in range(5 * LIMIT):
        stalls.add(score(1.0, "flat"))
        stalls.add(score(float(number), "better"))
        assert not stalls.reason
    for _ in range(LIMIT):
        stalls.add(score(1.0, "flat"))
    assert "the last 10 scores of flat" in stalls.reason
    stalls.add(model("something new"))
    assert stalls.reason, "words do not make scores better"


def test_circles_of_answers_stall() -> None:
    """Two agents that hand the same back and forth, in new rounds and deeper steps, get nowhere."""
    stalls = Stalls(POLICY)
    for number in range(LIMIT // 2 + 1):
        assert not stalls.reason
        stalls.add(model("you do it", step=f"s#{number}", call=str(number)))
        stalls.add(model("no, you", step=f"s#{number}/{number}.b", agent="b"))
    assert "the last 10 answers of models, now of b" in stalls.reason
    stalls.add(model("I did it"))
    assert not stalls.reason


def test_what_is_new_is_no_circle() -> None:
    """Other questions, items side by side, results of tools and notes are new; a tool asked again is only waiting."""
    tool = ev.ToolCalled(run="r", step="s", agent="a", tool="t", arguments={}, output="same")
    ways: tuple[Callable[[int], ev.Event], ...] = (
        lambda number: model("ok", question=str(number)),
        lambda number: model("ok", step=f"s[{number}]"),
        lambda number: model("ok", call=f"4[{number}].1"),
        lambda number: ev.NoteTaken(run="r", step="s", agent="a", text=str(number)),
        lambda number: ev.ToolCalled(run="r", step="s", agent="a", tool="t", arguments={}, output=number),
    )
    for fresh in ways:
        stalls = Stalls(POLICY)
        for number in range(5 * LIMIT):
            stalls.add(model("same"))
            stalls.add(fresh(number))
            stalls.add(tool)
            assert not stalls.reason
    stalls = Stalls(POLICY)
    for _ in range(1_000):
        stalls.add(tool)
    assert not stalls.reason


def test_memory_is_bounded() -> None:
    """A run of a million answers keeps as many hashes as one of a few thousand."""
    stalls = Stalls(POLICY)
    for number in range(MAX_HASHES + 100):
        stalls.add(model("ok", question=str(number)))
    assert len(stalls._seen) == MAX_HASHES  # pyright: ignore[reportPrivateUsage]


# -- in a run -------------------------------------------------------------------------------------------------------


class Looper:
    """Asks the same for ever, or `times`."""

    name = "looper"
    description = "asks"

    def __init__(self, times: int = 1_000) -> None:
        self.times = times

    async def run(self, context: Any, task: object) -> str:
        context.keep("half of it")
        answer = ""
        for _ in range(self.times):
            answer = await context.generate("the same question")
        return str(answer)


class Scorer:
    """Reports what it is given, one score after another, and goes on after errors."""

    name = "scorer"
    description = "reports"

    def __init__(self, scores: Sequence[Any]) -> None:
        self.scores = scores

    async def run(self, context: Any, task: object) -> str:
        for value in self.scores:
            try:
                context.report(value)
            except StalledError:
                context.keep(f"stopped at {value}")
        return "done"


class Round:
    """Asks one question a round."""

    name = "round"
    description = "asks"

    async def run(self, context: Any, task: object) -> str:
        return str(await context.generate("better?"))


def collected(fleet: Fleet, *what: Any, resume: str = "") -> tuple[list[ev.Event], Exception | None]:
    async def run() -> tuple[list[ev.Event], Exception | None]:
        events: list[ev.Event] = []
        try:
            async for event in fleet.resume(resume) if resume else fleet.run(*what):
                events.append(event)  # noqa: PERF401 - what came before the error counts
        except StalledError as error:
            return events, error
        return events, None

    return asyncio.run(run())


def fleet_of(agent: Any, answers: Any = "no", policy: StallPolicy = POLICY) -> Fleet:
    return Fleet(ScriptedBackend(lambda _: answers), [agent], limits=FleetLimits(stalls=policy))


def test_a_run_in_circles_ends_with_what_there_is() -> None:
    """The eleventh repetition is not asked for any more; the run tells why, and its partial result."""
    fleet = fleet_of(Looper())
    events, error = collected(fleet, "x")
    end = events[-1]
    assert isinstance(end, ev.RunFailed)
    assert (end.reason, end.kind) == ("stalled", "StalledError")
    assert list(end.partial.values()) == ["half of it"]
    assert "the run has stalled: the last 10 answers" in str(error)
    assert sum(isinstance(event, ev.ModelCalled) for event in events) == LIMIT + 1
    kept = [record.event for record in fleet.journal.replay(end.run)]
    assert json.loads(ev.encode_event(kept[-1]))["reason"] == "stalled"


def test_a_run_that_ends_by_itself_is_left_alone() -> None:
    """A stall that is seen at the last call takes no result away; without limits nothing is ended."""
    events, error = collected(fleet_of(Looper(LIMIT + 1)), "x")
    assert (error, type(events[-1])) == (None, ev.RunFinished)
    never = StallPolicy(max_repeats=None)
    _, error = collected(fleet_of(Looper(5 * LIMIT), policy=never), "x")
    assert error is None


def test_flat_scores_end_a_run_whatever_its_agent_makes_of_it() -> None:
    """An agent that catches the error cannot go on; what it kept is there."""
    events, error = collected(fleet_of(Scorer([1.0] * 20)), "x")
    assert "none of the last 10 scores of scorer is above 1" in str(error)
    assert sum(isinstance(event, ev.ScoreReported) for event in events) == LIMIT + 1
    _, error = collected(fleet_of(Scorer(range(200))), "x")
    assert error is None


def test_scores_of_one_search_are_compared_with_no_others() -> None:
    """A hundred searches that end alike are no stall, one that stays flat is, and a new one saves no other."""
    stalls = Stalls(POLICY)
    for number in range(100):
        stalls.add(score(1.0, series=f"search {number}"))
    assert not stalls.reason
    for number in range(LIMIT + 1):
        assert not stalls.reason
        stalls.add(score(1.0, series=f"more {number}"))
        stalls.add(score(1.0, series="flat"))
    assert stalls.reason


@pytest.mark.parametrize("wrong", ["good", float("nan"), float("inf"), True, None])
def test_a_score_is_a_number(wrong: object) -> None:
    """What compares with nothing would never be flat."""
    with pytest.raises(RequestError, match="a score is a finite number, got"):
        collected(fleet_of(Scorer([wrong])), "x")


def test_a_loop_of_a_graph_stalls() -> None:
    """Rounds that ask the same and are answered the same are a circle, though each is an agent of its own."""
    step = Step(name="loop", task=Task(text="x"), agent="round", repeat=Repeat(max=100))
    events, error = collected(fleet_of(Round()), [step])
    assert isinstance(error, StalledError)
    assert sum(isinstance(event, ev.ModelCalled) for event in events) == LIMIT + 1


def test_a_stalled_run_goes_on_when_resumed() -> None:
    """Its calls are not made again and do not count again: it has the whole limit anew."""
    fleet = fleet_of(Looper())
    events, _ = collected(fleet, "x")
    again, error = collected(fleet, resume=events[-1].run)
    assert isinstance(error, StalledError)
    backend = fleet.backend
    assert isinstance(backend, ScriptedBackend)
    assert len(backend.requests) == 2 * (LIMIT + 1)
    assert isinstance(again[-1], ev.RunFailed)
