"""What a condition on the results of steps is made of, and what it says of them. Pure.

Results are data: whatever they say, a condition only compares them. What is not in a result is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import msgspec

from pyagent.core.errors import RequestError

_MAX_SHOWN = 60
_MISSING = object()


class Seen(NamedTuple):
    """What a condition looks at: the results of steps, and how steps ended, by their names."""

    results: Mapping[str, object] = {}
    states: Mapping[str, str] = {}

    def plus(self, results: Mapping[str, object], states: Mapping[str, str] | None = None) -> Seen:
        """Return this with more, which goes before what is there."""
        told = dict.fromkeys(results, "done") if states is None else states
        return Seen({**self.results, **results}, {**self.states, **told})


@dataclass(frozen=True, slots=True)
class Reference:
    """A step's result, or what is in it."""

    step: str
    path: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return self.step + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path)

    def value(self, seen: Seen) -> object:
        """Return the value; `null` when there is none."""
        found = self.find(seen)
        return None if found is _MISSING else found

    def find(self, seen: Seen) -> object:
        """Return the value, or a mark that there is none."""
        if self.step not in seen.results:
            return _MISSING
        value = as_data(seen.results[self.step])
        for key in self.path:
            value = _part(value, key)
        return value


@dataclass(frozen=True, slots=True)
class Constant:
    """A value written down."""

    constant: object

    def value(self, seen: Seen) -> object:
        """Return it."""
        return self.constant


@dataclass(frozen=True, slots=True)
class Listed:
    """Values in a list."""

    parts: tuple[Value, ...]

    def value(self, seen: Seen) -> object:
        """Return them."""
        return [part.value(seen) for part in self.parts]


@dataclass(frozen=True, slots=True)
class Check:
    """`word` about a step or what is in its result."""

    word: str
    of: Reference

    def value(self, seen: Seen) -> object:
        """Return whether it holds."""
        if self.word == "exists":
            return self.of.find(seen) not in (None, _MISSING)
        return seen.states.get(self.of.step) == self.word


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two values compared."""

    sign: str
    left: Value
    right: Value

    def value(self, seen: Seen) -> object:
        """Return whether it holds; raises `RequestError` for an order of values that have none."""
        return _compared(self.sign, self.left.value(seen), self.right.value(seen))


@dataclass(frozen=True, slots=True)
class Junction:
    """Several conditions: `and`, `or`; or one: `not`."""

    word: Literal["and", "or", "not"]
    parts: tuple[Value, ...]

    def value(self, seen: Seen) -> object:
        """Return whether it holds, looking at no more than it has to."""
        if self.word == "not":
            return not truth(self.parts[0].value(seen))
        ends_at = self.word == "or"
        return ends_at if any(truth(part.value(seen)) is ends_at for part in self.parts) else not ends_at


Value = Reference | Constant | Listed | Check | Comparison | Junction


def steps_in(condition: Value) -> set[str]:
    """Return the names of the steps that a condition looks at."""
    match condition:
        case Reference():
            return {condition.step}
        case Check():
            return {condition.of.step}
        case Comparison():
            return steps_in(condition.left) | steps_in(condition.right)
        case Listed() | Junction():
            return {name for part in condition.parts for name in steps_in(part)}
        case Constant():
            return set()


def as_data(value: object) -> object:
    """Return a result as JSON has it; raises `RequestError` for one that JSON cannot have."""
    try:
        return msgspec.to_builtins(value, enc_hook=str, str_keys=True)
    except (TypeError, RecursionError) as error:
        raise RequestError(f"a result of type {type(value).__name__} cannot be looked into: {error}") from error


def _part(value: object, key: str | int) -> object:
    if isinstance(key, str):
        return cast("dict[str, object]", value).get(key, _MISSING) if isinstance(value, dict) else _MISSING
    if isinstance(value, list) and -len(cast("list[object]", value)) <= key < len(cast("list[object]", value)):
        return cast("list[object]", value)[key]
    return _MISSING


def truth(value: object) -> bool:
    """Return whether a condition's value holds; raises `RequestError` for one that is neither true nor false."""
    if value is None or isinstance(value, bool):
        return bool(value)
    raise RequestError(f"expected true or false, got {_shown(value)}; compare it with something", param="graph")


def _compared(sign: str, left: object, right: object) -> bool:
    if sign in {"==", "!="}:
        return _is_equal(left, right) is (sign == "==")
    if sign in {"in", "not in"}:
        return _is_in(left, right) is (sign == "in")
    if left is None or right is None:
        return False
    if not (_are(left, right, (int, float)) or _are(left, right, (str,))):
        raise RequestError(f"{_shown(left)} and {_shown(right)} have no order; compare two numbers or two texts")
    smaller, larger = cast("tuple[float, float]", (left, right) if sign[0] == "<" else (right, left))
    return smaller < larger or ("=" in sign and left == right)


def _are(left: object, right: object, kinds: tuple[type, ...]) -> bool:
    return all(isinstance(value, kinds) and not isinstance(value, bool) for value in (left, right))


def _is_equal(left: object, right: object) -> bool:
    return left == right and isinstance(left, bool) is isinstance(right, bool)


def _is_in(part: object, whole: object) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    if isinstance(whole, list | dict):
        return any(_is_equal(part, each) for each in list(cast("list[object]", whole)))
    if whole is None:
        return False
    raise RequestError(f"nothing can be in {_shown(whole)}: expected a list, a text or an object")


def _shown(value: object) -> str:
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # halves of surrogate pairs
        text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
