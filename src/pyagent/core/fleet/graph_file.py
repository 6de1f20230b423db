"""A run's graph as TOML: `[[steps]]` with a name, a task, and what each comes after. Pure.

    [[steps]]
    name = "read"
    agent = "summarize"
    for_each = ["a.txt", "b.txt"]
    files = ["{item}"]

    [[steps]]
    name = "compare"
    after = ["read"]
    task = "{task} What do they disagree on?"

`{task}` is the run's task; a step with a list in `for_each` is one step for each item, `{item}` in its texts, and a
step after it is after all of them. A group, and `for_each = "{find.items}"`, are one step until they run (`graph_run`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.field_errors import field_error
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.places import Filling
from pyagent.core.fleet.step_checks import MAX_ITEMS
from pyagent.core.fleet.step_options import Join, Repeat, Retries, StepBudget
from pyagent.core.fleet.steps import Step, as_steps
from pyagent.core.messages import JsonObject

MAX_WAITS = 1_000_000
"""Pairs of a step and one that it comes after: 1,000 items after 1,000 others."""
MAX_STEPS = 10_000
MAX_CHARACTERS = 20_000_000
"""Of all texts of a graph together, with `{task}` and `{item}` filled in."""


class GraphStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step as the file has it."""

    name: str
    task: str = ""
    agent: str | None = None
    after: list[str] = []
    files: list[str] = []
    arguments: dict[str, Any] = {}  # what the agent's own type says
    steps: list[GraphStep] = []
    when: str = ""
    join: Join = "all"
    for_each: list[str] | str | None = None
    repeat: Repeat | None = None
    retries: Retries | None = None
    priority: int | None = None
    request_class: str | None = None
    deadline_seconds: float | None = None
    budget: StepBudget | None = None
    rate: str = ""

    @property
    def items(self) -> list[str] | None:
        """The items for which the file has steps of their own; None when it is one step, as where they share a rate."""
        return self.for_each if isinstance(self.for_each, list) and not (self.steps or self.rate) else None


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    steps: list[GraphStep]


def read_graph(text: str, task: str, folder: Path | None) -> list[Step]:
    """Return the steps of a graph in TOML; files stand below the folder; without one they are named as they are there.

    Raises `RequestError` naming what is wrong.
    """
    try:
        return graph_steps(msgspec.convert(tomllib.loads(text), Graph), task, folder)
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"the graph is no TOML: {error}", param="graph") from error
    except msgspec.ValidationError as error:
        raise RequestError(f"the graph is wrong: {field_error(error, Graph)}", param="graph") from error
    except ValueError as error:  # a number of thousands of digits
        raise RequestError(f"the graph cannot be read: {error}", param="graph") from error
    except RecursionError as error:
        raise RequestError("the graph has values within values, hundreds deep", param="graph") from error


def graph_steps(graph: Graph, task: str, folder: Path | None) -> list[Step]:
    """Return the steps of a graph; without a folder its files are named as they stand there."""
    return as_steps(_Reader(task, folder).steps(graph.steps), (), None)


class _Reader:
    """Makes steps of those of the file, counting what becomes of them."""

    def __init__(self, task: str, folder: Path | None) -> None:
        self._task = task
        self._folder = folder
        self._num_steps = self._num_characters = 0

    def steps(self, given: list[GraphStep]) -> list[Step]:
        """Return the steps of the graph, or of a group."""
        names = [step.name for step in given]
        if len(set(names)) < len(names):
            raise RequestError(f"a graph needs steps with different names, got {names!r:.500}", param="graph")
        name_to_parts = {step.name: _names(step) for step in given}
        self._check_size(given, name_to_parts)
        return [made for step in given for made in self._made(step, name_to_parts)]

    def _check_size(self, steps: list[GraphStep], name_to_parts: dict[str, list[str]]) -> None:
        """Refuse what a short file can ask for and no machine can hold: items after items after items."""
        self._num_steps += sum(map(len, name_to_parts.values()))
        num_waits = sum(
            len(name_to_parts[step.name]) * len(name_to_parts.get(after, [after]))
            for step in steps
            for after in step.after
        )
        counts = (("steps", self._num_steps, MAX_STEPS), ("waits of one for another", num_waits, MAX_WAITS))
        for what, count, most in counts:
            if count > most:
                raise RequestError(f"a graph has at most {most:,} {what}, this one has {count:,}", param="graph")

    def _made(self, step: GraphStep, name_to_parts: dict[str, list[str]]) -> Iterator[Step]:
        """Return the step, or one for each of its items."""
        after = tuple(part for name in step.after for part in name_to_parts.get(name, [name]))
        for number, name in enumerate(name_to_parts[step.name]):
            filling = Filling(task=self._task, items={} if step.items is None else {"item": step.items[number]})
            yield Step(
                name=name,
                agent=step.agent,
                after=after,
                task=self._counted(self._task_of(step, filling)),
                steps=tuple(self.steps(step.steps)) if step.steps else (),
                when=step.when,
                join=step.join,
                for_each=None if step.items is not None else _for_each(step),
                repeat=step.repeat,
                retries=step.retries,
                priority=step.priority,
                request_class=step.request_class,
                deadline_seconds=step.deadline_seconds,
                budget=step.budget,
                rate=step.rate,
            )

    def _task_of(self, step: GraphStep, filling: Filling) -> Task:
        names = map(filling.text, step.files)
        files = tuple(name if self._folder is None else str((self._folder / name).resolve()) for name in names)
        return Task(
            text=filling.text(step.task), files=files, arguments=cast("JsonObject", filling.value(step.arguments))
        )

    def _counted(self, task: Task) -> Task:
        self._num_characters += len(task.text) + sum(map(len, task.files)) + _num_characters(task.arguments)
        if self._num_characters > MAX_CHARACTERS:
            text = (
                f"the texts of a graph have at most {MAX_CHARACTERS:,} characters with {{task}} and {{item}} filled in"
            )
            raise RequestError(f"{text}; give a shorter task, or the task to fewer steps", param="graph")
        return task


def _names(step: GraphStep) -> list[str]:
    if (items := step.items) is None:
        return [step.name]
    if not 0 < len(items) <= MAX_ITEMS:
        text = f"for_each of the step {step.name} takes 1 to {MAX_ITEMS} items, got {len(items)}"
        raise RequestError(text, param="graph")
    return [f"{step.name}-{place}" for place in range(1, len(items) + 1)]


def _for_each(step: GraphStep) -> str | tuple[str, ...] | None:
    return tuple(step.for_each) if isinstance(step.for_each, list) else step.for_each


def _num_characters(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_num_characters(each) for each in cast("dict[str, object]", value).values())
    if isinstance(value, list):
        return sum(map(_num_characters, cast("list[object]", value)))
    return 0
