r"""JSON schemas as llguidance is given them: written as models write JSON, and read as the standard has it.

llguidance takes `2021-02-29` for a date, and U+FEFF for `\S`. Dates and times become patterns here; `\s` and `\S`
become what is, or is not, white space for ECMAScript and Python alike, so that validators of either kind agree.
"""

from __future__ import annotations

import json
import re
from typing import cast

from pyagent.core.messages import JsonObject

SPACING: JsonObject = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As models are shown JSON; a small model left free to add spaces adds them for ever."""

_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_IN_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_ALONE = frozenset({"items", "additionalItems", "additionalProperties", "unevaluatedProperties", "not"})
_TOUCHED = re.compile(r'"format"|\\\\[sS]')
_ESCAPE = re.compile(r"\\.|[\[\]]", re.DOTALL)

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR_MINUTE}:[0-5][0-9](?:\.[0-9]+)?(?:[Zz]|[+-]{_HOUR_MINUTE})"
"""Without leap seconds, which are not in every minute."""
_FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}[Tt]{_TIME}$"}

_SPACES = r"\t\n\x0B\f\r \u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000"
_MAYBE_SPACES = r"\uFEFF\u0085\x1C-\x1F"
"""White space for one of them alone."""


def schema_text(schema: JsonObject) -> str:
    """Return a schema as llguidance's grammars take it after `%json`."""
    text = quoted({**schema, "x-guidance": SPACING})
    return quoted(_rewritten(json.loads(text))) if _TOUCHED.search(text) else text


def quoted(value: object) -> str:
    """Return a text, or any JSON, as a grammar has it: no control character stands in it as it is, U+007F neither."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")


def _rewritten(schema: object) -> object:
    if not isinstance(schema, dict):
        return schema
    node = {keyword: _inner(keyword, value) for keyword, value in cast("JsonObject", schema).items()}
    pattern = _FORMATS.get(cast("str", node["format"])) if isinstance(node.get("format"), str) else None
    if pattern is not None:
        del node["format"]
        own = node.get("allOf")
        if "pattern" not in node:
            node["pattern"] = pattern
        else:
            node["allOf"] = [*(cast("list[object]", own) if isinstance(own, list) else ()), {"pattern": pattern}]
    return node


def _inner(keyword: str, value: object) -> object:
    if isinstance(value, dict) and keyword in _BY_NAME:
        named = cast("JsonObject", value)
        is_regex = keyword == "patternProperties"
        return {same_spaces(name) if is_regex else name: _rewritten(held) for name, held in named.items()}
    if isinstance(value, list) and keyword in _IN_LISTS:
        return [_rewritten(held) for held in cast("list[object]", value)]
    if isinstance(value, dict) and keyword in _ALONE:
        return _rewritten(cast("object", value))
    return same_spaces(value) if keyword == "pattern" and isinstance(value, str) else cast("object", value)


def same_spaces(pattern: str) -> str:
    r"""Return a regex whose `\s` and `\S` mean the same to ECMAScript and Python."""
    depth = 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal depth
        what = match[0]
        if what in "[]":
            depth = 1 if what == "[" else 0  # a bracket within a class is a letter
        elif what == r"\s":
            return _SPACES if depth else f"[{_SPACES}]"
        elif what == r"\S":
            return rf"[^\s{_MAYBE_SPACES}]"
        return what

    return _ESCAPE.sub(replaced, pattern)
