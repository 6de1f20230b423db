"""Tools that agents call by name: a function with typed arguments, that also describes itself to a model.

A tool's arguments are a msgspec struct, which the function is given, or a JSON schema, and then the function is given a
dict. What comes from a model or a program is checked before the function runs. Knows nothing of agents or backends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.file_access import current_access
from pyagent.core.messages import FunctionDefinition, JsonObject, Tool

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

Effect = Literal["none", "idempotent", "once"]
"""What calling a tool changes: nothing; something, and a second call nothing more; something with each call."""


@dataclass(frozen=True, slots=True)
class FleetTool:
    """A tool. `arguments` is the msgspec struct or the JSON schema of what `function` takes (`Any`: each has its own).

    Calls of tools without `effect` are run side by side, others in the model's order. One that `needs_approval` runs
    only when a person allows it. With `takes_context` the function gets the calling agent's context too.
    The output of one that `is_last` is the answer of the model that calls it. One that is not `for_clients` is kept
    from runs that a server's client begins.

    Raises `RequestError` for a name that is none, and for a schema of something else than an object.
    """

    name: str
    description: str
    arguments: type[Any] | JsonObject
    function: Callable[..., Awaitable[object]]
    effect: Effect = "once"
    needs_approval: bool = False
    takes_context: bool = False
    is_last: bool = False
    for_clients: bool = True

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise RequestError(problem, param="tools")

    def _problem(self) -> str | None:
        name, description, arguments = (cast("object", part) for part in (self.name, self.description, self.arguments))
        if not isinstance(name, str) or not name or any(letter.isspace() or letter == "/" for letter in name):
            return f"a tool needs a name without spaces and slashes, got {name!r:.80}"
        if not isinstance(description, str):
            return f"the tool {name} needs a description, got {description!r:.80}"
        if not callable(self.function) or self.effect not in {"none", "idempotent", "once"}:
            text = "an async function, and none, idempotent or once as its effect"
            return f"the tool {name} needs {text}, got {self.function!r:.80}, {self.effect!r:.80}"
        if isinstance(arguments, Mapping):
            kind = cast("Mapping[str, object]", arguments).get("type", "object")
            return None if kind == "object" else f"the tool {name} needs a JSON schema of an object, got one of {kind}"
        if arguments is None or isinstance(arguments, str | list | tuple | bool):
            return f"the tool {name} needs a msgspec struct or a JSON schema as arguments, got {arguments!r:.80}"
        return None

    async def call(self, arguments: msgspec.Struct | JsonObject | str, context: Context | None = None) -> object:
        """Run it; `arguments` may be JSON text or a plain dict. Raises `RequestError` when they do not fit."""
        if not self.for_clients and current_access().is_limited:
            raise RequestError(f"the tool {self.name} is not for the clients of a server", param="tools")
        checked = await self.checked(arguments)
        return await (self.function(checked, context) if self.takes_context else self.function(checked))

    async def checked(self, arguments: msgspec.Struct | JsonObject | str) -> object:
        """Return the arguments as the function takes them; raises `RequestError` when they do not fit."""
        try:
            return await self._read(arguments)
        except (ValueError, TypeError, RecursionError, RequestError) as error:  # msgspec's are ValueErrors
            message = f"the tool {self.name} cannot take these arguments: {error}"
            raise RequestError(message, param="arguments") from error

    async def _read(self, arguments: msgspec.Struct | JsonObject | str) -> object:
        if not isinstance(self.arguments, Mapping):
            if isinstance(arguments, str):
                return msgspec.json.decode(arguments, type=self.arguments)
            return msgspec.convert(arguments, self.arguments, strict=True)
        from pyagent.core.emulation.schemas import fault_of

        given = msgspec.json.decode(arguments) if isinstance(arguments, str) else msgspec.to_builtins(arguments)
        # In a thread: a schema may take a second to check.
        fault = await asyncio.to_thread(fault_of, given, self._parameters(), "arguments")
        if fault is not None:
            raise ValueError(fault)
        return given

    def check(self) -> None:
        """Raise `RequestError` when the arguments are neither a type that msgspec knows nor a sound JSON schema."""
        from pyagent.core.emulation.schemas import fault_of

        try:
            fault_of({}, self._parameters(), "tools")
        except (TypeError, RequestError) as error:
            raise RequestError(f"the tool {self.name} cannot be offered: {error}", param="tools") from error

    def definition(self) -> Tool:
        """Return the tool as a model is told of it: a JSON schema with the arguments' properties at its top."""
        return Tool(function=FunctionDefinition(self.name, self.description, self._parameters()))

    def _parameters(self) -> JsonObject:
        """Return the arguments as a JSON schema of an object."""
        return {"type": "object", **self.arguments} if isinstance(self.arguments, Mapping) else _schema(self.arguments)


def _schema(kind: type[Any]) -> JsonObject:
    """The schema of a struct, without the reference that msgspec begins with: many backends want an object there."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    parts = cast("dict[str, JsonObject]", components)
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    top = parts.get(name, cast("JsonObject", schema))
    others = {other: part for other, part in parts.items() if other != name}
    if f'"#/$defs/{name}"'.encode() in msgspec.json.encode([top, others]):  # it holds others of its own kind
        others = parts
    return {**top, "$defs": others} if others else dict(top)
