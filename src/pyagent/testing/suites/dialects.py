"""What every dialect must do: its parser reads any text in any split, and its grammar compiles.

    class TestAtCall(DialectConformance):
        answers = ('@think hm @answer Yes. @call look_up {"city": "Rome"}@end',)

        def make(self):
            return ATCALL

An answer calls the function `look_up` with a `city`, and perhaps `days`, as a model of the dialect writes it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from pyagent.core.dialects.dialect import Dialect, OutputParser
from pyagent.core.dialects.output import Parsed
from pyagent.core.errors import RequestError
from pyagent.core.grammars import GrammarSource
from pyagent.core.messages import FunctionDefinition, JsonObject, Tool
from pyagent.infrastructure.engine.grammar.guidance import GUIDANCE
from pyagent.testing.suites.checks import check_host_takes
from pyagent.testing.suites.vocabulary import ByteVocabulary, walk

_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
LOOK_UP = Tool(FunctionDefinition("look_up", "Looks the weather up.", _PARAMETERS))
_NUM_SPLITS = 12
_NUM_SCRAMBLED = 40
_LONG_SECONDS = 10.0


@dataclass
class _Heard:
    """What a parser gave out, joined."""

    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list[list[str]])

    def hear(self, parsed: Parsed) -> None:
        self.content += parsed.content
        self.reasoning += parsed.reasoning
        for delta in parsed.tool_calls:
            if delta.index == len(self.calls):
                assert delta.id, "a call begins without an id"
                assert delta.name, "a call begins without its name"
                self.calls.append([delta.name, ""])
            assert delta.index == len(self.calls) - 1, "a piece of a call comes out of order"
            self.calls[-1][1] += delta.arguments


class DialectConformance:
    """Derive from it, and define `make`; `answers` are texts of answers with a call, as its models write them."""

    answers: ClassVar[Sequence[str]] = ()

    def make(self) -> Dialect:
        """Return the dialect."""
        raise NotImplementedError

    def test_host_takes_the_dialect(self) -> None:
        """It has all members; a chat template that shows nothing of it is not its own."""
        dialect = self.make()
        check_host_takes("dialects", [dialect])
        assert not dialect.matches("{{ messages }}"), "it takes any chat template for its own"
        assert self.answers, "`answers` is empty: nothing would be tested"

    def test_calls_are_read(self) -> None:
        """Each answer has a call of `look_up`, whose arguments follow its schema, and no tag is left in the content."""
        for answer in self.answers:
            heard = self._heard([answer])
            assert heard.calls, f"no call is read in {answer!r}"
            for name, text in heard.calls:
                assert name == "look_up", f"it reads a call of {name!r}"
                arguments = _json(text) or {}
                assert set(arguments) <= {"city", "days"}, f"the arguments are {text}"
                assert isinstance(arguments.get("city"), str), f"the arguments are {text}"
            assert "look_up" not in heard.content, f"what is a call stands in the content too: {heard.content!r}"

    def test_any_split_reads_the_same(self) -> None:
        """Letter by letter, or in pieces of any length, an answer has the same content, reasoning and calls."""
        chance = random.Random(7)  # noqa: S311 - no secret
        for answer in self.answers:
            whole = self._heard([answer])
            assert self._heard(answer) == whole, f"letter by letter, {answer!r} reads differently"
            for _ in range(_NUM_SPLITS):
                assert self._heard(_split(answer, chance)) == whole, f"in pieces, {answer!r} reads differently"

    def test_copy_goes_on_by_itself(self) -> None:
        """A copied parser and the one it was copied from read on, and neither hears the other."""
        for answer in self.answers:
            for place in range(0, len(answer), max(1, len(answer) // 8)):
                parser, heard = self._parser(), _Heard()
                heard.hear(parser.push(answer[:place]))
                copy = parser.copy()
                copy.push("@@ something else <<")
                copy.finish()
                heard.hear(parser.push(answer[place:]))
                heard.hear(parser.finish())
                assert heard == self._heard([answer]), f"a copy after {place} letters changes what {answer!r} is"

    def test_answers_may_end_anywhere(self) -> None:
        """An answer that ends early leaves the arguments of each call a JSON object; one that is cut, their start."""
        for answer in self.answers:
            for length in range(len(answer)):
                for name, text in self._heard([answer[:length]]).calls:
                    assert _json(text) is not None, f"after {answer[:length]!r} the arguments of {name} are {text!r}"
                self._heard([answer[:length]], is_cut=True)

    def test_any_text_is_read(self) -> None:
        """Whatever a model writes is read without a fault: its own tags out of order, and text that is none."""
        chance = random.Random(11)  # noqa: S311 - no secret
        for answer in self.answers:
            for _ in range(_NUM_SCRAMBLED):
                pieces = [*_split(answer, chance), *_split(answer, chance), "\x00", "\ud800", "{" * 40]
                chance.shuffle(pieces)
                self._heard(pieces)

    def test_text_without_tags_is_content(self) -> None:
        """Plain text comes out as it went in, but for white space at its ends."""
        text = "It is 20 degrees in Rome, and  it rains.\n\nTake {care}, [you] & <me>."
        assert self._heard(text).content.strip() == text, "plain text is changed"

    def test_without_tools_nothing_is_called(self) -> None:
        """A request without tools has no calls, whatever the model writes."""
        for answer in self.answers:
            heard = _hear(self.make().parser([]), [answer])
            assert not heard.calls, f"without tools it reads a call in {answer!r}"

    def test_long_text_takes_linear_time(self) -> None:
        """Forty thousand letters, one by one, with tags that do not end, are read within ten seconds."""
        for answer in self.answers:
            started = time.perf_counter()
            self._heard((answer[: len(answer) * 3 // 4] + "x ") * (20_000 // len(answer)))
            self._heard(answer[: len(answer) * 3 // 4] + "y" * 20_000)
            assert time.perf_counter() - started < _LONG_SECONDS, "a long text takes more than linear time"

    def test_grammar_compiles(self) -> None:
        """Its grammars, with a call required or not and one or several, are Lark that llguidance takes."""
        backend, dialect = GUIDANCE.open(ByteVocabulary()), self.make()
        for is_required in (True, False):
            for is_parallel in (True, False):
                text = dialect.grammar([LOOK_UP], is_required=is_required, is_parallel=is_parallel)
                try:
                    backend.compile(GrammarSource("lark", text))
                except RequestError as error:
                    raise AssertionError(f"its grammar does not compile: {error}") from error

    def test_grammar_lets_a_call_through_that_is_read(self) -> None:
        """What its grammar writes when a call is required, whatever it chooses, its parser reads as such a call."""
        backend = GUIDANCE.open(ByteVocabulary())
        text = self.make().grammar([LOOK_UP], is_required=True, is_parallel=False)
        endings = [answer[place:] for answer in self.answers for place in range(1, len(answer))]
        for seed in range(5):
            matcher = backend.compile(GrammarSource("lark", text))
            chance = random.Random(seed)  # noqa: S311 - no secret
            written = walk(backend, matcher, chance, endings).decode("utf-8", "replace")
            heard = _hear(self.make().parser([LOOK_UP], is_held=True), [written])
            assert [name for name, _ in heard.calls] == ["look_up"], f"its grammar writes {written!r}: no call is read"
            arguments = _json(heard.calls[0][1]) or {}
            assert isinstance(arguments.get("city"), str), f"the arguments of {written!r} do not fit"

    def _parser(self) -> OutputParser:
        return self.make().parser([LOOK_UP])

    def _heard(self, pieces: Iterable[str], *, is_cut: bool = False) -> _Heard:
        return _hear(self._parser(), pieces, is_cut=is_cut)


def _hear(parser: OutputParser, pieces: Iterable[str], *, is_cut: bool = False) -> _Heard:
    heard = _Heard()
    for piece in pieces:
        heard.hear(parser.push(piece))
    heard.hear(parser.finish(is_cut=is_cut))
    return heard


def _json(text: str) -> JsonObject | None:
    """Return a JSON object; None for what is none."""
    try:
        return msgspec.json.decode(text, type=JsonObject)
    except msgspec.DecodeError:
        return None


def _split(text: str, chance: random.Random) -> Iterator[str]:
    """Yield a text in pieces of one to eight letters."""
    start = 0
    while start < len(text):
        end = start + chance.randint(1, 8)
        yield text[start:end]
        start = end
