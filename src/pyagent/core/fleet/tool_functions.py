"""Tools made of functions: the schema from the signature, the description from the docstring.

    @tool(effect="none")
    async def weather(city: str, days: int = 3) -> str:
        'Tell the weather of a city.'

Parameters are described in an `Args:` section of the docstring, or by `:param city:`. One annotated `Context` gets the
calling agent's context, and is no argument of the tool. A function that is not `async` runs in a thread.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, cast, get_type_hints, overload

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.tools import Effect, FleetTool

Function = Callable[..., Any]
_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?)\s*:?\s*$")
_ARGUMENT = re.compile(r"^\s+(\w+)\s*(?:\([^)]*\))?\s*:\s*(.+)$")
_SPHINX = re.compile(r"^\s*:param\s+(?:[\w\[\], |.]+\s+)?(\w+)\s*:\s*(.+)$")


@overload
def tool(function: Function, /) -> FleetTool: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, effect: Effect = "once", needs_approval: bool = False
) -> Callable[[Function], FleetTool]: ...


def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "once",
    needs_approval: bool = False,
) -> FleetTool | Callable[[Function], FleetTool]:
    """Return a function as a tool for agents, under its own name and docstring unless others are given.

    Raises `RequestError` for a parameter without a type, or of a kind that has no JSON schema.
    """

    def make(function: Function) -> FleetTool:
        called = name or function.__name__
        told, notes = _read_docstring(inspect.getdoc(function) or "")
        hints = _hints(function, called)
        context_name = next((key for key, kind in hints.items() if kind is Context), "")
        made = FleetTool(
            called,
            description or told,
            _arguments_type(function, called, hints, notes, context_name),
            _adapted(function, context_name),
            effect=effect,
            needs_approval=needs_approval,
            takes_context=bool(context_name),
        )
        made.check()
        return made

    return make if function is None else make(function)


def _hints(function: Function, called: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, localns={"Context": Context}, include_extras=True)
    except (NameError, TypeError) as error:
        raise RequestError(f"the types of the tool {called} cannot be read: {error}", param="tools") from error


def _arguments_type(
    function: Function, called: str, hints: dict[str, Any], notes: dict[str, str], context_name: str
) -> type[msgspec.Struct]:
    """Return a struct with a field for each parameter."""
    fields: list[tuple[str, type] | tuple[str, type, object]] = []
    for key, parameter in inspect.signature(function).parameters.items():
        if key == context_name:
            continue
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise RequestError(f"the tool {called} cannot take {parameter}: give each parameter a name", param="tools")
        if key not in hints:
            raise RequestError(f"the parameter {key} of the tool {called} needs a type", param="tools")
        kind: Any = Annotated[hints[key], msgspec.Meta(description=notes[key])] if key in notes else hints[key]
        given = parameter.default
        fields.append((key, kind) if given is parameter.empty else (key, kind, _default(given)))
    return msgspec.defstruct(called, fields, kw_only=True, forbid_unknown_fields=True)


def _default(value: object) -> object:
    """Return a default that calls do not share."""
    if isinstance(value, list | dict | set):
        shared = cast("object", value)
        return msgspec.field(default_factory=lambda: copy.deepcopy(shared))
    return value


def _adapted(function: Function, context_name: str) -> Callable[..., Any]:
    """Return a function of a struct of arguments, and of the context if one is taken."""
    is_async = inspect.iscoroutinefunction(function)

    async def call(arguments: msgspec.Struct, context: Context | None = None) -> object:
        given = {key: getattr(arguments, key) for key in arguments.__struct_fields__}
        if context_name:
            given[context_name] = context
        return await (function(**given) if is_async else asyncio.to_thread(function, **given))

    return call


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return what a docstring says of a function, and of its parameters, in Google's or Sphinx's form."""
    told: list[str] = []
    notes: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if heading := _SECTION.match(line):
            section = heading[1]
        elif note := _SPHINX.match(line) or (_ARGUMENT.match(line) if section[:3] in {"Arg", "Par"} else None):
            notes[note[1]] = note[2].strip()
        elif not section and not line.lstrip().startswith(":"):
            told.append(line)
    return "\n".join(told).strip(), notes
