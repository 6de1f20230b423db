"""What clients send about runs, as structs, and checked. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.graph_file import Graph, GraphStep, graph_steps
from pyagent.core.fleet.journal import PRIVATE_PREFIX
from pyagent.core.fleet.steps import Step, as_steps
from pyagent.infrastructure.server.agents import MAX_TASK_CHARS

_MAX_KEY_CHARS = 256
_MAX_NUMBER = 2**31


class RunBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/runs: a task, or steps, each as in a graph's file.

    With `stream` the answer is the run's events; `on_disconnect` says what then becomes of the run.
    """

    task: str = ""
    agent: str | None = None
    files: list[str] = []
    arguments: dict[str, Any] = {}  # what the agent's own type says
    steps: list[GraphStep] | None = None
    private: bool = False
    timeout_seconds: float | None = None
    waits_for_answers: bool | None = None
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
        self._check_size()
        if self.steps is None:
            task = Task(text=self.task, arguments=self.arguments)
            return as_steps(task, tuple(self.files), self.agent)
        if self.agent or self.files or self.arguments:
            param = "agent" if self.agent else "files" if self.files else "arguments"
            raise RequestError("with steps, agents, files and arguments stand in the steps", param=param)
        return graph_steps(Graph(self.steps), self.task, None)

    def _check_size(self) -> None:
        """Refuse a run whose steps together say more than an agent is told: `{task}` and `{item}` repeat texts."""
        num_chars = len(self.task) + sum(_num_chars(step, self.task) for step in self.steps or ())
        if num_chars > MAX_TASK_CHARS:
            text = (
                f"a run takes up to {MAX_TASK_CHARS} characters, the tasks of all its steps together; got {num_chars}"
            )
            raise RequestError(text, param="task", code="context_length_exceeded")


def _num_chars(step: GraphStep, task: str) -> int:
    """Return about how many characters a step has when its places are filled."""
    text, items = msgspec.json.encode(step).decode(), step.for_each or [""]
    filled = len(text) + text.count("{task}") * len(task)
    return filled * len(items) + text.count("{item}") * sum(map(len, items))


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
    if not (0 < len(key) <= _MAX_KEY_CHARS and key.isascii() and key.isprintable()):
        text = f"Idempotency-Key takes 1 to {_MAX_KEY_CHARS} printable ASCII characters, got {len(key)}"
        raise RequestError(text, param="Idempotency-Key")
    digest = blake2b(f"{tenant}\0{key}".encode(), digest_size=12).hexdigest()
    return f"{PRIVATE_PREFIX if is_private else 'r-'}{digest}"


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
