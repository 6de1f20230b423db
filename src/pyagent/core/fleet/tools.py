"""Tools that agents call by name: a function with typed arguments, that also describes itself to a model.

A tool's arguments are a msgspec struct; what comes from a model or a program is checked against it before the function
runs. Knows nothing of agents or backends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import FunctionDefinition, JsonObject, Tool


@dataclass(frozen=True, slots=True)
class FleetTool:
    """A tool. `arguments` is the msgspec struct that `function` takes (`Any` here: each tool has its own)."""

    name: str
    description: str
    arguments: type[Any]
    function: Callable[[Any], Awaitable[object]]

    async def call(self, arguments: msgspec.Struct | JsonObject | str) -> object:
        """Run it; `arguments` may be JSON text or a plain dict. Raises `RequestError` when they do not fit."""
        try:
            if isinstance(arguments, str):
                checked = msgspec.json.decode(arguments, type=self.arguments)
            else:
                checked = msgspec.convert(arguments, self.arguments, strict=True)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            message = f"the tool {self.name} cannot take these arguments: {error}"
            raise RequestError(message, param="arguments") from error
        return await self.function(checked)

    def definition(self) -> Tool:
        """The tool as a model is told of it."""
        schema = msgspec.json.schema(self.arguments)
        return Tool(function=FunctionDefinition(name=self.name, description=self.description, parameters=schema))
