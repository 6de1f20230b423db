"""A finished run's result, read from the journal as its agents gave it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Agent, output_type
from pyagent.core.fleet.event_reader import Records
from pyagent.core.fleet.events import AgentFinished, RunFinished
from pyagent.core.fleet.journal import RunSummary
from pyagent.core.fleet.past import restored


def result_from(journal: Records, row: RunSummary, agents: Mapping[str, Agent]) -> object:
    """Return a run's result: an agent's in the type that it promises, else plain data.

    Raises `RequestError` for a run that has none.
    """
    if row.state != "done":
        text = f"{row.run} is {row.state} and has no result; `pyagent runs show {row.run}` has what there is"
        raise RequestError(text, param="run", code="no_result")
    finished: dict[str, AgentFinished] = {}
    output: object = None
    for record in journal.replay(row.run):
        if isinstance(record.event, AgentFinished) and "/" not in record.event.step:
            finished[record.event.step] = record.event
        elif isinstance(record.event, RunFinished):
            output = record.event.output
    steps = cast("dict[str, object]", output) if isinstance(output, dict) else {}
    if steps and steps.keys() <= finished.keys():
        return {name: _typed(finished[name], agents) for name in steps}
    gave = [event for event in finished.values() if event.output == output]
    return _typed(gave[-1], agents) if gave else cast("object", output)


def _typed(finished: AgentFinished, agents: Mapping[str, Agent]) -> object:
    """Return an agent's result; as plain data where its agent, or its type, is another now."""
    if finished.agent not in agents:
        return finished.output
    try:
        return restored(finished.output, output_type(agents[finished.agent]))
    except (msgspec.ValidationError, TypeError):
        return finished.output
