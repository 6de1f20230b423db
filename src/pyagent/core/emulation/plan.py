"""What a request becomes for a backend that lacks some of it: what it is asked in words, and what is checked. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from pyagent.core.abilities import Abilities
from pyagent.core.emulation import dialect, response_formats
from pyagent.core.errors import InvalidOutputError
from pyagent.core.messages import ChatRequest, Message, ResponseFormat, Tool, ToolCall


@dataclass(slots=True)
class Plan:
    """What is asked in words, and what must be checked: a response format, calls in the text's tags, calls at all."""

    request: ChatRequest
    missing: Abilities
    response_format: ResponseFormat | None = None
    strict: list[Tool] = field(default_factory=list[Tool])
    tagged: list[Tool] = field(default_factory=list[Tool])
    needs_call: bool = False
    is_empty: bool = True

    @classmethod
    def of(cls, request: ChatRequest, abilities: Abilities, missing: Abilities) -> Plan:
        """The plan for a request to a backend with these abilities, which lacks what is `missing`."""
        plan = cls(request, missing)
        plan.choose_strict()
        plan.choose_tools()
        plan.choose_response_format(has_choice="choice" in abilities)
        return plan

    def choose_strict(self) -> None:
        """See to the arguments of strict tools where the backend does not."""
        if "strict" in self.missing:
            self.strict = self.request.tools
            self._ask(msgspec.structs.replace(self.request, tools=[_lenient(tool) for tool in self.strict]))

    def choose_tools(self) -> None:
        """Tell the tools in words where the backend takes none; see to `tool_choice` where it does not."""
        if not self.missing & {"tools", "tool_choice"}:
            return
        choice, tools = self.request.tool_choice, self.request.tools
        if choice == "none":
            tools = []
        elif isinstance(choice, dict):
            tools = [tool for tool in tools if tool.function.name == _named(choice)]
        self.needs_call = bool(tools) and choice not in (None, "auto")
        self._ask(msgspec.structs.replace(self.request, tools=tools, tool_choice=None))
        if "tools" in self.missing:
            self.tagged = tools
            words = dialect.instruction(tools, is_parallel=self.request.parallel_tool_calls) if tools else ""
            self._ask(dialect.told_plainly(self.request), words)
        if self.needs_call:
            self._ask(self.request, "Answer with a call of one of your functions, not with text.")

    def choose_response_format(self, *, has_choice: bool) -> None:
        """Ask for the response format in words, or for a choice as a schema, where the backend does not know it."""
        wanted = self.request.response_format
        if wanted is None or wanted.type == "text":
            return
        if wanted.types & self.missing or self.tagged:  # a grammar for it would forbid the tags
            self.response_format = wanted
            self._ask(msgspec.structs.replace(self.request, response_format=None), response_formats.instruction(wanted))
        elif wanted.type == "choice" and not has_choice:
            self.response_format = wanted
            self._ask(msgspec.structs.replace(self.request, response_format=response_formats.as_schema(wanted)))

    def _ask(self, request: ChatRequest, words: str = "") -> None:
        self.is_empty = False
        self.request = _instructed(request, words) if words else request

    @property
    def is_shown_at_once(self) -> bool:
        """Whether text before a call can be streamed: nothing about it needs to be checked."""
        return self.response_format is None and not self.needs_call

    @property
    def param(self) -> str:
        """The field that asks for what is checked."""
        return "response_format" if self.response_format else "tool_choice" if self.needs_call else "tools"

    def read(
        self, text: str, calls: list[ToolCall], tags: dialect.TagReader | None, *, is_cut: bool
    ) -> tuple[str, list[ToolCall]]:
        """Return the answer's text and calls, those in its tags included. Raises `InvalidOutputError`."""
        if tags:
            text, calls = tags.finish(is_cut=is_cut)
        elif (fault := response_formats.fault_of_calls(calls, self.strict)) is not None:
            raise InvalidOutputError(fault, param=self.param)
        if self.needs_call and not calls:
            raise InvalidOutputError("it calls no function, and a call was asked for", param=self.param)
        if calls or self.response_format is None:
            return text, calls
        found = response_formats.read(text, self.response_format)
        begun = self.request.assistant_prefix + self.request.answer_prefix
        if not found.startswith(begun):
            raise InvalidOutputError(f"it does not begin with {begun[:80]!r}", param=self.param)
        return found, calls


def _lenient(tool: Tool) -> Tool:
    return msgspec.structs.replace(tool, function=msgspec.structs.replace(tool.function, strict=None))


def _named(choice: dict[str, object]) -> object:
    function = choice.get("function")
    return function.get("name") if isinstance(function, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _instructed(request: ChatRequest, text: str) -> ChatRequest:
    """The request with words at the end of its system prompt."""
    messages = list(request.messages)
    if messages and messages[0].role in {"system", "developer"}:
        messages[0] = Message(messages[0].role, f"{messages[0].text}\n\n{text}")
    else:
        messages.insert(0, Message("system", text))
    return msgspec.structs.replace(request, messages=messages)
