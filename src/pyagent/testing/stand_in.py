"""What a fake server says when a test did not script it: text, JSON of the schema asked for, or a call of a tool."""

from __future__ import annotations

from typing import cast

Json = dict[str, object]
GREETING = "Hello from the fake."
_SAMPLES: Json = {"string": "text", "integer": 1, "number": 0.5, "boolean": True, "array": [], "null": None}


def sample_of(schema: Json) -> object:
    """A value that follows a plain JSON schema: types, enums, constants, required properties, lists of one item."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return cast("list[object]", schema["enum"])[0]
    kind = schema.get("type", "object")
    if kind == "object":
        properties = cast("dict[str, Json]", schema.get("properties", {}))
        return {name: sample_of(property_) for name, property_ in properties.items()}
    if kind == "array" and "items" in schema:
        return [sample_of(cast("Json", schema["items"]))]
    return _SAMPLES.get(str(kind), "")


def sample_call(tools: object, messages: object) -> tuple[str, object] | None:
    """Return a call of the first tool (OpenAI's shape), unless the last message is a result of one."""
    if not tools:
        return None
    said = cast("list[Json]", messages or [])
    if said and said[-1].get("role") == "tool":
        return None
    function = cast("Json", cast("list[Json]", tools)[0]["function"])
    return str(function["name"]), sample_of(cast("Json", function.get("parameters") or {}))
