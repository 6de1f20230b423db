"""Writes docs/reference/events.md from the events' own structs: each kind, when it comes, and its fields.

.venv/bin/python docs/event_reference.py > docs/reference/events.md
"""

from __future__ import annotations

import inspect
import re
import sys
from typing import get_args

import msgspec

from pyagent.core.fleet import events

_BEGINNING = """# Events of runs

What a run does, in order: `fleet.run` yields these events in Python, the journal keeps them (all but `text_delta`),
and `pyagent run --json`, `pyagent runs show --json` and `GET /v1/runs/ID/events` write them as JSON with the kind in
the field `event`. Over HTTP a last event `end` has the run's `state`; it is no event of the run.

A run is `run_started`, for each step a `route_chosen` and an `agent_started`, then what the agent does, an
`agent_finished`, `agent_failed` or `agent_declined`, and at the end `run_finished` or `run_failed`. A run that is
resumed has a `run_resumed` after its earlier end, and goes on. Of events that come side by side each has its `step`,
a path in the run's tree: `summarize/2.reasoning` is an agent that the second call of the step `summarize` spawned.

This page is made from the code by `docs/event_reference.py`.
"""


def kinds() -> list[type[msgspec.Struct]]:
    """Return the structs of all events, in the order in which they stand in the code."""
    return list(get_args(events.Event))


def render() -> str:
    """Return the page."""
    parts = [_BEGINNING]
    parts += [_described(kind, str(kind.__struct_config__.tag)) for kind in kinds()]
    parts.append("# Parts of events\n")
    parts += [_described(kind, kind.__name__) for kind in (events.Totals, events.Question, events.StepFailure)]
    return "\n".join(parts)


def _described(kind: type[msgspec.Struct], name: str) -> str:
    text = " ".join((inspect.getdoc(kind) or "").split())
    fields = [field for field in msgspec.structs.fields(kind) if field.name not in {"run", "at"}]
    rows = [f"| `{field.name}` | `{_type_of(kind, field.name)}` | {_default_of(field)} |" for field in fields]
    table = ["| field | type | default |", "|---|---|---|", *rows, ""] if rows else []
    class_name = f" (`{kind.__name__}`)" if name != kind.__name__ else ""
    return "\n".join([f"## `{name}`{class_name}", "", text, "", *table])


def _type_of(kind: type[msgspec.Struct], name: str) -> str:
    text = next(each.__annotations__[name] for each in kind.__mro__ if name in getattr(each, "__annotations__", {}))
    return str(text).replace("|", "\\|")


def _default_of(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "always there"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    shown = msgspec.json.encode(value, enc_hook=str).decode()
    return f"`{re.sub(r'^{.+}$', '{...}', shown)}`"


if __name__ == "__main__":
    sys.stdout.write(render())
