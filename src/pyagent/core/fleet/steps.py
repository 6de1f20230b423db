"""What a run is asked to do: the steps of its graph, and for whom. Values, kept with the run so that it can go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task, unknown_name
from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.fleet.limits import RunBudget
from pyagent.core.fleet.step_checks import check_steps
from pyagent.core.fleet.step_options import Join, Repeat, Retries, StepBudget


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of a run's graph. Without an agent the router finds one; `after` names the steps whose results it gets.

    With `steps` it is a group, a graph in the graph, whose result is that of its last step. `when` is a condition on
    the results of the steps before it, `join` what it waits for. `for_each` is a list, or names one in a result
    (`{find.items}`): the step runs for each item, `{item}` in its task being that; its result is the list of theirs.
    Priority (lower goes first) and request class are for its requests to the engine; None is the run's.
    `deadline_seconds` begin with the step, and bound it with all its items, rounds and tries. `rate` (`30/minute`)
    is how often its agent may begin, for all of these together.
    """

    name: str
    task: Task = Task()
    agent: str | None = None
    after: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    when: str = ""
    join: Join = "all"
    for_each: str | tuple[str, ...] | None = None
    repeat: Repeat | None = None
    retries: Retries | None = None
    priority: int | None = None
    request_class: str | None = None
    deadline_seconds: float | None = None
    budget: StepBudget | None = None
    rate: str = ""


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run as it was asked for: `client` and `tenant` say by whom, the files it may read are below `file_root`.

    Of a fork, `forked_at` is the step from which on it runs again, and `overrides` has the tasks that steps get instead
    of what they were given, by the steps' paths. `offers_questions` says whether models may ask a person (`ask_user`),
    which stays so when the run goes on elsewhere; of an older run it is None.
    """

    steps: tuple[Step, ...]
    timeout_seconds: float | None = None
    client: str = ""
    tenant: str = ""
    is_limited_to_root: bool = False
    file_root: str | None = None
    forked_from: str = ""
    forked_at: str = ""
    overrides: dict[str, Task] = {}
    priority: int = 0
    request_class: str = ""
    plan: Literal["off", "auto", "ask"] = "off"
    budget: RunBudget = RunBudget()
    offers_questions: bool | None = None

    @classmethod
    def of(
        cls, steps: Sequence[Step], timeout_seconds: float | None, client: str, tenant: str, access: FileAccess
    ) -> RunSpec:
        """Return what is asked with these steps for a client of a tenant."""
        root = None if access.root is None else str(access.root)
        return cls(
            steps=tuple(steps),
            timeout_seconds=timeout_seconds,
            client=client,
            tenant=tenant,
            is_limited_to_root=access.is_limited,
            file_root=root,
        )

    @property
    def file_access(self) -> FileAccess:
        """Which files the run may read."""
        return FileAccess(self.is_limited_to_root, None if self.file_root is None else Path(self.file_root))


def forked(spec: RunSpec, run: str, step: str, task: Task | str | None) -> RunSpec:
    """Return what a fork of a run is asked from a step on, with another task for it if one is given."""
    overrides = dict(spec.overrides)
    if task is not None:
        overrides[step] = Task(text=task) if isinstance(task, str) else task
    return msgspec.structs.replace(spec, forked_from=run, forked_at=step, overrides=overrides)


def as_steps(task: str | Task | Sequence[Step], files: tuple[str, ...], agent: str | None) -> list[Step]:
    """Return a run's task as the steps of its graph; raises `RequestError` for what is none, names and cycles."""
    if isinstance(task, str | Task):
        task = Task(text=task) if isinstance(task, str) else task
        if not (task.text.strip() or task.files or files or task.arguments):
            raise RequestError("the task is empty: say what is to be done, or name a file", param="task")
        task = msgspec.structs.replace(task, files=task.files + files)
        return [Step(name=agent or "task", task=task, agent=agent)]
    if not isinstance(cast("object", task), Sequence):
        raise RequestError(f"a task is a text, a Task or a sequence of Steps, got {type(task).__name__}", param="task")
    if files or agent:
        raise RequestError("with steps, files and agents stand in the steps", param="files" if files else "agent")
    steps = list(task)
    if not steps:
        raise RequestError("a run needs at least one step", param="steps")
    for step in steps:
        if not isinstance(cast("object", step), Step):
            raise RequestError(f"a run takes steps, got a {type(step).__name__}", param="steps")
    check_steps(steps)
    return steps


def check_agents(steps: Sequence[Step], names: Sequence[str]) -> None:
    """Raise `RequestError` for a step, also of a group, whose agent is none of these."""
    for step in steps:
        if step.agent is not None and step.agent not in names:
            raise unknown_name("agent", step.agent, names)
        check_agents(step.steps, names)
