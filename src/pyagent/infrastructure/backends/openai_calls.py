"""Puts an answer's tool calls together from the pieces that OpenAI-compatible servers send, however they count them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import cast

import msgspec

from pyagent.core.messages import FinishReason, ToolCallDelta


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCallPart(msgspec.Struct):
    """A piece of a call."""

    index: int = 0
    id: str | None = None
    function: _Function | None = None


@dataclass(slots=True)
class _Call:
    """One of an answer's calls under way: what came of it, and how much of that was told."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    is_told: bool = False
    num_told: int = 0

    def add(self, id_: str, function: _Function) -> None:
        self.id = self.id or id_
        self.name = self.name or function.name or ""
        self.arguments += function.arguments or ""

    def is_other(self, id_: str, function: _Function) -> bool:
        """Whether a piece under this call's index begins another one: by its id, or by a name after whole arguments."""
        if id_ and self.id:
            return id_ != self.id
        return bool(function.name) and bool(self.arguments) and _is_object(self.arguments)

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are there; where none came, more may."""
        return bool(self.arguments) and _is_object(self.arguments)

    def pieces(self, index: int, *, is_last: bool = False) -> list[ToolCallDelta]:
        """What came since it was last told; until its end nothing while it has no name."""
        if not (self.name or is_last):
            return []
        if is_last:
            self.arguments = self.arguments or "{}"
        arguments, self.num_told = self.arguments[self.num_told :], len(self.arguments)
        if self.is_told:
            return [ToolCallDelta(index=index, arguments=arguments)] if arguments else []
        self.is_told = True
        id_ = self.id or f"call_{uuid.uuid4().hex[:12]}"
        return [ToolCallDelta(index=index, id=id_, name=self.name, arguments=arguments)]


@dataclass(slots=True)
class Member:
    """One of the answers under way. Its calls are told one after another: one that begins early waits."""

    finish: FinishReason | None = None
    high: str = ""
    calls: list[_Call] = field(default_factory=list[_Call])
    places: dict[int, int] = field(default_factory=dict[int, int])
    num_ended: int = 0
    num_echoed: int = 0

    def add_call(self, part: ToolCallPart) -> list[ToolCallDelta]:
        """Join a piece to its call, and return what can be told. Some servers give every call the index 0."""
        function, id_ = part.function or _Function(), part.id or ""
        place = self.places.get(part.index)
        if place is None or self.calls[place].is_other(id_, function):
            place = self.places[part.index] = len(self.calls)
            self.calls.append(_Call())
        self.calls[place].add(id_, function)
        return self._news()

    def _news(self) -> list[ToolCallDelta]:
        """What is new of the call being told, and of those after it once it is whole."""
        pieces = self.calls[self.num_ended].pieces(self.num_ended)
        while self.num_ended + 1 < len(self.calls) and self.calls[self.num_ended].is_whole:
            self.num_ended += 1
            pieces += self.calls[self.num_ended].pieces(self.num_ended)
        return pieces

    def rest(self) -> list[ToolCallDelta]:
        """What is left to tell of the calls at the answer's end."""
        places = range(self.num_ended, len(self.calls))
        return [piece for place in places for piece in self.calls[place].pieces(place, is_last=True)]

    def joined(self, content: str) -> str:
        """Put a character together whose two halves (UTF-16 surrogates) came in two chunks."""
        if not self.high and (not content or content.isascii()):
            return content
        content, self.high = self.high + content, ""
        if "\ud800" <= content[-1] <= "\udbff" and not self.finish:
            content, self.high = content[:-1], content[-1]
        return content.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def faulty_call(self) -> str:
        """The arguments of a call that are no JSON object; empty when there is none. One that was cut off may be."""
        if self.finish == "length":
            return ""
        return next((call.arguments for call in self.calls if not _is_object(call.arguments)), "")


def _is_object(arguments: str) -> bool:
    try:
        return not arguments or isinstance(cast("object", msgspec.json.decode(arguments.encode())), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
