"""Values from outside that do not fit a type, as errors in JSON's words that name the field at fault. Pure.

The one place that knows how msgspec words its errors: the author of the value has never heard of `str | null`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import UnionType
from typing import Literal, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from pyagent.core.errors import FieldFault, RequestError
from pyagent.core.nearest import did_you_mean

_PLACE = re.compile(r" - at `(key in )?\$\.?([^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `([^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_TAG = re.compile(r"^Invalid value (.*)$", re.DOTALL)
"""What msgspec says of a struct whose tag it does not know."""
_CHOICE = re.compile(r"^Invalid enum value (.*)$", re.DOTALL)
_KIND = re.compile(r"^Expected `([^`]*)`(?: (.*?))?(?:, got `?([^`]*)`?)?$", re.DOTALL)
_KIND_TO_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
}
_STEPS = re.compile(r"[^.\[\]]+")
"""Names and places in a path such as `messages[0].role`."""
_MAX_SHOWN = 80
MAX_FAULTS = 16
"""Of a request, as many as are told."""
_MAX_ENTRIES = 2048
"""Of a list, as many as are looked at one by one: half a million took ten seconds, all for faults after the first."""
_LONE_HALF = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u)")
"""The first half of a character without its second, where msgspec finds that the text ends too early."""
_SYNTAX = "JSON is malformed: "
_TRUNCATED = "Input data was truncated"


def field_error(
    error: msgspec.ValidationError, kind: type[object], inside: str = "", *, whole: str = "the value"
) -> RequestError:
    """Return msgspec's error about a value of type `kind` in words of ours.

    `inside` is where that value stands, `whole` what it is called where it is at fault itself.
    """
    text, place = _split(str(error))
    where = _joined(inside, place)
    if missing := _MISSING.match(text):
        name = _joined(where, missing[1])
        return RequestError(f"{name} is required", param=name)
    if unknown := _UNKNOWN.match(text):
        hint = "" if place else did_you_mean(unknown[1], getattr(kind, "__struct_encode_fields__", ()))
        name = _joined(where, unknown[1][:_MAX_SHOWN])
        return RequestError(
            f"unknown field {name!r}" + (f"; {hint}" if hint else ""), param=name, code="unknown_parameter"
        )
    if tag := _TAG.match(text):
        return RequestError(
            f"{where}={tag[1]:.{_MAX_SHOWN}} is not supported", param=where, code="unsupported_parameter"
        )
    param = where.partition("[...]")[0] or None  # the values of an object are `[...]`, whatever their names
    return RequestError(f"{where or whole} {_expected(text, kind, place)}", param=param)


def field_errors(raw: object, kind: type[msgspec.Struct], first: RequestError) -> RequestError:
    """Return all that msgspec finds wrong with the fields of `raw`, which is to be a `kind`; `first` it found already.

    A field has one fault, a list one for each of its first entries. No more than some are told.
    """
    found = [first]
    for error in _faulty_fields(cast("dict[str, object]", raw) if isinstance(raw, dict) else {}, kind):
        if len(found) >= MAX_FAULTS:
            break
        if error.param not in {one.param for one in found}:
            found.append(error)
    return together(found)


def _faulty_fields(raw: dict[str, object], kind: type[msgspec.Struct]) -> Iterator[RequestError]:
    hints = get_type_hints(kind)
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for name, value in raw.items():
        if name not in fields:
            unknown = f"Object contains unknown field `{name}`"
            yield field_error(msgspec.ValidationError(unknown), kind)
            continue
        hint = hints[fields[name].name]
        entry = next((get_args(one)[0] for one in _alternatives([hint]) if get_origin(one) is list), None)
        pieces = [(name, value, hint)]
        if entry is not None and isinstance(value, list) and value:
            listed = cast("list[object]", value)
            pieces = [(f"{name}[{place}]", one, entry) for place, one in enumerate(listed[:_MAX_ENTRIES])]
        for where, piece, wanted in pieces:
            try:
                msgspec.convert(piece, wanted)
            except msgspec.ValidationError as error:
                yield field_error(error, wanted, where)
    for name, field in fields.items():
        if field.required and name not in raw:
            yield RequestError(f"{name} is required", param=name)


def check_all(checks: Iterable[Callable[[], None]]) -> None:
    """Make all checks, and raise what they raise together."""
    errors: list[RequestError] = []
    for check in checks:
        try:
            check()
        except RequestError as error:
            errors.append(error)
    if errors:
        raise together(errors)


def together(errors: Sequence[RequestError]) -> RequestError:
    """Return several errors of one request as one, which says them all."""
    if len(errors) == 1:
        return errors[0]
    faults = [fault for error in errors for fault in error.faults or (FieldFault(str(error), error.param, error.code),)]
    text, first = "; ".join(fault.message for fault in faults), errors[0]
    return RequestError(text, param=first.param, code=first.code, faults=tuple(faults))


def json_error(
    what: str, error: msgspec.DecodeError | UnicodeDecodeError | RecursionError, json: bytes
) -> RequestError:
    """Return the error for `json`, which is none; `what` it is."""
    wrong = str(error).removeprefix(_SYNTAX)
    if isinstance(error, RecursionError):
        return RequestError(f"{what} is nested too deeply", code="malformed_json")
    if not json.strip():
        return RequestError(f"{what} is empty; send a JSON object", code="malformed_json")
    if isinstance(error, UnicodeDecodeError):
        wrong = f"a string is not UTF-8 (byte {error.start} of it)"
    elif "surrogate" in wrong or (wrong == _TRUNCATED and _LONE_HALF.search(json)):
        wrong = "a string holds half of a surrogate pair, which is no character"
    elif wrong == _TRUNCATED:
        wrong = "it ends too early"
    return RequestError(f"{what} is not valid JSON: {wrong}", code="malformed_json")


def _split(text: str) -> tuple[str, str]:
    """msgspec's words, and the path that they end with."""
    found = _PLACE.search(text)
    return (text[: found.start()], found[2]) if found else (text, "")


def _joined(outer: str, inner: str) -> str:
    return f"{outer}.{inner}" if outer and inner and not inner.startswith("[") else outer + inner


def _expected(text: str, kind: type[object], place: str) -> str:
    """Return what was expected and what came."""
    if choice := _CHOICE.match(text):
        return f"is one of {', '.join(_choices(kind, place)) or 'other values'}; got {choice[1]:.{_MAX_SHOWN}}"
    if (wrong := _KIND.match(text)) is None:
        return f"does not fit: {text}"
    more = f" {wrong[2]}" if wrong[2] else ""
    got = f", got {_in_words(wrong[3])}" if wrong[3] else ""
    return f"must be {_in_words(wrong[1])}{more}{got}"


def _in_words(kinds: str) -> str:
    """`int | null` as `an integer or null`."""
    return " or ".join(_KIND_TO_WORDS.get(kind, kind) for kind in kinds.split(" | "))


def _choices(kind: type[object], path: str) -> list[str]:
    """Return the texts that a field takes, where the types name them, and nothing else."""
    kinds: list[object] = [kind]
    for step in _STEPS.findall(path):
        if step.isdigit():
            kinds = [one for held in _alternatives(kinds) if get_origin(held) is list for one in get_args(held)]
        else:
            structs = [one for one in _alternatives(kinds) if isinstance(one, type) and issubclass(one, msgspec.Struct)]
            kinds = [hint for one in structs if (hint := get_type_hints(one).get(step)) is not None]
    literals = (get_args(one) for one in _alternatives(kinds) if get_origin(one) is Literal)
    return [text for texts in literals for text in texts if isinstance(text, str)]


def _alternatives(kinds: Iterable[object]) -> Iterator[object]:
    """The kinds, unions taken apart."""
    for one in kinds:
        if get_origin(one) in {Union, UnionType}:
            yield from _alternatives(get_args(one))
        else:
            yield one
