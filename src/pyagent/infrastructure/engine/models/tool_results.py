"""Results of tools in the order of their calls. Pure.

Clients that run several calls at once may send the results as they come in, as Claude Code does. They have ids, but
many chat templates (Qwen's, Llama's) write none: there a result belongs to a call by its place alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pyagent.core.messages import Message


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """Return the messages, results that all answer one answer's calls in the order of those."""
    ordered: list[Message] = []
    for is_result, group in groupby(messages, key=lambda message: message.role == "tool"):
        run = [*group]
        calls = ordered[-1].tool_calls or () if is_result and ordered else ()
        places = {call.id: place for place, call in enumerate(calls)}
        found = [places.get(message.tool_call_id or "", -1) for message in run]
        if len(run) > 1 and -1 not in found and len(places) == len(calls):
            run.sort(key=lambda message: places[message.tool_call_id or ""])
        ordered += run
    return ordered
