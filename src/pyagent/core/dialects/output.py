"""What a parser understood: content, reasoning and pieces of tool calls, gathered between two pushes.

White space beside a tag belongs to the format, not to the text: it is left out at the beginning and the end of a text,
and kept between two parts of it. A text without tags comes out as it went in.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import msgspec

from pyagent.core.messages import ToolCallDelta


class Parsed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a piece of an answer's text brought; what is not decided yet comes with a later one."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


@dataclass(slots=True)
class Text:
    """Content or reasoning. Trailing white space is held back until it is known whether text or a tag follows."""

    has_text: bool = False
    is_after_tag: bool = False
    is_fresh: bool = True
    """Whether nothing but white space came since the beginning or the last tag."""
    is_line_start: bool = True
    _pieces: list[str] = field(default_factory=list[str])
    _space: list[str] = field(default_factory=list[str])

    def write(self, text: str) -> None:
        """Add text."""
        if not text:
            return
        self._note_line(text)
        core = text.rstrip()
        if not core:
            self._space.append(text)
            return
        space, self._space = self._space, [text[len(core) :]]
        if self.is_after_tag and not self.has_text:
            core = core.lstrip()
        else:
            self._pieces += space
        self._pieces.append(core)
        self.has_text, self.is_after_tag, self.is_fresh = True, False, False

    def _note_line(self, text: str) -> None:
        _, newline, last = text.rpartition("\n")
        self.is_line_start = not last.strip() and (bool(newline) or self.is_line_start)

    def pass_tag(self) -> None:
        """Note that a tag stood here."""
        self.is_after_tag = self.is_fresh = self.is_line_start = True

    def begin_part(self) -> None:
        """Begin another part on a line of its own."""
        if self.has_text:
            self._space = ["\n"]
        self.is_after_tag = True

    def end(self) -> None:
        """Add what was held back, unless it stands beside a tag."""
        if not self.is_after_tag:
            self._pieces += self._space
        self._space = []

    def take(self) -> str:
        """Return what was added since the last time."""
        text = "".join(self._pieces)
        self._pieces = []
        return text


@dataclass(slots=True)
class _Call:
    index: int
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Output:
    """Gathers what the modes read; `new_id` makes the id of a call from its name and index."""

    new_id: Callable[[str, int], str]
    content: Text = field(default_factory=Text)
    reasoning: Text = field(default_factory=Text)
    num_calls: int = 0
    is_in_section: bool = False
    """Whether the tag that begins an answer's calls was the last of its kind."""
    is_in_answer: bool = False
    """Whether the content began with its tag."""
    _has_arguments: bool = False
    _calls: list[_Call] = field(default_factory=list[_Call])

    def copy(self) -> Self:
        """Return an output that goes on by itself."""
        return copy.deepcopy(self)

    def begin_call(self, name: str, call_id: str = "") -> None:
        """Begin a call; its arguments follow."""
        index = self.num_calls
        self._calls.append(_Call(index, call_id or self.new_id(name, index), name))
        self.num_calls += 1
        self._has_arguments = False

    def add_arguments(self, text: str) -> None:
        """Add a piece of the last call's arguments."""
        if not text:
            return
        if not self._calls:
            self._calls.append(_Call(self.num_calls - 1))
        self._calls[-1].pieces.append(text)
        self._has_arguments = True

    def end_call(self) -> None:
        """End the last call, which is whole; without arguments it gets an empty object."""
        if not self._has_arguments:
            self.add_arguments("{}")

    def pass_tag(self) -> None:
        """Note a tag, which parts both texts."""
        self.content.pass_tag()
        self.reasoning.pass_tag()

    def end(self) -> None:
        """End the answer."""
        self.content.end()
        self.reasoning.end()

    def take(self) -> Parsed:
        """Return what came since the last time."""
        calls, self._calls = self._calls, []
        deltas = tuple(ToolCallDelta(call.index, call.id, call.name, "".join(call.pieces)) for call in calls)
        return Parsed(self.content.take(), self.reasoning.take(), deltas)
