"""`Dialect`: how a model family writes reasoning and calls; `TagDialect`: one that is described by its tags."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, runtime_checkable

from pyagent.core.dialects.lark import Lark
from pyagent.core.dialects.output import Output, Parsed
from pyagent.core.dialects.source import Source
from pyagent.core.dialects.text import Calls, Context, Mode, Reasoning, TextMode
from pyagent.core.messages import Tool


class OutputParser(Protocol):
    """Reads one answer. Any split of its text into pieces gives, joined, the same content, reasoning and calls."""

    def push(self, text: str) -> Parsed:
        """Read a piece; what was given out is never taken back."""
        ...

    def finish(self, *, is_cut: bool = False) -> Parsed:
        """End the answer: return what was held back, and what makes the arguments of an open call valid JSON.

        Where the answer `is_cut`, by its limit of tokens, a call stays as far as it came.
        """
        ...

    def copy(self) -> OutputParser:
        """Return a parser that goes on by itself, for answers that fork."""
        ...

    @property
    def is_reasoning(self) -> bool:
        """Whether the text is reasoning now; a grammar begins when it is not."""
        ...


@runtime_checkable
class Dialect(Protocol):
    """How a model family writes reasoning and calls."""

    @property
    def name(self) -> str:
        """Its name, vLLM's where that has one."""
        ...

    @property
    def markers(self) -> frozenset[str]:
        """Tags that are control tokens of its models, whose text the parser must see."""
        ...

    @property
    def reasoning(self) -> Reasoning | None:
        """The texts around reasoning; None where its models write none, or it is not to be seen."""
        ...

    @property
    def spans_reasoning(self) -> bool:
        """Whether its grammar covers the whole answer; else it begins where reasoning has ended."""
        ...

    def matches(self, template: str) -> bool:
        """Whether a chat template's text shows that its model writes so."""
        ...

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt ends inside of reasoning, so that the answer begins there."""
        ...

    def parser(self, tools: Sequence[Tool], *, is_reasoning: bool = False, is_held: bool = False) -> OutputParser:
        """Return a parser for an answer to a request with these tools; without any, tags of calls are text.

        Of an answer that `is_held` to the dialect's grammar, calls are read only where the grammar has them.
        """
        ...

    def grammar(
        self, tools: Sequence[Tool], *, is_required: bool, is_parallel: bool, token_ids: Mapping[str, int] | None = None
    ) -> str:
        """Return a Lark grammar for an answer, from where its reasoning has ended, or whole (`spans_reasoning`).

        Its calls follow the tools' schemas; text may stand before them unless a call `is_required`. `token_ids` are
        those `markers` that are control tokens of the model at hand, with their ids; others are plain text. A grammar
        of a whole answer has a rule `answer: TEXT` for its text; a response format is put in the place of that.
        """
        ...


class ModeParser:
    """The parser of a dialect whose modes hand the text on to one another."""

    def __init__(self, mode: Mode, new_id: Callable[[str, int], str], is_in_reasoning: Callable[[Mode], bool]) -> None:
        self._mode = mode
        self._is_in_reasoning = is_in_reasoning
        self._source = Source()
        self._output = Output(new_id)
        if self.is_reasoning:
            self._output.pass_tag()

    def push(self, text: str) -> Parsed:
        """Read a piece."""
        self._source.extend(text)
        self._read()
        return self._output.take()

    def finish(self, *, is_cut: bool = False) -> Parsed:
        """End the answer."""
        self._source.is_last, self._source.is_cut = True, is_cut
        self._read()
        self._mode.end(self._source, self._output)
        self._output.end()
        return self._output.take()

    def copy(self) -> Self:
        """Return a parser that goes on by itself."""
        return copy.deepcopy(self)

    @property
    def is_reasoning(self) -> bool:
        """Whether the text is reasoning now."""
        return self._is_in_reasoning(self._mode)

    def _read(self) -> None:
        while (mode := self._mode.step(self._source, self._output)) is not None:
            self._mode = mode


def random_id(name: str, index: int) -> str:
    """Return an id for a call, as OpenAI's look."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TagDialect:
    """A dialect described by its tags.

    It is chosen for templates with all of its `clues`, one of `one_of` and none of its `absent`; without clues by name
    only. The calls of an answer stand in `section`, its content in `answer`; `wrappers` are tags that mean nothing.
    """

    name: str
    models: str
    clues: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    reasoning: Reasoning | None = field(default_factory=Reasoning)
    calls: Calls
    section: tuple[str, str] = ("", "")
    answer: tuple[str, str] = ("", "")
    wrappers: tuple[str, ...] = ()
    markers: frozenset[str] = frozenset()
    ends_reasoning: bool = False
    spans_reasoning: bool = False
    ends_with_calls: bool = False
    new_id: Callable[[str, int], str] = random_id

    def matches(self, template: str) -> bool:
        """Whether the template has the clues."""
        if not self.clues and not self.one_of:
            return False
        has_one = not self.one_of or any(clue in template for clue in self.one_of)
        has_clues = has_one and all(clue in template for clue in self.clues)
        return has_clues and not any(clue in template for clue in self.absent)

    def is_open(self, prompt: str) -> bool:
        """Whether the prompt's last tag of reasoning opens it, at the prompt's end."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning.begin.rstrip())

    def parser(self, tools: Sequence[Tool], *, is_reasoning: bool = False, is_held: bool = False) -> OutputParser:
        """Return a parser for an answer."""
        by_name = {tool.function.name: tool for tool in tools}
        begin, end = (tag.strip() if tools else "" for tag in self.section)
        wrappers = (begin, end, *self.wrappers)
        context = Context(
            self.reasoning, self.calls, begin, wrappers, self.ends_reasoning, by_name, is_held, self.answer
        )
        return ModeParser(TextMode(context, is_reasoning and self.reasoning is not None), self.new_id, _is_reasoning)

    def grammar(
        self, tools: Sequence[Tool], *, is_required: bool, is_parallel: bool, token_ids: Mapping[str, int] | None = None
    ) -> str:
        """Return a grammar for an answer."""
        lark = Lark(token_ids or {})
        begin, between, end = self.calls.group
        opening, closing = self.section[0] + begin, end + self.section[1]
        trigger = (self.section[0] or self.calls.opener).strip()
        calls = [self.calls.lark(tool, f"call_{at}", lark) for at, tool in enumerate(tools)]
        lark.rule("call", lark.choice(calls))
        more = f"({lark.literal(between)} call)*" if is_parallel else ""
        lark.rule("calls", f"{lark.literal(opening.removeprefix(trigger))} call {more} {lark.literal(closing)}")
        if is_required:
            lark.rule("start", rf"/[ \n]{{0,2}}/ {lark.literal(trigger)} calls")
        elif trigger:
            lark.rule("tagged", f"{lark.text_until('head', trigger)} calls")
            lark.rule("start", "tagged* TEXT" if is_parallel and not self.ends_with_calls else "TEXT | tagged")
        else:
            first = "".join(map(_in_class, self.calls.bare_openers))
            lark.rule("start", rf"calls | /([^\s{first}](.|\n)*)?/")
        return str(lark)


def _in_class(character: str) -> str:
    return f"\\{character}"


def _is_reasoning(mode: Mode) -> bool:
    return isinstance(mode, TextMode) and mode.is_reasoning
