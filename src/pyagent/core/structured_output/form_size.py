"""Whether a response format is so short that its source is made in microseconds. Pure."""

from __future__ import annotations

from typing import cast

from pyagent.core.messages import ResponseFormat

_SHORT = 2_000
"""Letters, values and places of a schema, choices or a regex: their source is made in 50 µs."""


def is_short(wanted: ResponseFormat) -> bool:
    """Return whether the source of a format is made in less time than it takes to hand it to a thread.

    Looks at no more than a bounded part of it. Grammars, tags and combinations are read by parsers of their own, and
    are never short.
    """
    if wanted.grammar or wanted.structural_tag or wanted.members:
        return False
    schema = None if wanted.json_schema is None else wanted.json_schema.schema
    left, unread = _SHORT, [cast("object", part) for part in (wanted.choice, wanted.regex, schema)]
    while unread:
        value = unread.pop()
        if isinstance(value, str | dict | list):
            left -= len(cast("str | dict[str, object] | list[object]", value))
        left -= 1
        if left < 0:
            return False
        if isinstance(value, dict):
            unread += cast("dict[str, object]", value).values()
            left -= sum(map(len, cast("dict[str, object]", value)))
        elif isinstance(value, list):
            unread += cast("list[object]", value)
    return left >= 0
