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

`{task}` is the run's task; a step with `for_each` is one step for each item, `{item}` in its texts, and a step after it
is after all of them.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.field_errors import field_error
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.steps import Step, as_steps
from pyagent.core.messages import JsonObject

MAX_ITEMS = 1_000
MAX_WAITS = 1_000_000
"""Pairs of a step and one that it comes after: 1,000 items after 1,000 others."""
MAX_STEPS = 10_000
_ITEM, _TASK = "{item}", "{task}"
_PLACE = re.compile(r"\{item\}|\{task\}")


class GraphStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step as the file has it."""

    name: str
    task: str = ""
    agent: str | None = None
    after: list[str] = []
    files: list[str] = []
    arguments: dict[str, Any] = {}  # what the agent's own type says
    for_each: list[str] | None = None


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    steps: list[GraphStep]


def read_graph(text: str, task: str, folder: Path) -> list[Step]:
    """Return the steps of a graph in TOML; files stand below the folder. Raises `RequestError` naming what is wrong."""
    try:
        return graph_steps(msgspec.convert(tomllib.loads(text), Graph), task, folder)
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"the graph is no TOML: {error}", param="graph") from error
    except msgspec.ValidationError as error:
        raise RequestError(f"the graph is wrong: {field_error(error, Graph)}", param="graph") from error
    except RecursionError as error:
        raise RequestError("the graph has values within values, hundreds deep", param="graph") from error


def graph_steps(graph: Graph, task: str, folder: Path | None) -> list[Step]:
    """Return the steps of a graph; without a folder its files are named as they stand there."""
    names = [step.name for step in graph.steps]
    if len(set(names)) < len(names):
        raise RequestError(f"a graph needs steps with different names, got {names}", param="graph")
    name_to_parts = {step.name: _names(step) for step in graph.steps}
    _check_size(graph.steps, name_to_parts)
    return as_steps([made for step in graph.steps for made in _made(step, name_to_parts, task, folder)], (), None)


def _check_size(steps: list[GraphStep], name_to_parts: dict[str, list[str]]) -> None:
    """Refuse what a short file can ask for and no machine can hold: items after items after items."""
    num_steps = sum(map(len, name_to_parts.values()))
    num_waits = sum(
        len(name_to_parts[step.name]) * len(name_to_parts.get(after, [after])) for step in steps for after in step.after
    )
    for what, count, most in (("steps", num_steps, MAX_STEPS), ("waits of one for another", num_waits, MAX_WAITS)):
        if count > most:
            raise RequestError(f"a graph has at most {most:,} {what}, this one has {count:,}", param="graph")


def _names(step: GraphStep) -> list[str]:
    if step.for_each is None:
        return [step.name]
    if not 0 < len(step.for_each) <= MAX_ITEMS:
        text = f"for_each of the step {step.name} takes 1 to {MAX_ITEMS} items, got {len(step.for_each)}"
        raise RequestError(text, param="graph")
    return [f"{step.name}-{place}" for place in range(1, len(step.for_each) + 1)]


def _made(step: GraphStep, name_to_parts: dict[str, list[str]], task: str, folder: Path | None) -> list[Step]:
    """Return the step, or one for each of its items."""
    after = tuple(part for name in step.after for part in name_to_parts.get(name, [name]))
    items = [""] if step.for_each is None else step.for_each
    return [
        Step(name=name, agent=step.agent, after=after, task=_task(step, item, task, folder))
        for name, item in zip(name_to_parts[step.name], items, strict=True)
    ]


def _task(step: GraphStep, item: str, task: str, folder: Path | None) -> Task:
    names = (_filled(name, item, task) for name in step.files)
    files = tuple(name if folder is None else str((folder / name).resolve()) for name in names)
    arguments = cast("JsonObject", _filled_all(step.arguments, item, task))
    return Task(text=_filled(step.task, item, task), files=files, arguments=arguments)


def _filled(text: str, item: str, task: str) -> str:
    """Put the item and the task in their places, in one pass: what one of them says is no place for the other."""
    given = {_TASK: task} | ({_ITEM: item} if item else {})
    return _PLACE.sub(lambda found: given.get(found[0], found[0]), text)


def _filled_all(value: object, item: str, task: str) -> object:
    if isinstance(value, str):
        return _filled(value, item, task)
    if isinstance(value, list):
        return [_filled_all(each, item, task) for each in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: _filled_all(each, item, task) for key, each in cast("dict[str, object]", value).items()}
    return value
