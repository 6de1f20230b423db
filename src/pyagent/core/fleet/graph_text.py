"""A graph to look at: as lines of a tree, as Mermaid's flowchart, and as TOML. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pyagent.core.fleet.graph import topological_order
from pyagent.core.fleet.step_options import StepBudget
from pyagent.core.fleet.steps import Step

_MAX_TITLE = 60


def tree_lines(steps: Sequence[Step], indent: str = "") -> Iterator[str]:
    """Return a line for each step in the order they can run, the steps of a group below it."""
    width = max(len(step.name) for step in steps)
    for step in in_order(steps):
        about = " · ".join((*_task_words(step), *_option_words(step)))
        yield f"{indent}{step.name:<{width}}  {about}".rstrip()
        if step.steps:
            yield from tree_lines(step.steps, f"{indent}    ")


def mermaid_lines(steps: Sequence[Step]) -> Iterator[str]:
    """Return the lines of a Mermaid flowchart: groups as subgraphs, conditions on the edges."""
    yield "flowchart TD"
    name_to_id = {step.name: f"s{number}" for number, step in enumerate(_all_of(steps))}
    yield from _mermaid_nodes(steps, name_to_id, "    ")
    for step in _all_of(steps):
        label = f"|{_quoted(step.when)}|" if step.when else ""
        for before in step.after:
            yield f"    {name_to_id[before]} -->{label} {name_to_id[step.name]}"


def toml_of(steps: Sequence[Step]) -> str:
    """Return plain steps as TOML that `graph_file` reads: names, agents, tasks, files, and what comes after what."""
    return "\n".join(_toml_of(step) for step in steps)


def _toml_of(step: Step) -> str:
    pairs = {
        "name": step.name,
        "agent": step.agent,
        "after": step.after,
        "task": step.task.text,
        "files": step.task.files,
    }
    lines = (f"{key} = {_toml_value(value)}\n" for key, value in pairs.items() if value)
    return "[[steps]]\n" + "".join(lines)


def _toml_value(value: str | Sequence[str]) -> str:
    """Return a value as TOML: JSON's texts are its own, but for DEL and halves of surrogate pairs."""
    text = value.encode(errors="replace").decode() if isinstance(value, str) else [_toml_value(each) for each in value]
    return (
        json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
        if isinstance(text, str)
        else f"[{', '.join(text)}]"
    )


def _mermaid_nodes(steps: Sequence[Step], name_to_id: dict[str, str], indent: str) -> Iterator[str]:
    for step in in_order(steps):
        words = [step.name, *([step.agent] if step.agent else []), *loop_words(step)]
        label = _quoted(" · ".join(words))
        if not step.steps:
            yield f"{indent}{name_to_id[step.name]}[{label}]"
            continue
        yield f"{indent}subgraph {name_to_id[step.name]}[{label}]"
        yield from _mermaid_nodes(step.steps, name_to_id, f"{indent}    ")
        yield f"{indent}end"


def _all_of(steps: Sequence[Step]) -> Iterator[Step]:
    for step in in_order(steps):
        yield step
        yield from _all_of(step.steps)


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Return the steps in an order in which they can run."""
    name_to_step = {step.name: step for step in steps}
    return [name_to_step[name] for name in topological_order({step.name: step.after for step in steps})]


def _task_words(step: Step) -> Iterator[str]:
    if step.steps:
        yield f"group of {len(step.steps)}"
        return
    yield step.agent or "the agent that the router finds"
    title = " ".join((step.task.title or ", ".join(step.task.files)).split())
    if title:
        yield title if len(title) <= _MAX_TITLE else f"{title[: _MAX_TITLE - 1]}…"


def _option_words(step: Step) -> Iterator[str]:
    if step.after:
        names = ", ".join(step.after[:5]) + (f" and {len(step.after) - 5} more" if len(step.after) > 5 else "")
        yield f"after {names}" if step.join == "all" else f"after {step.join} of {names}"
    if step.when:
        yield f"when {step.when}"
    yield from loop_words(step)
    if step.priority is not None:
        yield f"priority {step.priority}"
    if step.request_class:
        yield f"class {step.request_class}"
    if step.deadline_seconds is not None:
        yield f"within {step.deadline_seconds:g} s"
    if step.rate:
        yield f"rate {step.rate}"
    if step.budget is not None:
        yield f"at most {', '.join(_budget_words(step.budget))}"


def _budget_words(budget: StepBudget) -> Iterator[str]:
    if budget.tokens is not None:
        yield f"{budget.tokens:,} tokens"
    if budget.usd is not None:
        yield f"${budget.usd:g}"
    if budget.seconds is not None:
        yield f"{budget.seconds:g} s a try"


def loop_words(step: Step) -> Iterator[str]:
    """Yield what is said of a step's items, rounds and tries."""
    if step.for_each is not None:
        yield f"for each of {step.for_each.strip('{}') if isinstance(step.for_each, str) else len(step.for_each)}"
    if step.repeat is not None:
        until = f" until {step.repeat.until}" if step.repeat.until else ""
        yield f"repeat{until}, at most {step.repeat.max} rounds"
    if step.retries is not None:
        yield "1 retry" if step.retries.max == 1 else f"{step.retries.max} retries"


def _quoted(text: str) -> str:
    """Return a label: Mermaid's sign for a quotation mark is an entity, and what begins one is escaped."""
    for sign, entity in (("&", "&amp;"), ("#", "&num;"), ('"', "&quot;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, entity)
    return f'"{" ".join(text.split())}"'
