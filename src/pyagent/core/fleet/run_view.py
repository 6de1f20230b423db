"""A run at a glance: how it stands, its steps, what came of it, and what it waits for. Read from the journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from pyagent.core.fleet.event_reader import Records
from pyagent.core.fleet.events import (
    Question,
    QuestionAnswered,
    QuestionAsked,
    RouteChosen,
    RunFailed,
    RunFinished,
    Totals,
)
from pyagent.core.fleet.journal import JournalRecord, RunSummary, State
from pyagent.core.fleet.steps import RunSpec, Step

_MAY_WAIT = ("running", "needs_answer", "unfinished")
_NUM_FIRST = 64
"""Records among which a run's first route is looked for: before it there is at most the router's own question."""


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A step as it was asked for; a group has `steps`."""

    name: str
    task: str = ""
    agent: str | None = None
    after: tuple[str, ...] = ()
    steps: tuple[StepView, ...] = ()


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `output` is its result; `error` how it ended without one; `questions` are those that wait for an answer.

    `intent` is what its first task was taken for: the agent, how it was chosen, and how sure that was (`score`).
    `num_events` is how many events the journal has of it: following it from there on gives what is new.
    """

    id: str
    state: State
    task: str
    started_at: float
    steps: tuple[StepView, ...] = ()
    intent: RouteChosen | None = None
    num_events: int = 0
    output: object = None
    error: RunFailed | None = None
    questions: tuple[Question, ...] = ()
    totals: Totals | None = None
    forked_from: str | None = None


class Readable(Records, Protocol):
    """The part of a journal that a run is looked at by."""

    def spec(self, run: str) -> RunSpec:
        """Return what the run was asked."""
        ...

    def num_records(self, run: str) -> int:
        """Return how many records there are of a run."""
        ...

    def record(self, run: str, number: int) -> JournalRecord | None:
        """Return one record of the run."""
        ...


def view_of(journal: Readable, row: RunSummary) -> RunView:
    """Return a run by its row."""
    spec, num_events = journal.spec(row.run), journal.num_records(row.run)
    last = journal.record(row.run, num_events - 1) if num_events and row.state != "running" else None
    end = None if last is None else last.event
    first = (record.event for record in islice(journal.replay(row.run), _NUM_FIRST))
    return RunView(
        id=row.run,
        state=row.state,
        task=row.task,
        started_at=row.started_at,
        steps=_steps(spec.steps, spec),
        intent=next((event for event in first if isinstance(event, RouteChosen)), None),
        num_events=num_events,
        output=end.output if isinstance(end, RunFinished) else None,
        error=end if isinstance(end, RunFailed) else None,
        questions=tuple(open_questions(journal.replay(row.run))) if row.state in _MAY_WAIT else (),
        totals=row.totals,
        forked_from=spec.forked_from or None,
    )


def _steps(steps: Sequence[Step], spec: RunSpec) -> tuple[StepView, ...]:
    return tuple(
        StepView(
            name=step.name,
            task=spec.overrides.get(step.name, step.task).title,
            agent=step.agent,
            after=tuple(step.after),
            steps=_steps(step.steps, spec),
        )
        for step in steps
    )


def open_questions(records: Iterator[JournalRecord]) -> list[Question]:
    """Return the questions that were asked and not answered, in order; one that a fork asked anew is the newer."""
    asked: dict[tuple[str, str, str], Question] = {}
    for record in records:
        event = record.event
        if isinstance(event, QuestionAsked):
            asked[event.step, event.agent, event.call] = event.question
        elif isinstance(event, QuestionAnswered):
            asked = {key: question for key, question in asked.items() if question.id != event.question}
    return list(asked.values())
