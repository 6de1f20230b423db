"""Values checked by JSON schemas that clients bring: in bounded time, and without fetching anything.

The checks are jsonschema's, but for patterns, which are matched in linear time, and a bound on their number: references
that refer to one another twice would double the work with each step. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast  # Any: jsonschema's types are of no help

from pyagent.core.emulation.patterns import Pattern, PatternError
from pyagent.core.errors import RequestError
from pyagent.core.messages import JsonObject

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
    import jsonschema.validators
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    text = json.dumps(schema)
    if '"unevaluatedProperties"' in text and '"patternProperties"' in text:
        raise RequestError("unevaluatedProperties and patternProperties cannot be checked together", param=param)
    _work.set(_Work())
    try:
        kind = cast("Any", jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator))
        kind.check_schema(schema)
        checker = _bounded(kind)(schema, registry=cast("Any", Registry)())
        error = cast("Any", next(iter(checker.iter_errors(value)), None))
    except _TooManyStepsError as wrong:
        raise RequestError(
            f"the JSON schema takes over {_MAX_STEPS} steps to check; simplify it", param=param
        ) from wrong
    except (jsonschema.SchemaError, Unresolvable, re.error, PatternError, RecursionError) as wrong:
        text = str(wrong).partition("\n")[0]
        raise RequestError(f"the JSON schema cannot be checked: {text}", param=param) from wrong
    if error is None:
        return None
    where = "".join(f"[{part!r}]" for part in error.absolute_path)
    return f"{where or 'the value'}: {error.message[:_MAX_FAULT]}"


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
