"""Tools of responses, some of them in namespaces, as the plain functions that models know. Pure.

A function of a namespace is shown to the model as NAMESPACE__NAME; its calls are told by namespace and name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import FunctionDefinition, JsonObject, Tool
from pyagent.infrastructure.server.custom_tools import InputGrammar, custom_tool
from pyagent.infrastructure.server.validation import Refused, refuse

_REFUSED: Refused = {
    "allowed_callers": (([], ["direct"]), "nothing but the model calls tools"),
    "output_schema": ((), "describe what a function gives in its description"),
    "defer_loading": ((False,), "every tool is shown to the model"),
}


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="function"):
    """A function that the client runs. Unlike OpenAI's, it is strict only where that is said."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    allowed_callers: object = None
    defer_loading: object = None
    output_schema: object = None

    def told(self) -> JsonObject:
        """Return the function as the response repeats it."""
        echoed: JsonObject = {"type": "function", "name": self.name, "description": self.description}
        return echoed | {"parameters": self.parameters, "strict": self.strict}


class Namespace(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="namespace"):
    """Functions under a name they share."""

    name: str
    tools: list[FunctionTool]
    description: str | None = None

    def told(self) -> JsonObject:
        """Return the namespace as the response repeats it."""
        echoed: JsonObject = {"type": "namespace", "name": self.name, "description": self.description}
        return echoed | {"tools": [tool.told() for tool in self.tools]}


class _InputFormat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["text", "grammar"] = "text"
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="custom"):
    """A tool whose input is free text."""

    name: str
    description: str | None = None
    format: _InputFormat | None = None
    allowed_callers: object = None
    defer_loading: object = None

    def told(self) -> JsonObject:
        """Return the tool as the response repeats it."""
        form: JsonObject = {"type": "text"} if self.format is None else msgspec.to_builtins(self.format)
        return {"type": "custom", "name": self.name, "description": self.description, "format": form}

    def tool(self) -> Tool:
        """Return the function that stands for it; raises `RequestError` naming what cannot be held."""
        refuse(self, _REFUSED, "tools.")
        form = self.format
        if form is None or form.type == "text":
            return custom_tool(self.name, self.description, None, "tools.format")
        if form.syntax is None or form.definition is None:
            text = "tools.format of type grammar needs its syntax and its definition"
            raise RequestError(text, param="tools.format")
        return custom_tool(self.name, self.description, InputGrammar(form.definition, form.syntax), "tools.format")


InputTool = FunctionTool | Namespace | CustomTool


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name of a function as the model knows it."""
    return f"{namespace}__{name}" if namespace else name


def namespaced(tools: Sequence[InputTool]) -> dict[str, tuple[str, str]]:
    """Of each function in a namespace, by the model's name for it: the namespace and its name there."""
    found = ((space.name, tool.name) for space in tools if isinstance(space, Namespace) for tool in space.tools)
    return {flat_name(*names): names for names in found}


def custom_names(tools: Sequence[InputTool]) -> frozenset[str]:
    """Return the names of the custom tools."""
    return frozenset(tool.name for tool in tools if isinstance(tool, CustomTool))


def functions(tools: Sequence[InputTool]) -> list[Tool]:
    """Return what models are offered. Raises `RequestError` naming the tool at fault."""
    offered = [*_functions(tools)]
    counts = Counter(tool.function.name for tool in offered)
    if repeated := next((name for name, count in counts.items() if count > 1 and "__" in name), None):
        raise RequestError(f"tools has two functions that models would know as {repeated!r}", param="tools")
    return offered


def _functions(tools: Sequence[InputTool]) -> Iterator[Tool]:
    for tool in tools:
        if isinstance(tool, Namespace):
            for inner in tool.tools:
                yield _function(inner, tool.name, tool.description or "")
        elif isinstance(tool, CustomTool):
            yield tool.tool()
        else:
            yield _function(tool)


def _function(tool: FunctionTool, namespace: str = "", about: str = "") -> Tool:
    refuse(tool, _REFUSED, "tools.")
    description = " ".join(filter(None, [about, tool.description]))
    name = flat_name(namespace, tool.name)
    return Tool(FunctionDefinition(name, description, tool.parameters or {}, tool.strict or None))
