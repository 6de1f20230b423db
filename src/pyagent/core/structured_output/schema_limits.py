"""How large a schema, choice or regex may be, so that it compiles in no minutes, and a mask takes no 100 ms. Pure.

llguidance bounds what it does by itself, but not everywhere: 20 patterns for one text, 500 patterns for names or a
`multipleOf` of seven digits kept it busy for longer than 20 s, 20,000 objects in an `enum` for 8 s and 194 MB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import cast

from pyagent.core.grammars import GrammarSource
from pyagent.core.messages import JsonObject
from pyagent.core.structured_output.lark_limits import regexes_in, repeated_in_lark

_MAX_NODES = 6_000
"""Schemas within a schema, and names that are required: 0.1 ms each."""
_MAX_ALTERNATIVES = 2_000
_MAX_VALUES, _MAX_CONTAINERS = 20_000, 2_000
"""Values in `enum` and `const`, and how many of them may be objects or lists: 0.005 and 0.1 ms each."""
_MAX_PATTERN_PROPERTIES = 40
"""Of one object; each pair is compared."""
_MAX_PATTERNS = 8
"""For one text, by `allOf` and `$ref`."""
_MAX_REPEATED = 2_000
"""Repetitions within repetitions of a pattern, or of a terminal of a grammar."""
_MAX_REPEATED_RULES = 20_000
"""Those of a rule: each is a place in the grammar, not a state of a pattern."""
_REPETITIONS = "repetitions within repetitions repeat"
_MAX_FACTOR = 10_000
"""Of `multipleOf`, but for its powers of ten: each remainder is a state."""

_MAX_LITERAL = 10_000
"""Letters of a text in `enum` and `const`, and of a name: each is a state."""
_MAX_PATTERN_CHARS = 20_000
_MAX_PATTERNS_IN_ALL = 500
"""Different patterns of a schema: with 3,000 a mask took 112 ms."""

_REPEAT = re.compile(r"\{(\d*+)(,?+)(\d*+)\}")


def excess(nodes: Mapping[str, JsonObject], targets: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the first place of a schema where it is too large, and why; `targets` has where each `$ref` leads."""
    total = len(nodes) + sum(len(_listed(node, "required")) for node in nodes.values())
    if total > _MAX_NODES:
        return "", f"a schema has up to {_MAX_NODES} parts and required names, got {total}"
    if (values := _num_values(nodes))[0] > _MAX_VALUES or values[1] > _MAX_CONTAINERS:
        text = f"{_MAX_VALUES} values, of which {_MAX_CONTAINERS} are objects or lists, got {values[0]} and {values[1]}"
        return "", f"enum and const have up to {text}"
    patterns = {one for node in nodes.values() if isinstance(one := node.get("pattern"), str)}
    if len(patterns) > _MAX_PATTERNS_IN_ALL:
        return "", f"a schema has up to {_MAX_PATTERNS_IN_ALL} different patterns, got {len(patterns)}"
    for pointer, node in nodes.items():
        for keyword, text in _excesses(node):
            return f"{pointer}/{keyword}", text
    return _too_many_patterns(nodes, targets)


def source_excess(source: GrammarSource) -> str:
    """Return why what is no JSON schema is too large; nothing where it is not."""
    match source.kind:
        case "choice":
            return texts_excess(json.loads(source.text))
        case "regex":
            return pattern_excess(source.text)
        case "lark":
            texts = [pattern_excess(pattern) for pattern in regexes_in(source.text)]
            return next((text for text in texts if text), "") or _lark_excess(source.text)
        case "json_schema":
            return ""


def _lark_excess(lark: str) -> str:
    in_terminals, in_rules = repeated_in_lark(lark, counted)
    for kind, count, most in (("terminal", in_terminals, _MAX_REPEATED), ("rule", in_rules, _MAX_REPEATED_RULES)):
        if count > most:
            return f"in a {kind} of a grammar, {_REPETITIONS} up to {most} times, got {count}"
    return ""


def pattern_excess(pattern: str) -> str:
    """Return why a regex is too large; nothing where it is not."""
    if len(pattern) > _MAX_PATTERN_CHARS:
        return f"a pattern has up to {_MAX_PATTERN_CHARS} characters, got {len(pattern)}"
    if (count := repeated(pattern)) > _MAX_REPEATED:
        return f"{_REPETITIONS} up to {_MAX_REPEATED} times, got {count}"
    return ""


def texts_excess(texts: Sequence[object]) -> str:
    """Return why a choice of texts is too large; nothing where it is not."""
    if len(texts) > _MAX_VALUES:
        return f"up to {_MAX_VALUES} texts are taken, got {len(texts)}"
    longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
    return f"a text has up to {_MAX_LITERAL} characters, got {longest}" if longest > _MAX_LITERAL else ""


def _excesses(node: JsonObject) -> Iterator[tuple[str, str]]:
    for keyword in ("anyOf", "oneOf"):
        if (count := len(_listed(node, keyword))) > _MAX_ALTERNATIVES:
            yield keyword, f"{_MAX_ALTERNATIVES} alternatives are taken at one place, got {count}"
    named = node.get("patternProperties")
    patterns = list(cast("JsonObject", named)) if isinstance(named, dict) else []
    if len(patterns) > _MAX_PATTERN_PROPERTIES:
        yield (
            "patternProperties",
            f"an object has up to {_MAX_PATTERN_PROPERTIES} patterns of names, got {len(patterns)}",
        )
    pattern = node.get("pattern")
    for keyword, one in [("patternProperties", one) for one in patterns] + [("pattern", pattern)]:
        if isinstance(one, str) and (text := pattern_excess(one)):
            yield keyword, text
    for keyword in ("enum", "const"):
        listed = _listed(node, keyword) if keyword == "enum" else [node.get(keyword)]
        if text := texts_excess(listed):
            yield keyword, text
    if (factor := _factor(node.get("multipleOf"))) > _MAX_FACTOR:
        yield "multipleOf", f"a factor without its powers of ten is at most {_MAX_FACTOR}, got {factor}"


def repeated(pattern: str) -> int:
    """Return how often the innermost part of nested repetitions of a regex is repeated; 1 where none are nested."""
    return counted(pattern)[1]


def counted(pattern: str) -> tuple[int, int]:
    """Return how often a regex repeats what is innermost in it, and that where repetitions are nested."""
    groups, last, most, at = [1], 1, 1, 0  # `last`: repetitions within what a quantifier here would repeat
    while at < len(pattern):
        letter = pattern[at]
        repeat = _REPEAT.match(pattern, at) if letter == "{" else None
        if repeat is not None and (repeat[1] or repeat[3]):
            count = int((repeat[3] or repeat[1])[:9])
            most = max(most, last * count if last > 1 else 1)
            last *= max(1, count)
            groups[-1] = max(groups[-1], last)
            at = repeat.end()
            continue
        if letter == "(":
            groups.append(1)
        last = 1
        if letter == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] = max(groups[-1], last)
        at = _class_end(pattern, at) if letter == "[" else at + 1 + (letter == "\\")
    return max(groups), most


def _class_end(pattern: str, at: int) -> int:
    """Return where a class of letters ends that begins here."""
    at += 2  # a bracket that comes first is a letter
    while at < len(pattern) and pattern[at] != "]":
        at += 1 + (pattern[at] == "\\")
    return at + 1


def _factor(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    try:
        digits = Decimal(str(value)).normalize().as_tuple().digits
    except InvalidOperation:
        return 0
    return int("".join(map(str, digits[:20])))


def _num_values(nodes: Mapping[str, JsonObject]) -> tuple[int, int]:
    """Return how many values `enum` and `const` have, and how many of those are objects or lists."""
    left: list[object] = []
    for node in nodes.values():
        left += [*_listed(node, "enum"), *([node["const"]] if "const" in node else [])]
    num_values, num_containers = len(left), 0
    while left and num_values <= _MAX_VALUES:
        value = left.pop()
        inner = list(cast("JsonObject", value).values()) if isinstance(value, dict) else value
        if isinstance(inner, list):
            num_containers += 1
            num_values += len(cast("list[object]", inner))
            left += cast("list[object]", inner)
    return num_values, num_containers


def _too_many_patterns(nodes: Mapping[str, JsonObject], targets: Mapping[str, str]) -> tuple[str, str] | None:
    """Find a place whose texts must match too many patterns at once."""
    counts = dict[str, int]()
    for start in nodes:
        left = [(start, False)]
        while left:  # children first; of what leads back to itself, one turn counts
            place, is_ready = left.pop()
            node = nodes.get(place, {})
            parts = [f"{place}/allOf/{number}" for number, _ in enumerate(_listed(node, "allOf"))]
            parts += [targets[place]] if place in targets else []
            if is_ready:
                own = isinstance(node.get("pattern"), str) + isinstance(node.get("format"), str)
                counts[place] = min(own + sum(counts.get(part, 0) for part in parts), 10**6)
                if counts[place] > _MAX_PATTERNS:
                    return (
                        place,
                        f"up to {_MAX_PATTERNS} patterns and formats are taken for one text, got {counts[place]}",
                    )
            elif place not in counts:
                counts[place] = 0
                left += [(place, True), *((part, False) for part in parts)]
    return None


def _listed(node: JsonObject, keyword: str) -> list[object]:
    found = node.get(keyword)
    return cast("list[object]", found) if isinstance(found, list) else []
