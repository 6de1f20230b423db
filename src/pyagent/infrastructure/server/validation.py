"""Bodies as structs: every field known, and those that are not supported refused by name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar, cast

import msgspec

from pyagent.core.errors import FieldFault, RequestError
from pyagent.core.field_errors import check_all, field_error, field_errors, json_error, together
from pyagent.core.messages import JsonObject, SamplingParams, Tool
from pyagent.infrastructure.server.bounds import check_body

DEFAULT_MODELS = frozenset({"default", "auto", "chain"})
"""Names that mean whatever the chain's first answering link runs, as no name at all does."""
MAX_NAME_CHARS = 256
"""Of a session, a user and the like: names are remembered, and compared with each other."""
_MAX_PAIRS, _MAX_KEY_CHARS, _MAX_VALUE_CHARS = 16, 64, 512
"""Of `metadata`, as in OpenAI's API."""

Refused = Mapping[str, tuple[tuple[object, ...], str]]
"""Fields that are not supported: the values that ask for nothing, and why any other is refused."""

Body = TypeVar("Body", bound=msgspec.Struct)
T = TypeVar("T")


def decode(body: bytes, kind: type[Body], refused: Refused) -> Body:
    """Read a body; raises `RequestError` naming the field at fault."""
    check_body(body)
    try:
        parsed = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _all_wrong(body, kind, field_error(error, kind, whole="the body")) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise json_error("the body", error, body) from error
    refuse(parsed, refused)
    return parsed


def _all_wrong(body: bytes, kind: type[msgspec.Struct], first: RequestError) -> RequestError:
    """Return the error of a body's fields; of the `first` one alone where what follows it is no JSON."""
    try:
        return field_errors(msgspec.json.decode(body), kind, first)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return first


def with_all_faults(read: Callable[[], T], parts: Iterable[Callable[[], object]]) -> T:
    """Return what `read` makes of a body; where it finds a fault, the error has those of all `parts` of it too."""
    try:
        return read()
    except RequestError as first:
        errors = [first]
        for part in parts:
            try:
                part()
            except RequestError as error:
                if str(error) not in {str(one) for one in errors}:
                    errors.append(error)
        if len(errors) == 1:
            raise
        raise together(errors) from first


def read_all(
    body: bytes,
    kind: type[Body],
    refused: Refused,
    read: Callable[[Body], T],
    parts: Callable[[Body], Iterable[Callable[[], object]]],
) -> T:
    """Return what `read` makes of a body of this kind; an error has the faults of all its `parts`, and what is refused.

    Raises `RequestError`. Where types are wrong, it has those alone: of what they are in nothing more can be known.
    """
    parsed = decode(body, kind, {})

    def check() -> None:
        refuse(parsed, refused)

    def checked() -> T:
        check()
        return read(parsed)

    return with_all_faults(checked, (check, *parts(parsed)))


def refuse(parsed: msgspec.Struct, refused: Refused, prefix: str = "") -> None:
    """Raise `RequestError` for the fields of `parsed` that are not supported and ask for something."""

    def check(name: str, accepted: Sequence[object], why: str) -> None:
        value: object = getattr(parsed, name, None)
        if value is not None and not any(value == other for other in accepted):
            shown = msgspec.json.encode(value)[:40].decode(errors="replace")
            param = prefix + name
            raise RequestError(f"{param}={shown} is not supported: {why}", param=param, code="unsupported_parameter")

    check_all(partial(check, name, accepted, why) for name, (accepted, why) in refused.items())


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


def model_asked(model: str | None) -> str:
    """Return the model to ask a backend for, empty for whatever there is; raises `RequestError` for an empty name.

    An empty name is mostly a variable that was not set, and no server of these APIs answers it.
    """
    if model == "":
        text = "model is empty; name one of GET /v1/models, or 'default' for the first that answers"
        raise RequestError(text, param="model")
    return "" if model is None or model in DEFAULT_MODELS else model


def check_name(param: str, name: str | None) -> None:
    """Raise `RequestError` for a name that is too long to be remembered."""
    if name is not None and len(name) > MAX_NAME_CHARS:
        text = f"{param} takes at most {MAX_NAME_CHARS} characters, got {len(name)}"
        raise RequestError(text, param=param)


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """Raise `RequestError` for metadata that OpenAI would not take."""
    if metadata is None:
        return
    if len(metadata) > _MAX_PAIRS:
        raise RequestError(f"metadata takes at most {_MAX_PAIRS} pairs, got {len(metadata)}", param="metadata")
    for key, value in metadata.items():
        if len(key) > _MAX_KEY_CHARS:
            text = f"a key of metadata takes at most {_MAX_KEY_CHARS} characters, got {len(key)}"
            raise RequestError(text, param="metadata")
        if len(value) > _MAX_VALUE_CHARS:
            text = f"metadata.{key} takes at most {_MAX_VALUE_CHARS} characters, got {len(value)}"
            raise RequestError(text, param=f"metadata.{key}")


def checked_sampling(params: SamplingParams, names: Mapping[str, str]) -> SamplingParams:
    """The parameters; raises `RequestError` for one out of its range, by the name that the API has for it."""
    try:
        params.validate()
    except RequestError as error:
        faults = error.faults or (FieldFault(str(error), error.param, error.code),)
        raise together([_renamed(fault, names) for fault in faults]) from error
    return params


def _renamed(fault: FieldFault, names: Mapping[str, str]) -> RequestError:
    name = fault.param or ""
    theirs = names.get(name, name)
    return RequestError(fault.message.replace(name, theirs, 1), param=theirs or None, code=fault.code)
