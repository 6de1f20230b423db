"""Values checked by JSON schemas that clients bring: in bounded time, and without fetching anything.

The checks are jsonschema's, but for patterns, which are matched in linear time, and a bound on their number: references
that refer to one another twice would double the work with each step. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast  # Any: jsonschema's types are of no help

from pyagent.core.emulation.patterns import Pattern, PatternError
from pyagent.core.errors import RequestError
from pyagent.core.messages import JsonObject
from pyagent.core.structured_output.schema_checks import nodes_of
from pyagent.core.structured_output.work import go_on

_MAX_STEPS = 100_000
"""Keywords checked for one value: about a second."""
_STEPS_A_PATTERN, _LETTERS_A_STEP = 500, 16
"""What it costs to make a pattern ready, and to look for it."""
_MAX_FAULT = 300
_Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


class _TooManyStepsError(Exception):
    pass


@dataclass(slots=True)
class _Work:
    """What one check may still do, and the patterns it met."""

    num_left: int = _MAX_STEPS
    patterns: dict[str, Pattern] = field(default_factory=dict[str, Pattern])

    def spend(self, num_steps: int) -> None:
        self.num_left -= num_steps
        if self.num_left < 0:
            raise _TooManyStepsError

    def is_match(self, pattern: str, text: str) -> bool:
        if pattern not in self.patterns:
            self.spend(_STEPS_A_PATTERN)
            self.patterns[pattern] = Pattern(pattern)
        self.spend(len(text) // _LETTERS_A_STEP)
        return self.patterns[pattern].is_in(text)


_work: ContextVar[_Work] = ContextVar("the check under way")


def fault_of(value: object, schema: JsonObject, param: str) -> str | None:
    """Why a value does not follow a schema; None when it does. Raises `RequestError` for a schema that is none."""
    with _faults_named(param):
        kind = _checked_kind(schema, param)
        from referencing import Registry

        checker = _bounded(kind)(schema, registry=cast("Any", Registry)())
        error = cast("Any", next(iter(checker.iter_errors(value)), None))
    if error is None:
        return None
    where = "".join(f"[{part!r}]" for part in error.absolute_path)
    return f"{where or 'the value'}: {error.message[:_MAX_FAULT]}"


def check_is_schema(schema: JsonObject, param: str) -> None:
    """Raise `RequestError` for what is no JSON schema by the rules of its own draft."""
    with _faults_named(param):
        _validator_kind(schema)


def check_checkable(schema: JsonObject, param: str) -> None:
    """Raise `RequestError` for a schema that no value can be checked by: none, or with patterns that are none."""
    with _faults_named(param):
        _checked_kind(schema, param)
        nodes = nodes_of(schema)
        for pattern in dict.fromkeys(pattern for node in nodes.values() for pattern in _patterns_in(node)):
            go_on("a schema's patterns")
            Pattern(pattern)
    if not any("$id" in node for node in nodes.values()):
        _check_refs(nodes.values(), param)


def _patterns_in(node: JsonObject) -> Iterator[str]:
    named = node.get("patternProperties")
    for pattern in (node.get("pattern"), *(cast("JsonObject", named) if isinstance(named, dict) else ())):
        if isinstance(pattern, str):
            yield pattern


def _check_refs(nodes: Iterable[JsonObject], param: str) -> None:
    """Raise `RequestError` for a reference that leads out of the schema."""
    for ref in (node.get("$ref") for node in nodes):
        if isinstance(ref, str) and not ref.startswith("#"):
            text = f"$ref to {ref[:80]} is outside the schema, and nothing is fetched; copy it into $defs"
            raise RequestError(f"the JSON schema cannot be checked: {text}", param=param)


def _checked_kind(schema: JsonObject, param: str) -> Any:
    """Return the kind of validator for a schema that it can be checked by."""
    text = json.dumps(schema)
    if '"unevaluatedProperties"' in text and '"patternProperties"' in text:
        raise RequestError("unevaluatedProperties and patternProperties cannot be checked together", param=param)
    return _validator_kind(schema)


def _validator_kind(schema: JsonObject) -> Any:
    """Return the kind of validator that a schema asks for, by whose rules it is one."""
    import jsonschema.validators

    kind = cast("Any", jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator))
    kind.check_schema(schema)
    return kind


@contextmanager
def _faults_named(param: str) -> Generator[None]:
    """Count the work of what is within, and raise what goes wrong with a schema as a `RequestError`."""
    import jsonschema
    from referencing.exceptions import Unresolvable

    _work.set(_Work())
    try:
        yield
    except _TooManyStepsError as wrong:
        raise RequestError(
            f"the JSON schema takes over {_MAX_STEPS} steps to check; simplify it", param=param
        ) from wrong
    except (jsonschema.SchemaError, Unresolvable, re.error, PatternError, RecursionError) as wrong:
        text = str(wrong).partition("\n")[0]
        raise RequestError(f"the JSON schema cannot be checked: {text}", param=param) from wrong


@lru_cache(maxsize=16)
def _bounded(kind: Any) -> Any:
    """Return a kind of validator with keywords that count, and patterns of ours."""
    import jsonschema.validators

    keywords = dict(kind.VALIDATORS) | {"pattern": _pattern}
    if "patternProperties" in keywords:
        keywords["patternProperties"] = _pattern_properties
        keywords["additionalProperties"] = _additional_properties(kind.VALIDATORS["additionalProperties"])
    counted = {name: _counted(keyword) for name, keyword in keywords.items()}
    return cast("Any", jsonschema.validators.extend)(kind, counted)


def _counted(keyword: _Keyword) -> _Keyword:
    def check(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any] | None:
        _work.get().spend(1)
        return keyword(validator, wanted, value, schema)

    return check


def _pattern(validator: Any, pattern: Any, value: Any, _schema: Any) -> Iterator[Any]:
    import jsonschema

    if validator.is_type(value, "string") and not _work.get().is_match(pattern, value):
        yield jsonschema.ValidationError(f"{value[:80]!r} does not match {pattern[:80]!r}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, _schema: Any) -> Iterator[Any]:
    if not validator.is_type(value, "object"):
        return
    for pattern, schema in patterns.items():
        for name, inside in value.items():
            if _work.get().is_match(pattern, name):
                yield from validator.descend(inside, schema, path=name, schema_path=pattern)


def _additional_properties(plain: _Keyword) -> _Keyword:
    """jsonschema's, of the properties that no pattern takes."""

    def check(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
        patterns = list(cast("dict[str, object]", schema.get("patternProperties") or {}))
        if patterns and validator.is_type(value, "object"):
            is_match = _work.get().is_match
            value = {name: inside for name, inside in value.items() if not any(is_match(p, name) for p in patterns)}
            schema = {name: inside for name, inside in schema.items() if name != "patternProperties"}
        yield from plain(validator, wanted, value, schema) or ()

    return check
