"""Which part of a JSON schema a backend refuses it for: found by asking again with less of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyagent.core.messages import JsonObject
from pyagent.core.structured_output.schema_checks import nodes_of

_MAX_SECONDS = 0.05
_DEFINITIONS = ("$schema", "$defs", "definitions")


def blamed(schema: JsonObject, error: str, refuses: Callable[[JsonObject], str]) -> str:
    """Return the JSON pointer of the keyword without which the error is gone, in the smallest part that has the error.

    `refuses` says why a schema is refused. It has 50 ms of processor time; a large part is better told than none.
    """
    until = time.thread_time() + _MAX_SECONDS
    nodes = nodes_of(schema)
    shared = {keyword: schema[keyword] for keyword in _DEFINITIONS if keyword in schema}
    for pointer in sorted(nodes, key=lambda pointer: -pointer.count("/")):
        node = nodes[pointer]
        if time.thread_time() > until:
            break
        if pointer and refuses({**shared, **node}) != error:
            continue
        for keyword in sorted(node, key=lambda keyword: keyword in _DEFINITIONS):
            part = {**shared, **node}
            del part[keyword]
            if refuses(part) != error:
                return f"#{pointer}/{keyword.replace('~', '~0').replace('/', '~1')}"
        return f"#{pointer}"
    return "#"
