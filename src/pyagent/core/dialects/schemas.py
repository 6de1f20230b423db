"""What dialects read from a tool's JSON schema: properties, types, constants.

Schemas are what clients send: whatever is not as JSON Schema has it counts as not said. Local references are followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from pyagent.core.messages import JsonObject, Tool

_MAX_DEPTH = 8
_MAX_ALTERNATIVES = 256
"""Schemas looked at for one type. Answers are read in the engine's own thread, and alternatives may name each other."""
_DEFINITIONS = ("$defs", "definitions")
_MAX_CLOSED_DEPTH = 32
_COMBINED = frozenset({"allOf", "oneOf", "not", "if", "dependentSchemas", "dependencies", "contains"})
_ALTERNATIVES = frozenset({"properties", "anyOf", "$ref"})
_OF_OTHERS = frozenset(
    {"additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties", "dependentRequired"}
)
"""Keywords by which an object may have, or need, properties that it does not name."""
_OF_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const"})
_OF_OBJECTS = frozenset({"type", "properties", "required", "additionalProperties"})
_MAX_INTEGER = 9 * 10**18
"""About what 64 bits hold; llguidance takes no more."""
_SAID_ONLY = frozenset({"title", "description", "default", "examples", "$comment", "$schema"})
_JSON_NAMES: dict[type, str] = {
    str: "string",
    bool: "boolean",  # before int, which it is too
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}


def schema_of(tool: Tool) -> JsonObject:
    """Return the schema of a tool's arguments; any object where it has none."""
    return tool.function.parameters or {"type": "object"}


def properties_of(schema: JsonObject) -> dict[str, JsonObject]:
    """Return the schemas of an object's properties, each with the definitions it may refer to."""
    shared = _shared(schema)
    return {key: {**shared, **_as_object(kind)} for key, kind in _as_object(schema.get("properties")).items()}


def property_of(schema: JsonObject, key: str) -> JsonObject:
    """Return the schema of one property; of any value where it is not among them."""
    return {**_shared(schema), **_as_object(_as_object(schema.get("properties")).get(key))}


def items_of(schema: JsonObject) -> JsonObject:
    """Return the schema of a list's items."""
    return {**_shared(schema), **_as_object(schema.get("items"))}


def others_of(schema: JsonObject) -> JsonObject | None:
    """Return the schema of properties under any name; None where an object has none, or names those it has."""
    said = schema.get("additionalProperties", "properties" not in schema)
    if said is False or _as_object(schema.get("properties")):
        return None
    return {**_shared(schema), **_as_object(said)}


def is_any(schema: JsonObject) -> bool:
    """Whether a schema says nothing of a value."""
    return schema.keys() <= set(_DEFINITIONS)


def required_of(schema: JsonObject) -> list[str]:
    """Return the properties that an object must have."""
    said = schema.get("required")
    return [one for one in cast("list[object]", said) if isinstance(one, str)] if isinstance(said, list) else []


def constants_of(schema: JsonObject) -> list[object]:
    """Return the values a schema allows, where it lists them."""
    schema = resolved(schema)
    if "const" in schema:
        return [schema["const"]]
    said = schema.get("enum")
    return list(cast("list[object]", said)) if isinstance(said, list) else []


def closed(schema: JsonObject) -> JsonObject:
    """Return a schema whose objects have the properties that they name, and others only where it says so.

    Integers have 64 bits: a small model goes on writing digits. A value that follows it follows the schema too. Objects
    of which two keywords speak at once stay as they are, and all of a schema in which references may lead to such.
    """
    nodes = list(_nodes(schema))
    if any("$ref" in node for node in nodes) and any(map(_is_combined, nodes)):
        return schema
    return _closed(schema)


def _closed(schema: JsonObject, depth: int = 0) -> JsonObject:
    if depth == _MAX_CLOSED_DEPTH or _is_combined(schema):
        return schema

    def inside(kind: object) -> object:
        return _closed(cast("JsonObject", kind), depth + 1) if isinstance(kind, dict) else kind

    found = dict(schema)
    for key in ("properties", *_DEFINITIONS):
        if isinstance(named := schema.get(key), dict):
            found[key] = {name: inside(kind) for name, kind in cast("JsonObject", named).items()}
    for key in ("anyOf", "prefixItems"):
        if isinstance(listed := schema.get(key), list):
            found[key] = [inside(kind) for kind in cast("list[object]", listed)]
    for key in ("items", "additionalProperties"):
        if key in schema:
            found[key] = inside(schema[key])
    if schema.get("type") == "integer" and _OF_NUMBERS.isdisjoint(schema):
        found |= {"minimum": -_MAX_INTEGER, "maximum": _MAX_INTEGER}
    properties = _as_object(schema.get("properties"))
    if properties and _OF_OTHERS.isdisjoint(schema) and set(required_of(schema)) <= properties.keys():
        found["additionalProperties"] = False
    return found


def _is_combined(schema: JsonObject) -> bool:
    """Whether a value follows several schemas at once by this one, or must not follow one."""
    return not _COMBINED.isdisjoint(schema) or len(_ALTERNATIVES & schema.keys()) > 1


def _nodes(schema: JsonObject) -> Iterator[JsonObject]:
    """Return all objects in a schema, itself first."""
    left: list[object] = [schema]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield cast("JsonObject", node)
            left += cast("JsonObject", node).values()
        elif isinstance(node, list):
            left += cast("list[object]", node)


def is_plain_object(schema: JsonObject) -> bool:
    """Whether a schema says of a value only that it is an object with these properties and no others."""
    is_closed = schema.get("additionalProperties") is False and schema.get("type") == "object"
    is_named = set(required_of(schema)) <= _as_object(schema.get("properties")).keys()
    return is_closed and is_named and schema.keys() <= _OF_OBJECTS | set(_DEFINITIONS) | _SAID_ONLY


def is_plain_number(schema: JsonObject) -> bool:
    """Whether a schema says of a value only that it is a number."""
    return schema.get("type") == "number" and _OF_NUMBERS.isdisjoint(schema) and not _is_combined(schema)


def types_of(schema: JsonObject) -> set[str]:
    """Return the JSON types that a schema names; none where it does not say, or has more alternatives than are read."""
    shared, found, seen, left = _shared(schema), set[str](), set[int](), [schema]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        if len(seen) == _MAX_ALTERNATIVES:
            return set()
        seen.add(id(node))
        node = resolved({**shared, **node})
        if named := _types_named(node):
            found |= named
        else:
            left += [_as_object(kind) for name in ("anyOf", "oneOf") for kind in _as_list(node.get(name))]
    return found


def _types_named(schema: JsonObject) -> set[str]:
    said = schema.get("type")
    named = {one for one in (said, *_as_list(said)) if isinstance(one, str)}
    return named or {_JSON_NAMES.get(kind, "null") for kind in set(map(type, constants_of(schema)))}


def json_name(value: object) -> str:
    """Return the name of a value's JSON type."""
    return next((name for kind, name in _JSON_NAMES.items() if isinstance(value, kind)), "null")


def resolved(schema: JsonObject) -> JsonObject:
    """Return the schema that a local reference means."""
    for _ in range(_MAX_DEPTH):
        said = schema.get("$ref")
        place, _, name = said.rpartition("/") if isinstance(said, str) else ("", "", "")
        definitions = _as_object(schema.get(place.removeprefix("#/")))
        if not place.startswith("#/") or name not in definitions:
            return schema
        schema = {**_shared(schema), **_as_object(definitions[name])}
    return schema


def _shared(schema: JsonObject) -> JsonObject:
    return {name: schema[name] for name in _DEFINITIONS if name in schema}


def _as_object(value: object) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _as_list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []
