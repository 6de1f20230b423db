"""One answer's tokens as what its client reads: content, reasoning and tool calls, the content up to a stop string.

Between the detokenizer and the output. Without a parser all text is content. The text as the model wrote it is kept
too, since a conversation's token log holds that.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from functools import reduce
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pyagent.core.dialects.output import Parsed
from pyagent.core.stop_strings import StopStrings

if TYPE_CHECKING:
    from pyagent.core.dialects.dialect import OutputParser
    from pyagent.infrastructure.engine.tokens import Detokenizer


def joined(first: Parsed, last: Parsed) -> Parsed:
    """Return two pieces of an answer as one."""
    return Parsed(first.content + last.content, first.reasoning + last.reasoning, first.tool_calls + last.tool_calls)


class AnswerText:
    """Reads one answer as it is sampled. What `push` and `flush` return, joined, is the answer."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: tuple[str, ...] = (),
        parser: OutputParser | None = None,
        *,
        includes_stop: bool = False,
        num_chars: int = 0,
    ) -> None:
        """With `includes_stop` the content ends with the stop string; `num_chars` stand before the answer."""
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops, is_included=includes_stop)
        self._has_stops = bool(stops)
        self.num_chars = num_chars
        self._parser = parser
        self._written: list[str] = []
        self._held = ""
        self._num_written: int | None = None
        self.num_calls = 0
        self.num_reasoning_tokens = 0

    def detokenizer(self) -> Detokenizer:
        """Return a stream of text that goes on from here by itself."""
        return self._detokenizer.copy()

    def copy(self) -> AnswerText:
        """Return the text at the same place; neither moves the other."""
        other = copy(self)
        other._detokenizer, other._stops = self._detokenizer.copy(), copy(self._stops)
        other._parser = None if self._parser is None else self._parser.copy()
        other._written = self._written.copy()
        return other

    def parsed(self, text: str, *, is_cut: bool = False) -> Parsed:
        """Return a whole text as such an answer; changes nothing here."""
        if self._parser is None:
            return Parsed(text)
        parser = self._parser.copy()
        first, last = parser.push(text), parser.finish(is_cut=is_cut)
        return joined(first, last)

    @property
    def is_parsed(self) -> bool:
        """Whether more than its content may be told of it."""
        return self._parser is not None

    @property
    def is_inside_character(self) -> bool:
        """Whether the last token ended within a character."""
        return self._detokenizer.is_inside_character

    @property
    def is_reasoning(self) -> bool:
        """Whether the model is thinking now."""
        return self._parser is not None and self._parser.is_reasoning

    @property
    def written(self) -> str:
        """The text as the model wrote it, tags included, up to where a stop string cut the content."""
        return "".join(self._written)[: self._num_written]

    @property
    def num_held(self) -> int:
        """How many characters of content are held back, as they may begin a stop string or a tag."""
        return len(self._held) + (len(self._parser.copy().finish().content) if self._parser else 0)

    def push(self, token: int) -> tuple[Parsed, bool]:
        """Take a token; return what it brings, and whether a stop string ended the answer."""
        text = self._detokenizer.push(token)
        self.num_chars += len(text)
        if self._parser is None:
            return self._read(Parsed(text))
        self.num_reasoning_tokens += self._parser.is_reasoning
        return self._read(self._parse(self._parser, text))

    def replayed(self, tokens: Iterable[int]) -> Parsed:
        """Return a whole answer's tokens, read up to their end."""
        return reduce(joined, [*(self.push(token)[0] for token in tokens), self.flush()[0]], Parsed())

    def flush(self, *, is_cut: bool = False) -> tuple[Parsed, bool]:
        """Return what is left at the answer's end, and whether a stop string ended it there.

        A call whose arguments are open is completed, unless the answer `is_cut` by its limit of tokens.
        """
        text = self._detokenizer.flush()
        if self._parser is None:
            last, is_stopped = self._read(Parsed(text))
            return joined(last, Parsed("" if is_stopped else self._stops.flush())), is_stopped
        first, is_stopped = self._read(self._parse(self._parser, text))
        if is_stopped:
            return first, True
        last, is_stopped = self._read(self._parser.finish(is_cut=is_cut))
        return joined(joined(first, last), Parsed("" if is_stopped else self._stops.flush())), is_stopped

    def _parse(self, parser: OutputParser, text: str) -> Parsed:
        if text:
            self._written.append(text)
        return parser.push(text)

    def _read(self, parsed: Parsed) -> tuple[Parsed, bool]:
        if parsed.tool_calls:
            self.num_calls = parsed.tool_calls[-1].index + 1
        if not self._has_stops:
            return parsed, False
        content, is_stopped = self._stops.push(parsed.content)
        if parsed.tool_calls and not is_stopped:  # no stop string begins before a call and ends after it
            content += self._stops.flush()
        self._held = (self._held + parsed.content)[len(content) :]
        if is_stopped:  # what the parser itself held back stands after it
            written = "".join(self._written)
            place = written.rfind(self._held)
            self._num_written = place if place >= 0 else len(written) - len(self._held)
        return replace(parsed, content=content), is_stopped
