"""Runs for tests: a task or a graph of steps with agents and tools of the test's, a model that follows a script, and
answers to what the agents ask. Nothing is read from settings, no plugin is loaded, and nothing is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from pyagent.core.backends import Backend
from pyagent.core.errors import PyAgentError, RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.events import Event, Question, QuestionAsked, RunFinished
from pyagent.core.fleet.guardrails import Guardrail
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.steps import Step
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import ChatRequest
from pyagent.testing.backends import Reply, ScriptedBackend
from pyagent.testing.recorded import RecordedBackend

E = TypeVar("E")
Answers = str | Sequence[str] | Mapping[str, str] | Callable[[Question], str]
"""What a person says: in turn, by a part of the question's text, or as a function of the question."""


@dataclass(frozen=True, slots=True)
class Played:
    """A run that is over. `requests` is what a scripted or recorded model was asked; `error` is how it ended."""

    events: tuple[Event, ...]
    requests: tuple[ChatRequest, ...] = ()
    error: PyAgentError | None = None
    _result: object = field(default=None, repr=False)

    @property
    def result(self) -> object:
        """What the run returned; raises what it ended with."""
        if self.error is not None:
            raise self.error
        return self._result

    @property
    def prompts(self) -> tuple[str, ...]:
        """The last message of each request to the model."""
        return tuple(one.messages[-1].text if one.messages else one.prompt or "" for one in self.requests)

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of a kind, in their order."""
        return [event for event in self.events if isinstance(event, kind)]


def play(  # noqa: PLR0913 - each is another thing of the run
    task: str | Task | Sequence[Step],
    *,
    agents: Iterable[Agent],
    agent: str | None = None,
    model: Backend | str | Sequence[Reply | str] = (),
    tools: Iterable[FleetTool] = (),
    answers: Answers = (),
    guardrails: Iterable[Guardrail] = (),
    approved_tools: Iterable[str] = (),
    timeout_seconds: float = 30.0,
) -> Played:
    """Run a task, or a graph of steps, to its end, and return what happened. For tests without an event loop.

    `model` is a backend, which is closed at the end, or the replies of a scripted one. A question without an answer
    ends the run with a `RequestError` that has its text; so does what needs a person's approval and is not among
    `approved_tools`.
    """
    script = [model] if isinstance(model, str) else model
    backend = ScriptedBackend(list(script)) if isinstance(script, Sequence) else script
    fleet = Fleet(backend, agents, tools, guardrails=guardrails, approved_tools=approved_tools)
    events: list[Event] = []
    error: PyAgentError | None = None
    try:
        asyncio.run(_play(fleet, task, agent, _Person(answers), events, timeout_seconds))
    except PyAgentError as fault:
        error = fault
    result = next((event.output for event in events if isinstance(event, RunFinished)), None)
    asked = tuple(backend.requests) if isinstance(backend, ScriptedBackend | RecordedBackend) else ()
    return Played(tuple(events), asked, error, result)


async def _play(  # noqa: PLR0913, PLR0917 - as of `play`
    fleet: Fleet,
    task: str | Task | Sequence[Step],
    agent: str | None,
    person: _Person,
    events: list[Event],
    timeout_seconds: float,
) -> None:
    run = fleet.run(task, agent=agent, waits_for_answers=True, timeout_seconds=timeout_seconds)
    try:
        async with fleet, aclosing(run) as happening:
            async for event in happening:
                events.append(event)
                if isinstance(event, QuestionAsked):
                    fleet.answer(event.run, event.question.id, person.answer(event.question))
    finally:
        await fleet.backend.close()


class _Person:
    """Gives the answers of a test, in turn or by what is asked."""

    def __init__(self, answers: Answers) -> None:
        self._answers = (answers,) if isinstance(answers, str) else answers
        self._num_asked = 0

    def answer(self, question: Question) -> str:
        self._num_asked += 1
        match self._answers:
            case Mapping():
                fitting = [answer for part, answer in self._answers.items() if part in question.text]
            case Sequence():
                fitting = list(self._answers[self._num_asked - 1 : self._num_asked])
            case _:
                return self._answers(question)
        if not fitting:
            text = f"the run asks {question.text!r}, and `answers` has none for it: add one"
            raise RequestError(text, param="answers")
        return fitting[0]
