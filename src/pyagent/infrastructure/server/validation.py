"""Bodies as structs: every field known, and those that are not supported refused by name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import JsonObject, Tool
from pyagent.core.nearest import did_you_mean
from pyagent.infrastructure.server.bounds import check_body

DEFAULT_MODELS = frozenset({"", "default", "auto", "chain"})
"""Names that mean whatever the chain's first answering link runs."""

Refused = Mapping[str, tuple[tuple[object, ...], str]]
"""Fields that are not supported: the values that ask for nothing, and why any other is refused."""

Body = TypeVar("Body", bound=msgspec.Struct)
_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_KIND = re.compile(r"^Invalid value ('[^']*') ")
"""What msgspec says of a struct whose tag it does not know."""
_UNKNOWN = re.compile(r"contains unknown field `([^`]*)`")
_NO_CHOICE = re.compile(r"^Invalid enum value ('.*') - at ")
_STEPS = re.compile(r"[^.\[\]]+")
"""Names and places in a path such as `messages[0].role`."""


def decode(body: bytes, kind: type[Body], refused: Refused) -> Body:
    """Read a body; raises `RequestError` naming the field at fault."""
    check_body(body)
    try:
        said = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise field_error(str(error), kind) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="malformed_json") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply", code="malformed_json") from error
    refuse(said, refused)
    return said


def refuse(said: msgspec.Struct, refused: Refused, prefix: str = "") -> None:
    """Raise `RequestError` for the first field of `said` that is not supported and asks for something."""
    for name, (accepted, why) in refused.items():
        value: object = getattr(said, name, None)
        if value is not None and not any(value == other for other in accepted):
            shown = msgspec.json.encode(value)[:40].decode(errors="replace")
            param = prefix + name
            raise RequestError(f"{param}={shown} is not supported: {why}", param=param, code="unsupported_parameter")


def checked_choice(tools: Sequence[Tool], choice: str | JsonObject | None) -> str | JsonObject | None:
    """The choice of a tool, in the form of OpenAI's chat; raises `RequestError` when the tools do not have it."""
    if isinstance(choice, str) and choice not in {"none", "auto", "required"}:
        raise RequestError(f"tool_choice is none, auto, required or a function, got {choice!r}", param="tool_choice")
    if (isinstance(choice, dict) or choice == "required") and not tools:
        raise RequestError("tool_choice needs tools", param="tool_choice")
    if isinstance(choice, dict) and choice.get("type", "function") != "function":
        shown = str(choice["type"])[:40]
        text = f"tool_choice.type={shown!r} is not supported; name a function, or send only the tools that are allowed"
        raise RequestError(text, param="tool_choice", code="unsupported_parameter")
    if isinstance(choice, dict):
        function = choice.get("function")
        name = cast("JsonObject", function).get("name") if isinstance(function, dict) else None
        if name not in {tool.function.name for tool in tools}:
            raise RequestError(f"tool_choice names {name!r}, which is not in tools", param="tool_choice")
    return choice


def field_error(text: str, kind: type[msgspec.Struct], inside: str = "") -> RequestError:
    """msgspec's words about a `kind` as an error that names the field; `inside` is where that struct stands."""
    path = _PATH.search(text)
    where = ".".join(filter(None, (inside, path[1] if path else "")))
    if unknown := _UNKNOWN.search(text):
        hint = "" if path else did_you_mean(unknown[1], kind.__struct_encode_fields__)
        name = f"{where}.{unknown[1]}" if where else unknown[1]
        text = f"unknown field {name!r}" + (f"; {hint}" if hint else "")
        return RequestError(text, param=name, code="unknown_parameter")
    if kind_said := _KIND.search(text):
        return RequestError(f"{where}={kind_said[1]} is not supported", param=where, code="unsupported_parameter")
    if (said := _NO_CHOICE.search(text)) and path and (choices := _choices(kind, path[1])):
        return RequestError(f"{where} is one of {', '.join(choices)}; got {said[1]:.80}", param=where)
    return RequestError(f"{inside}: {text}" if inside else text, param=where or None)


def _choices(kind: type[msgspec.Struct], path: str) -> list[str]:
    """The texts that a field takes, where the body's types name them."""
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
