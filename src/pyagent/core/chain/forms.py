"""Whether a whole answer has the form that was asked for: JSON, a schema, one of some choices. Pure.

Of JSON Schema the keywords that say what a value is are checked; others pass, so that no right answer is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from pyagent.core.messages import JsonObject, ResponseFormat

_MAX_DEPTH = 64
_TYPES: dict[str, Callable[[object], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) or (isinstance(value, float) and value.is_integer())) and not isinstance(value, bool)
    ),
}


def fault_in(text: str, wanted: ResponseFormat | None) -> str:
    """What is wrong with an answer's form; empty when it is as asked for."""
    if wanted is None or wanted.type == "text":
        return ""
    if wanted.type == "choice":
        return "" if text in (wanted.choice or ()) else f"{text[:60]!r} is none of the choices"
    try:
        value = cast("object", msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return f"it is not JSON: {error}"
    if wanted.json_schema is None:
        return "" if isinstance(value, dict) else "it is not a JSON object"
    return _fault(value, wanted.json_schema.schema, wanted.json_schema.schema, "the answer", 0)


def _fault(value: object, schema: object, root: JsonObject, where: str, depth: int) -> str:
    if schema is False:
        return f"{where} must not be there"
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return ""
    rules = cast("JsonObject", schema)
    reference = rules.get("$ref")
    if isinstance(reference, str):
        return _fault(value, _resolved(reference, root), root, where, depth + 1)
    kinds = rules.get("type")
    allowed = [kinds] if isinstance(kinds, str) else cast("list[str]", kinds or [])
    if allowed and not any(_TYPES.get(kind, lambda _: True)(value) for kind in allowed):
        return f"{where} is not of type {' or '.join(allowed)}"
    among = [rules["const"]] if "const" in rules else cast("list[object]", rules.get("enum", [value]))
    if value not in among:
        return f"{where} is none of {among!s:.80}"
    return (
        _fault_of_options(value, rules, root, where, depth)
        or (_fault_of_object(cast("JsonObject", value), rules, root, where, depth) if isinstance(value, dict) else "")
        or (_fault_of_items(cast("list[object]", value), rules, root, where, depth) if isinstance(value, list) else "")
    )


def _fault_of_options(value: object, rules: JsonObject, root: JsonObject, where: str, depth: int) -> str:
    for part in cast("list[object]", rules.get("allOf") or []):
        if fault := _fault(value, part, root, where, depth + 1):
            return fault
    for keyword in ("anyOf", "oneOf"):
        options = cast("list[object]", rules.get(keyword) or [])
        if options and all(_fault(value, option, root, where, depth + 1) for option in options):
            return f"{where} fits none of {keyword}"
    return ""


def _fault_of_object(value: JsonObject, rules: JsonObject, root: JsonObject, where: str, depth: int) -> str:
    missing = [key for key in cast("list[str]", rules.get("required") or []) if key not in value]
    if missing:
        return f"{where} lacks {missing[0]!r}"
    known = cast("JsonObject", rules.get("properties") or {})
    for key, entry in value.items():
        others = True if rules.get("patternProperties") else rules.get("additionalProperties", True)
        if fault := _fault(entry, known.get(key, others), root, f"{where}.{key}", depth + 1):
            return fault
    return ""


def _fault_of_items(value: list[object], rules: JsonObject, root: JsonObject, where: str, depth: int) -> str:
    if len(value) < cast("int", rules.get("minItems", 0)):
        return f"{where} has fewer than {rules['minItems']} entries"
    if len(value) > cast("int", rules.get("maxItems", len(value))):
        return f"{where} has more than {rules['maxItems']} entries"
    faults = (
        _fault(entry, rules.get("items", True), root, f"{where}[{at}]", depth + 1) for at, entry in enumerate(value)
    )
    return next(filter(None, faults), "")


def _resolved(reference: str, root: JsonObject) -> object:
    """The schema a local reference names; anything else passes."""
    found: object = root
    for part in reference.removeprefix("#").strip("/").split("/") if reference.startswith("#") else ():
        if not part:
            continue
        found = (
            cast("JsonObject", found).get(part.replace("~1", "/").replace("~0", "~"), True)
            if isinstance(found, dict)
            else True
        )
    return found if reference.startswith("#") else True
