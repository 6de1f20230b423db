"""Text between tags, and what parsers are made of: modes that hand the unread text on to one another.

`TextMode` gives text to the content or the reasoning and looks for the tags that may come there. A tag that stands
where it means nothing, or that begins no call after all, is text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pyagent.core.dialects.lark import Lark
from pyagent.core.dialects.output import Output
from pyagent.core.dialects.source import Source, Tags, tags_of
from pyagent.core.messages import Tool


class Mode(Protocol):
    """A part of an answer being read."""

    def step(self, source: Source, output: Output) -> Mode | None:
        """Read what can be understood; return the mode that goes on, or None until there is more text."""
        ...

    def end(self, source: Source, output: Output) -> None:
        """End with the answer: give out what was held back, and complete a call unless the source `is_cut`."""
        ...


class Calls(Protocol):
    """How calls are written."""

    @property
    def opener(self) -> str:
        """The tag that begins a call, or each group of them."""
        ...

    @property
    def closers(self) -> tuple[str, ...]:
        """Tags that may end it."""
        ...

    @property
    def bare_openers(self) -> tuple[str, ...]:
        """What begins a call at the beginning of a line, where there is no tag."""
        ...

    @property
    def group(self) -> tuple[str, str, str]:
        """What a model writes before, between and after the calls of an answer."""
        ...

    def open(self, context: Context, tag: str) -> Mode:
        """Return the mode that reads a call after its opener, which becomes text if there is none."""
        ...

    def lark(self, tool: Tool, rule: str, lark: Lark) -> str:
        """Return the expression for a call of a tool, between opener and closer; `rule` begins names of rules."""
        ...


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The tags around reasoning, or texts that serve as such.

    `end_before_calls` ends it where calls may follow, if that is another text than `end`; `no_begin` begins an answer
    that has none.
    """

    begin: str = "<think>"
    end: str = "</think>"
    end_before_calls: str = ""
    no_begin: str = ""

    def ending(self, *, has_tools: bool) -> str:
        """Return the text that ends reasoning."""
        return (has_tools and self.end_before_calls) or self.end


@dataclass(frozen=True, slots=True)
class Context:
    """What the modes of one parser share and never change."""

    reasoning: Reasoning | None
    calls: Calls
    section: str
    """The tag that begins all calls of an answer."""
    wrappers: tuple[str, ...]
    """Tags around calls or content that mean nothing else; they are dropped wherever they stand."""
    ends_reasoning: bool
    """Whether calls end reasoning that was not closed."""
    tools: Mapping[str, Tool]
    is_held: bool = False
    """Whether a grammar holds the answer; calls stand only where it has them."""
    answer: tuple[str, str] = ("", "")
    """Tags around the content, which mean so only at its beginning and its end."""
    stops: tuple[str, ...] = field(init=False)
    """Tags that end a call whose arguments are broken."""
    opener: str = field(init=False)
    openers: tuple[str, ...] = field(init=False)
    closers: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        opener = self.calls.opener.strip() if self.tools else ""
        bare = self.calls.bare_openers if self.tools else ()
        object.__setattr__(self, "opener", opener)
        object.__setattr__(self, "openers", tuple(filter(None, (opener, *bare))))
        closers = tuple(closer.strip() for closer in self.calls.closers)
        object.__setattr__(self, "closers", closers)
        object.__setattr__(self, "stops", tuple(filter(None, (*closers, opener, *self.wrappers))))

    def __deepcopy__(self, memo: object) -> Context:
        return self

    def tags(self, closers: tuple[str, ...], *, is_reasoning: bool) -> Tags:
        """Return the tags that may come in a text."""
        begin, end = (self.reasoning.begin, self.reasoning.end) if self.reasoning else ("", "")
        if not is_reasoning:
            return tags_of(begin, *self.openers, *self.wrappers, *self.answer, *closers)
        return tags_of(begin, end, *((self.opener, self.section) if self.ends_reasoning else ()))


@dataclass(slots=True)
class TextMode:
    """Content or reasoning; `closers` are tags still expected after a call."""

    context: Context
    is_reasoning: bool = False
    closers: tuple[str, ...] = ()

    def step(self, source: Source, output: Output) -> Mode | None:
        """Give out text up to the next tag."""
        tags = self.context.tags(self.closers, is_reasoning=self.is_reasoning)
        text = output.reasoning if self.is_reasoning else output.content
        while True:
            before, tag = tags.read(source)
            text.write(before)
            if not tag:
                return None
            mode = self._in_reasoning(tag, output) if self.is_reasoning else self._in_content(tag, output)
            if mode is not None:
                return mode
            text.write(tag)

    def end(self, source: Source, output: Output) -> None:
        """End with the answer; nothing is held back."""

    def _in_reasoning(self, tag: str, output: Output) -> Mode | None:
        assert self.context.reasoning
        if tag in {self.context.reasoning.end, self.context.section}:
            output.pass_tag()
            output.is_in_section = tag == self.context.section
            return TextMode(self.context)
        if tag in self.context.openers:
            return self.context.calls.open(self.context, tag)
        return self if output.reasoning.is_fresh else None  # a model that repeats the tag its prompt ended with

    def _may_open(self, tag: str, output: Output) -> bool:
        context = self.context
        is_bare = tag in context.calls.bare_openers
        if not context.is_held:
            return not is_bare or output.content.is_line_start
        if context.section:
            return output.is_in_section
        is_first = not output.content.has_text and not output.num_calls
        return not is_bare or (not context.opener and is_first)

    def _in_content(self, tag: str, output: Output) -> Mode | None:
        if tag in self.closers or tag in self.context.wrappers:
            output.pass_tag()
            if tag in self.context.wrappers:
                output.is_in_section = tag == self.context.section
            return TextMode(self.context, closers=tuple(one for one in self.closers if one != tag))
        if tag in self.context.openers:
            return self.context.calls.open(self.context, tag) if self._may_open(tag, output) else None
        if tag in self.context.answer:
            return self._at_answer(tag, output)
        if not output.content.is_fresh:  # an answer that speaks of the tag
            return None
        output.pass_tag()
        output.reasoning.begin_part()
        return TextMode(self.context, is_reasoning=True)

    def _at_answer(self, tag: str, output: Output) -> Mode | None:
        if tag == self.context.answer[0] and not output.content.has_text and not output.is_in_answer:
            output.pass_tag()
            output.is_in_answer = True
            return TextMode(self.context, closers=self.closers)
        return AnswerEnd(self.context, [tag]) if tag == self.context.answer[1] and output.is_in_answer else None


@dataclass(slots=True)
class AnswerEnd:
    """Reads on after the tag that ends the content: `raw` is text where more of that follows."""

    context: Context
    raw: list[str]

    def step(self, source: Source, output: Output) -> Mode | None:
        """Find out whether nothing follows, or another tag."""
        self.raw.append(source.take_space())
        reasoning = self.context.reasoning
        tags = (*self.context.openers, *self.context.wrappers, reasoning.begin if reasoning else "")
        tag = source.any_of(tuple(filter(None, tags))) if source.num_left else None
        if tag is None:
            return None
        if tag:
            output.pass_tag()
        else:
            output.content.write("".join(self.raw))
        return TextMode(self.context)

    def end(self, source: Source, output: Output) -> None:
        """End with the answer."""
        output.pass_tag()
