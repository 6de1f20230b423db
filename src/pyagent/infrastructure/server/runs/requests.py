"""What clients send about runs, as structs, and checked. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.graph_file import Graph, GraphStep, graph_steps
from pyagent.core.fleet.journal import PRIVATE_PREFIX
from pyagent.core.fleet.limits import RunBudget, check_budget
from pyagent.core.fleet.steps import Step, as_steps
from pyagent.infrastructure.server.agents import MAX_TASK_CHARS
from pyagent.infrastructure.server.validation import check_name

_MAX_KEY_CHARS = 256
_MAX_NUMBER = 2**31


class RunBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/runs: a task, or steps, each as in a graph's file.

    With `plan` a model first makes steps of the task; `ask` shows them before they run. Without it the settings decide.
    With `stream` the answer is the run's events; `on_disconnect` says what then becomes of the run.
    """

    task: str = ""
    agent: str | None = None
    files: list[str] = []
    arguments: dict[str, Any] = {}  # what the agent's own type says
    steps: list[GraphStep] | None = None
    private: bool = False
    timeout_seconds: float | None = None
    priority: int = 0
    request_class: str = ""
    waits_for_answers: bool | None = None
    budget: RunBudget = RunBudget()
    plan: bool | Literal["off", "auto", "ask"] | None = None
    stream: bool = False
    on_disconnect: Literal["continue", "cancel"] = "continue"

    def as_steps(self) -> list[Step]:
        """Return the run's steps. Raises `RequestError` naming what is wrong."""
        if self.timeout_seconds is not None and not 0 < self.timeout_seconds < _MAX_NUMBER:
            text = f"timeout_seconds is above 0 and below {_MAX_NUMBER}, got {self.timeout_seconds:g}"
            raise RequestError(text, param="timeout_seconds")
        if self.on_disconnect == "cancel" and not self.stream:
            text = "on_disconnect=cancel needs stream=true: nothing else of this run is a connection"
            raise RequestError(text, param="on_disconnect")
        if abs(self.priority) > _MAX_NUMBER:
            raise RequestError(f"priority is at most {_MAX_NUMBER}, got {self.priority}", param="priority")
        check_name("request_class", self.request_class)
        check_budget(self.budget)
        _check_size(len(self.task))
        if self.steps is None:
            task = Task(text=self.task, arguments=self.arguments)
            return as_steps(task, tuple(self.files), self.agent)
        if self.agent or self.files or self.arguments:
            param = "agent" if self.agent else "files" if self.files else "arguments"
            raise RequestError("with steps, agents, files and arguments stand in the steps", param=param)
        steps = graph_steps(Graph(self.steps), self.task, None)
        check_size_of(steps)
        return steps


def check_size_of(steps: Sequence[Step]) -> None:
    """Refuse steps that say more than a run may."""
    _check_size(sum(len(step.task.text) for step in all_steps(steps)))


def _check_size(num_chars: int) -> None:
    """Refuse a run whose steps together say more than one agent is told."""
    if num_chars > MAX_TASK_CHARS:
        text = f"a run takes up to {MAX_TASK_CHARS} characters, the tasks of all its steps together; got {num_chars}"
        raise RequestError(text, param="task", code="context_length_exceeded")


def all_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """Return steps with those of their groups."""
    for step in steps:
        yield step
        yield from all_steps(step.steps)


class CancelBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/runs/ID/cancel. With `wait` the answer comes when the run has ended."""

    wait: bool = False


class ResumeBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/runs/ID/resume: answers to the run's questions, by their ids."""

    answers: dict[str, str] = {}
    waits_for_answers: bool | None = None


class ForkBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/runs/ID/fork: the step to run again, and its new task if it gets one."""

    step: str
    task: str | None = None
    waits_for_answers: bool | None = None


class MarkBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/runs/ID/mark: `good`, `bad` or a number from 0 to 1."""

    mark: str | float


class AnswerBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/runs/ID/answer: a question's id, and the answer. One question needs no id."""

    answer: str
    question: str | None = None
    waits_for_answers: bool | None = None


def chosen_id(key: str | None, tenant: str, *, is_private: bool) -> str | None:
    """Return the id of the run that an idempotency key stands for: each tenant's own, and equal each time.

    Raises `RequestError` for a key that is none.
    """
    if key is None:
        return None
    return f"{PRIVATE_PREFIX if is_private else 'r-'}{key_hash(key, tenant)}"


def key_hash(key: str, tenant: str) -> str:
    """Return what stands for a tenant's idempotency key. Raises `RequestError` for a key that is none."""
    if not (0 < len(key) <= _MAX_KEY_CHARS and key.isascii() and key.isprintable()):
        text = f"Idempotency-Key takes 1 to {_MAX_KEY_CHARS} printable ASCII characters, got {len(key)}"
        raise RequestError(text, param="Idempotency-Key")
    return blake2b(f"{tenant}\0{key}".encode(), digest_size=12).hexdigest()


def event_number(start: str | None, last_id: str | None) -> int:
    """Return the number of the first event that is wanted, by `?start=` or what a client that reconnects had last.

    Raises `RequestError` for what is no number.
    """
    given, param = (last_id, "Last-Event-ID") if last_id else (start, "start")
    if not given:
        return 0
    if not (given.isascii() and given.isdigit() and int(given[:10]) < _MAX_NUMBER and len(given) <= 10):
        raise RequestError(f"{param} is the number of an event, from 0 on; got {given[:40]!r}", param=param)
    return int(given) + 1 if last_id else int(given)
