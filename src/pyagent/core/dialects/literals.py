"""Reads a literal of JSON, Python or Gemma's likeness of JSON as it comes, and gives it out as JSON text.

What comes out is JSON, however wrong the literal is: a comma, colon, quote or bracket too few is written, one too many
left out. What is no literal (a name, a call, an expression) becomes a string: nothing is run. Right JSON passes through
as it was written. Nesting is a list, not recursion.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyagent.core.dialects.bare_words import BareWord
from pyagent.core.dialects.json_text import is_constant, string, string_part, word_as_json
from pyagent.core.dialects.json_writer import JsonWriter
from pyagent.core.dialects.quoted_strings import QuotedString
from pyagent.core.dialects.source import Source

_PREFIXES = frozenset({"r", "b", "f", "u", "rb", "br", "rf", "fr"})
"""Of Python's strings."""
_OPENING, _CLOSING = "([{", ")]}"
_WORD_ENDS, _STRING_ENDS = ",)]}\n", ",)]}:"
_MAX_KEPT_CHARS = 64


@dataclass(frozen=True, slots=True)
class Syntax:
    """What a kind of literals looks like.

    With `quote`, strings stand between two of it, and have no escapes. `comments` have their beginnings and ends.
    """

    comments: tuple[tuple[str, str], ...] = ()
    quote: str = ""
    is_python: bool = False
    keeps_space: bool = False

    @property
    def comment_begins(self) -> tuple[str, ...]:
        """What begins comments."""
        return tuple(begin for begin, _ in self.comments)


JSON = Syntax(comments=(("//", "\n"), ("/*", "*/")), keeps_space=True)
PYTHON = Syntax(comments=(("#", "\n"),), is_python=True)


@dataclass(slots=True)
class LiteralValue:
    """A value under way. Outside of strings each of `stops`, tags that end the call, ends a broken value.

    Braces are a set's where no colon follows their first element, but for those outermost of `is_arguments`.
    `next_key` is a name before an equals sign where a comma is missing: the value ended there.
    """

    syntax: Syntax = PYTHON
    stops: tuple[str, ...] = ()
    is_arguments: bool = False
    is_done: bool = False
    is_begun: bool = False
    is_object: bool = False
    next_key: str = ""
    writer: JsonWriter = field(init=False)
    _word: BareWord | None = None
    _string: QuotedString | None = None
    _after_string: str | None = None
    """What stands after a string's closing quotes, while the string may still go on."""
    _comment_end: str = ""

    def __post_init__(self) -> None:
        self.writer = JsonWriter(self.is_arguments, self.syntax.keeps_space)

    def read(self, source: Source) -> str:
        """Read what has come of the value, as JSON text."""
        if not self.is_begun and source.num_left:
            self.is_begun, self.is_object = True, source.first == "{"
        pieces: list[str] = []
        while not self.is_done and source.num_left:
            piece = self._read_part(source)
            if piece is None:
                break
            pieces.append(piece)
        return "".join(pieces)

    def end(self, *, is_cut: bool = False) -> str:
        """Return what the end of the answer leaves: what makes the value whole, but of one that `is_cut` what is known.

        A word of no type yet is given as the beginning of a string.
        """
        if not is_cut:
            return self._complete()
        if self._word and self._after_string is None:
            return self.writer.begin() + self.writer.decided("{") + f'"{string_part(self._word.text)}'
        return self.writer.decided("{")

    def _read_part(self, source: Source) -> str | None:
        if self._comment_end:
            return self._read_comment(source)
        if self._string and self._after_string is None:
            return self._read_string(source, self._string)
        stop = source.any_of(self.stops)
        if stop != "":
            return None if stop is None else self._complete()
        if self._word:
            return self._read_word(source, self._word)
        if self._string:
            return self._read_after_string(source, self._string)
        return self._read_outside(source)

    def _end_value(self) -> str:
        self.writer.end()
        self.is_done = self.writer.is_done
        return ""

    def _complete(self) -> str:
        """Return what makes the value whole, and end it."""
        if self.is_done:
            return ""
        text = self._end_word() if self._word else self._end_string() if self._string else ""
        self.is_done = True
        return text + self.writer.complete()

    # -- strings ------------------------------------------------------------------------------------------------------

    def _read_string(self, source: Source, quoted: QuotedString) -> str | None:
        piece = quoted.read(source)
        if quoted.is_closed:
            return self._close_quotes()
        return self.writer.shown(piece) if piece else piece

    def _begin_string(self, source: Source, quotes: str, *, is_raw: bool = False) -> None:
        source.take(len(quotes))
        has_escapes = not is_raw and not self.syntax.quote
        self._string, self._after_string = QuotedString(quotes, has_escapes, joins_lines=self.syntax.is_python), None

    def _close_quotes(self) -> str:
        """End the string, unless what follows may still say that it goes on."""
        is_alone = self.writer.is_outermost or self.writer.expects_key
        if self.syntax.quote or (is_alone and not self.syntax.is_python):
            return self._end_string()
        self._after_string = ""
        return ""

    def _end_string(self, more: str = "") -> str:
        after, self._string, self._after_string = self._after_string, None, None
        text = self.writer.shown(f'{string_part(more)}"') + self._end_value()
        self.writer.space(after or "")
        return text

    def _read_after_string(self, source: Source, quoted: QuotedString) -> str | None:
        mark, comment = source.first, source.any_of(self.syntax.comment_begins)
        if comment is None:
            return None
        if mark.isspace() or (self.syntax.is_python and mark == "+"):
            space = source.take_space() or source.take(1)
            self._after_string = f"{self._after_string or ''}{space}"[:_MAX_KEPT_CHARS]
            return ""
        if comment or mark in _STRING_ENDS:
            return self._end_string()
        return self._go_on_in_python(source) if self.syntax.is_python else self._go_on_in_json(source, quoted)

    def _go_on_in_python(self, source: Source) -> str | None:
        """Join strings that stand beside one another; what else follows a string is an expression, kept as text."""
        quote = self._quote_at(source, source.first)
        if quote is None:
            return None
        if quote and (self._after_string or "").strip() in {"", "+"}:
            self._begin_string(source, quote)
            return ""
        self._word = BareWord()
        return ""

    def _go_on_in_json(self, source: Source, quoted: QuotedString) -> str:
        """Take quotes in the midst of a line's words for the string's own; else a comma is missing."""
        after = self._after_string or ""
        if source.first in "\"'{[" or "\n" in after:
            return self._end_string()
        self._after_string, quoted.is_closed = None, False
        return self.writer.shown(string_part(quoted.quotes + after))

    # -- outside of strings -------------------------------------------------------------------------------------------

    def _read_outside(self, source: Source) -> str | None:
        mark = source.first
        quote, comment = self._quote_at(source, mark), source.any_of(self.syntax.comment_begins)
        if quote is None or comment is None:
            return None
        if comment:
            source.take(len(comment))
            self._comment_end = dict(self.syntax.comments)[comment]
            return ""
        if quote:
            self._begin_string(source, quote)
            return self.writer.begin() + self.writer.shown('"')
        return self._read_mark(source, mark)

    def _read_comment(self, source: Source) -> str | None:
        end = source.text.find(self._comment_end, source.at)
        if end < 0:
            kept = 0 if source.is_last else len(self._comment_end) - 1
            return "" if source.take(max(0, source.num_left - kept)) else None
        source.take(end + len(self._comment_end) - source.at)
        self._comment_end = ""
        return ""

    def _quote_at(self, source: Source, mark: str) -> str | None:
        """Return the quotes that begin a string here; empty for none, None while more text must tell."""
        if self.syntax.quote:
            return source.any_of((self.syntax.quote,))
        if mark not in "\"'":
            return ""
        found = source.any_of((mark * 3,))
        return mark if found == "" else found

    def _read_mark(self, source: Source, mark: str) -> str:
        if mark in _CLOSING:
            return self._close(source, mark)
        if mark == "," and self.writer.is_outermost:
            return self._complete()
        if mark.isspace():
            self.writer.space(source.take_space())
        elif mark in _OPENING:
            return self.writer.open(source.take(1))
        elif mark == "," and source.take(1):
            return self.writer.comma()
        elif (mark == ":" or (mark == "=" and self.writer.expected == "colon")) and source.take(1):
            return self.writer.colon()
        else:
            self._word = BareWord()
        return ""

    def _close(self, source: Source, mark: str) -> str:
        """Close a bracket; one too many ends the value."""
        is_of_call = self.syntax.is_python and mark == ")" and not self.writer.has_open(mark)
        if self.writer.is_outermost or is_of_call:
            return self._complete()
        source.take(1)
        text = self.writer.close(mark)
        self.is_done = self.writer.is_done
        return text

    # -- words --------------------------------------------------------------------------------------------------------

    def _read_word(self, source: Source, word: BareWord) -> str | None:
        mark = source.first
        if word.is_nested:
            word.take(source)
            return ""
        if mark in _WORD_ENDS or (mark in ":=" and self.writer.expects_key):
            return self._end_word()
        if mark in ":=" and (name := word.last_name(is_tail=self._after_string is not None)):
            return self._end_before(source, word, name)
        if mark in "\"'" and not self.syntax.quote and self._after_string is None and word.is_short:
            if word.text.lower() in _PREFIXES:
                return self._read_prefixed(source, word)
            if is_constant(word.text.strip()):  # its comma is missing
                return self._end_word()
        comment = source.any_of(self.syntax.comment_begins) if word.ends_with_space else ""
        if comment == "":
            word.take(source)
        return comment if not comment else self._end_word()

    def _read_prefixed(self, source: Source, word: BareWord) -> str | None:
        """Begin a string of Python that has a prefix."""
        quote = self._quote_at(source, source.first)
        if quote is None:
            return None
        self._word = None
        self._begin_string(source, quote, is_raw="r" in word.text.lower())
        return self.writer.begin() + self.writer.shown('"')

    def _end_before(self, source: Source, word: BareWord, name: str) -> str | None:
        """End a value whose comma is missing before a name, which is the next key."""
        is_keyword = source.first == "=" and self.syntax.is_python and self.writer.is_outermost
        if is_keyword and source.num_left < 2 and not source.is_last:
            return None
        is_compared = source.text[source.at + 1 : source.at + 2] == "="
        if (is_keyword and not is_compared) or (source.first == ":" and self.writer.is_in_object):
            word.drop(name)
            text = self._end_word()
            if not is_keyword:
                return text + self.writer.begin() + string(name) + self._end_value()
            self.next_key = name
            source.take(1)
            return text
        word.take(source)
        return ""

    def _end_word(self) -> str:
        written, self._word = self._word.text if self._word else "", None
        text = written.strip()
        if self._after_string is not None:
            quotes = self._string.quotes if self._string else ""
            return self._end_string(quotes + self._after_string + text if text else "")
        before = self.writer.begin()
        value = string(text) if self.writer.expected == "key" else word_as_json(text)
        value = before + self.writer.shown(value) + self._end_value()
        self.writer.space(written[len(written.rstrip()) :])
        return value
