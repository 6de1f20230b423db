"""What is refused of a JSON schema before llguidance has it, with its place as a JSON pointer. Pure.

References that lead nowhere, or back to themselves without an end. Of a schema that refers to itself llguidance makes a
grammar of nothing, which shows at the first token; or never, where an object needs an object like itself: each token is
allowed until the answer is cut. And objects of so many optional properties that compiling them takes a minute, before
the parser finds them too many: it has room for 2,000 places, of which each takes four.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast
from urllib.parse import unquote

from pyagent.core.errors import RequestError
from pyagent.core.messages import JsonObject
from pyagent.core.structured_output.schema_limits import excess

PARAM = "response_format.json_schema.schema"
_BY_NAME = ("properties", "patternProperties", "dependentSchemas")
_IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_ALONE = ("items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
_MAX_SHOWN = 200
_MAX_OPTIONAL = 490
_MAX_POINTER_CHARS = 10_000_000
"""Of all schemas within one together."""


def check_schema(schema: JsonObject) -> None:
    """Raise `RequestError` naming the first place of a schema that no answer could be held to."""
    nodes = nodes_of(schema)
    targets = {pointer: target for pointer, node in nodes.items() if (target := _target(node)) is not None}
    if found := excess(nodes, targets):
        raise _wrong(*found)
    for pointer, node in nodes.items():
        if (num_optional := _num_optional(node)) > _MAX_OPTIONAL:
            text = f"an object takes up to {_MAX_OPTIONAL} properties that are not required, got {num_optional}"
            raise _wrong(pointer, text)
    loop = _loop({pointer: [*_needs(pointer, node, nodes)] for pointer, node in nodes.items()})
    if loop:
        place = next(pointer for pointer in loop if "$ref" in nodes[pointer])
        ref = _shown(nodes[place]["$ref"])
        text = f"$ref {ref} leads back to itself, and nothing on the way may be left out, so that no value has an end"
        raise _wrong(place, f"{text}; make a property on the way optional, or let it be null by anyOf")


def _num_optional(node: JsonObject) -> int:
    properties, required = node.get("properties"), node.get("required")
    if not isinstance(properties, dict):
        return 0
    named = (
        {name for name in cast("list[object]", required) if isinstance(name, str)} if isinstance(required, list) else ()
    )
    return len(cast("JsonObject", properties).keys() - named)


def nodes_of(schema: JsonObject) -> dict[str, JsonObject]:
    """Return the schemas within a schema and those that it refers to, by their JSON pointers."""
    nodes, left = dict[str, JsonObject](), [("", schema)]
    num_chars = 0
    while left:
        pointer, node = left.pop()
        num_chars += len(pointer)
        if num_chars > _MAX_POINTER_CHARS:
            raise _wrong(pointer, "the names on the way to so many schemas are too long")
        if pointer not in nodes:
            nodes[pointer] = node
            left += reversed([*_inside(pointer, node)])
            if (target := _target(node)) is not None and target not in nodes:
                left.append((target, _at(schema, target, pointer, node["$ref"])))
    return nodes


def _inside(pointer: str, node: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    for keyword in _BY_NAME:
        named = node.get(keyword)
        if isinstance(named, dict):
            for name, held in cast("JsonObject", named).items():
                yield from _schema(f"{pointer}/{keyword}/{_escaped(name)}", held)
    for keyword in _IN_LISTS:
        listed = node.get(keyword)
        if isinstance(listed, list):
            for number, held in enumerate(cast("list[object]", listed)):
                yield from _schema(f"{pointer}/{keyword}/{number}", held)
    for keyword in _ALONE:
        yield from _schema(f"{pointer}/{keyword}", node.get(keyword))


def _schema(pointer: str, held: object) -> Iterator[tuple[str, JsonObject]]:
    if isinstance(held, dict):
        yield pointer, cast("JsonObject", held)


def _target(node: JsonObject) -> str | None:
    """Return the JSON pointer that a schema refers to; None without one, and for names, which llguidance resolves."""
    ref = node.get("$ref")
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        return None
    return "".join(f"/{_escaped(step)}" for step in _steps(unquote(ref[1:])))


def _steps(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _at(schema: JsonObject, target: str, pointer: str, ref: object) -> JsonObject:
    """Return what stands there; raises `RequestError` for nothing, and for what is no schema."""
    found: object = schema
    for name in _steps(target):
        if isinstance(found, list) and name.isdecimal() and str(int(name[:9])) == name:
            held = cast("list[object]", found)
            found = held[int(name)] if int(name) < len(held) else None
        else:
            found = cast("JsonObject", found).get(name) if isinstance(found, dict) else None
    if isinstance(found, bool):
        return {}
    if not isinstance(found, dict):
        raise _wrong(pointer, f"$ref {_shown(ref)} names no schema in it")
    return cast("JsonObject", found)


def _needs(pointer: str, node: JsonObject, nodes: Mapping[str, JsonObject]) -> Iterator[str]:
    """The schemas that a part of each value of this one follows, or the value itself."""
    target = _target(node)
    if target is not None:
        yield target
    for keyword in ("allOf", "anyOf", "oneOf"):
        listed = node.get(keyword)
        if isinstance(listed, list) and (keyword == "allOf" or len(cast("list[object]", listed)) == 1):
            yield from (f"{pointer}/{keyword}/{number}" for number, _ in enumerate(cast("list[object]", listed)))
    required, least = node.get("required"), node.get("minItems")
    if node.get("type") == "object" and isinstance(required, list):
        names = (name for name in cast("list[object]", required) if isinstance(name, str))
        places = (f"{pointer}/properties/{_escaped(name)}" for name in names)
        yield from (place for place in places if place in nodes)
    if node.get("type") == "array" and isinstance(least, int) and least > 0 and "prefixItems" not in node:
        yield from (place for place in (f"{pointer}/items",) if place in nodes)


def _loop(needs: Mapping[str, list[str]]) -> list[str]:
    """Places each of which needs the next, and the last the first; none where there are no such."""
    done = set[str]()
    for start in needs:
        path, on_path, left = list[str](), set[str](), [(start, False)]
        while left:
            place, is_left = left.pop()
            if is_left:
                on_path.discard(path.pop())
                done.add(place)
            elif place in on_path:
                return path[path.index(place) :]
            elif place not in done:
                path.append(place)
                on_path.add(place)
                left += [(place, True), *((other, False) for other in needs.get(place, ()))]
    return []


def _wrong(pointer: str, text: str) -> RequestError:
    return RequestError(f"response_format: in the schema at #{pointer[:_MAX_SHOWN]}: {text}", param=PARAM)


def _shown(ref: object) -> str:
    return repr(str(ref)[:_MAX_SHOWN])


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
