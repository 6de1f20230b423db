"""What every agent must do.

    class TestTide(AgentConformance):
        tasks = ("Dover",)

        def make(self):
            return Tide()

Nothing is assumed of what an agent says, but that a task of `tasks` ends with a result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import pytest

from pyagent.core.backends import Backend
from pyagent.core.errors import AgentError, BackendError, PyAgentError
from pyagent.core.fleet.agent import Agent, Task, describe, is_pure, text_of
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.scores import checked_score
from pyagent.core.fleet.tools import FleetTool
from pyagent.testing.backends import EchoBackend, Reply, ScriptedBackend
from pyagent.testing.runs import play
from pyagent.testing.suites.checks import check_host_takes, check_json, run

_ODD_TEXTS = ("?", "\x00", "{" * 200, "word " * 4_000, "\N{LEFT-TO-RIGHT OVERRIDE}é", '{"a": [1, 2]', "-1e999")
_SCORE_SECONDS = 1.0
_CANCEL_SECONDS = 2.0


class AgentConformance:
    """Derive from it, and define `make`; `tasks` are some that the agent can do.

    `model` is what a model says: replies in turn, from the first for each task, or a function of the request; without
    any it repeats what it was asked. `tools`, `others` and `answers` are the tools, agents and a person's answers that
    the tasks need.
    """

    tasks: ClassVar[Sequence[Task | str]] = ("Say hello.",)
    model: ClassVar[Sequence[Reply | str]] = ()
    tools: ClassVar[Sequence[FleetTool]] = ()
    others: ClassVar[Sequence[Agent]] = ()
    answers: ClassVar[str | Sequence[str] | Mapping[str, str]] = ()

    def make(self) -> Agent:
        """Return a new agent."""
        raise NotImplementedError

    def make_backend(self) -> Backend:
        """Return what a fleet asks: a model that says `model`, or repeats what it was asked."""
        return ScriptedBackend([*self.model]) if self.model else EchoBackend()

    def is_same(self, one: object, other: object) -> bool:
        """Return whether two results say the same; override it where a result tells of the time it took."""
        return text_of(one) == text_of(other)

    def test_host_takes_the_agent(self) -> None:
        """It has a name, a description, an async `run(context, task)`, and needs only agents that are there."""
        agent = self.make()
        check_host_takes("agents", [agent])
        told = describe(agent)
        missing = set(told.needs) - {other.name for other in self.others}
        assert not missing, f"it needs {', '.join(sorted(missing))}, which `others` has not"
        assert self.tasks, "`tasks` is empty: nothing would be tested"

    def test_task_ends_with_a_result_of_its_type(self) -> None:
        """Each task ends with a result of the annotated type, which can be shown, and written down as JSON."""
        for task in self.tasks:
            result = self._result(self.make(), task)
            assert text_of(result).strip(), f"the result of {task!r} shows as nothing"
            check_json(f"the result of {task!r:.80}", result)

    def test_tasks_at_once_do_not_mix(self) -> None:
        """One agent does several tasks at the same time, each as it does it alone where it is pure."""
        agent, tasks = self.make(), [*self.tasks] * 3

        async def work() -> list[object]:
            return await asyncio.gather(*(self._run_open(agent, task) for task in tasks))

        found = run(work())
        if is_pure(agent):
            for task, result in zip(tasks, found, strict=True):
                self._check_same(task, result, self._result(self.make(), task))

    def test_pure_agent_repeats_itself(self) -> None:
        """One that says `is_pure` gives the same result again, since it may be begun again in mid-run."""
        agent = self.make()
        if not is_pure(agent):
            pytest.skip("it does not say that it is pure")
        for task in self.tasks:
            self._check_same(task, self._result(agent, task), self._result(agent, task))

    def test_cancelled_run_ends_at_once(self) -> None:
        """A run that is cancelled while the model is slow ends within two seconds, and the agent with it."""
        slow = ScriptedBackend(lambda _: Reply("late", delay_seconds=20.0))

        async def work() -> float:
            task = asyncio.create_task(self._run_open(self.make(), self.tasks[0], slow))
            await asyncio.wait([task], timeout=0.1)
            started = time.monotonic()
            task.cancel()
            await asyncio.wait([task])
            return time.monotonic() - started

        assert run(work()) < _CANCEL_SECONDS, "it went on after it was cancelled"

    def test_model_that_fails_is_told_as_such(self) -> None:
        """Without a model a run ends with a result, or with an error that has the model's reason."""
        down = BackendError("the model of the suite is down", backend="suite", retryable=False)
        failing = ScriptedBackend(lambda _: Reply(error=down))
        error = play(
            _task(self.tasks[0]),
            agents=[self.make(), *self.others],
            agent=self.make().name,
            model=failing,
            tools=self.tools,
            answers=self.answers,
        ).error
        assert error is None or not failing.requests or "is down" in str(error), f"the reason is lost: {error}"

    def test_odd_text_ends_with_a_result_or_an_own_error(self) -> None:
        """Whatever text comes, the run ends with a result or an error that the agent meant, never with a fault."""
        for text in _ODD_TEXTS:
            played = play(
                Task(text=text),
                agents=[self.make(), *self.others],
                agent=self.make().name,
                model=EchoBackend(),
                tools=self.tools,
                answers=self.answers or _says_no,
            )
            fault = played.error.__cause__ if isinstance(played.error, AgentError) else None
            is_meant = fault is None or isinstance(fault, PyAgentError)
            assert is_meant, f"{text[:40]!r} ends with a fault: {played.error}"

    def test_score_is_a_quick_share(self) -> None:
        """`score`, where there is one, says None or 0 to 1 of any text, at once, and the same when asked again."""
        score = getattr(self.make(), "score", None)
        if score is None:
            pytest.skip("it has no score")
        ask: Callable[[Task], object] = score
        for task in [*map(_task, self.tasks), *(Task(text=text) for text in _ODD_TEXTS)]:
            started = time.perf_counter()
            try:
                found = checked_score(ask(task))
            except (TypeError, ValueError) as error:
                raise AssertionError(f"the score of {task.text[:40]!r} is none: {error}") from error
            assert time.perf_counter() - started < _SCORE_SECONDS, "its score takes more than a second"
            assert found == checked_score(ask(task)), "it scores the same task differently"

    def test_close_is_safe_twice(self) -> None:
        """`close`, where there is one, may come twice, also without a run before."""
        close = getattr(self.make(), "close", None)
        if close is None:
            pytest.skip("it has nothing to close")

        async def work() -> None:
            await close()
            await close()

        run(work())

    def _check_same(self, task: Task | str, one: object, other: object) -> None:
        assert self.is_same(one, other), f"of {task!r:.80} it gives {text_of(one)!r:.80} and {text_of(other)!r:.80}"

    def _result(self, agent: Agent, task: Task | str) -> object:
        """Return what a run of its own gives; fail with what it ended with."""
        return run(self._run_open(agent, task))

    async def _run_open(self, agent: Agent, task: Task | str, model: Backend | None = None) -> object:
        """Return what a fleet of its own gives, which leaves the agent open."""
        fleet = Fleet(model or self.make_backend(), [agent, *self.others], self.tools, approved_tools=["*"])
        try:
            return await fleet.run_agent(agent.name, _task(task))
        except PyAgentError as error:
            raise AssertionError(f"the task {task!r} ends with {type(error).__name__}: {error}") from error


def _says_no(question: object) -> str:
    return "no"


def _task(task: Task | str) -> Task:
    return Task(text=task) if isinstance(task, str) else task
