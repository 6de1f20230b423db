"""What every grammar backend must do, over a vocabulary of single bytes.

    class TestMine(GrammarBackendConformance):
        def make(self):
            return MyBackendFactory()

A kind of grammar that the backend refuses by a `RequestError` is not tested: the next backend is asked for it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyagent.core.emulation.schemas import fault_of
from pyagent.core.errors import RequestError
from pyagent.core.grammars import (
    GrammarBackend,
    GrammarBackendFactory,
    GrammarMatcher,
    GrammarSource,
    mask_bytes,
)
from pyagent.core.messages import JsonObject
from pyagent.testing.suites.checks import check_host_takes
from pyagent.testing.suites.vocabulary import END, ByteVocabulary, allowed, walk

CHOICES = ("yes", "yesterday", "no", "né")
REGEX = r"[a-c]{2,4}-[0-9]+"
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
_SOURCES = (
    GrammarSource("choice", json.dumps(CHOICES, ensure_ascii=False)),
    GrammarSource("regex", REGEX),
    GrammarSource("json_schema", json.dumps(SCHEMA)),
)
_NUM_WALKS = 6


class GrammarBackendConformance:
    """Derive from it, and define `make`."""

    def make(self) -> GrammarBackendFactory:
        """Return the factory."""
        raise NotImplementedError

    def test_host_takes_the_backend(self) -> None:
        """It has a name, and says in a sentence why it cannot be used, or None; here it can, and enforces something."""
        factory = self.make()
        check_host_takes("grammar_backends", [factory])
        assert factory.unavailable_reason() is None, factory.unavailable_reason()
        assert self._matchers(self._open()), "it refuses each kind of grammar of the suite"

    def test_what_it_lets_through_matches(self) -> None:
        """Whatever way is taken through its masks ends with a text that the grammar has."""
        backend = self._open()
        for source, compile_ in self._matchers(backend):
            for seed in range(_NUM_WALKS):
                text = walk(backend, compile_(), random.Random(seed)).decode("utf-8")  # noqa: S311 - no secret
                assert _matches(source, text), f"it lets {text!r} through for {source.text}"

    def test_every_right_text_is_let_through(self) -> None:
        """What the grammar has is allowed token by token, and may end."""
        backend = self._open()
        for source, compile_ in self._matchers(backend):
            for text in _TEXTS[source.kind]:
                matcher = compile_()
                for byte in text.encode():
                    assert byte in allowed(backend, matcher), f"{text!r} is not let through at {chr(byte)!r}"
                    matcher.accept(byte)
                assert matcher.is_finished or END in allowed(backend, matcher), f"{text!r} may not end"

    def test_token_that_is_not_allowed_is_refused(self) -> None:
        """`accept` raises for a token outside of the mask, and the mask is right of all of them."""
        backend = self._open()
        for source, compile_ in self._matchers(backend):
            matcher = compile_()
            may = allowed(backend, matcher)
            for token in range(ByteVocabulary.size):
                assert _is_accepted(matcher.copy(), token) == (token in may), f"token {token} of {source.kind}"

    def test_end_finishes(self) -> None:
        """After an end token, or where nothing can follow, a matcher is finished; before, it is not."""
        backend = self._open()
        for source, compile_ in self._matchers(backend):
            matcher = compile_()
            assert not matcher.is_finished, f"a grammar of {source.kind} is finished before it begins"
            for byte in _TEXTS[source.kind][0].encode():
                matcher.accept(byte)
            if not matcher.is_finished:
                matcher.accept(END)
            assert matcher.is_finished, f"a grammar of {source.kind} is not finished by its end"

    def test_copies_do_not_move_each_other(self) -> None:
        """A copy stands where its matcher stood, and neither moves the other."""
        backend = self._open()
        for source, compile_ in self._matchers(backend):
            matcher, first = compile_(), _TEXTS[source.kind][0].encode()[0]
            before = allowed(backend, matcher)
            copy = matcher.copy()
            copy.accept(first)
            after = allowed(backend, copy)
            assert allowed(backend, matcher) == before, "a copy moves what it was copied from"
            matcher.accept(first)
            assert allowed(backend, matcher) == after, "a copy does not stand where its matcher stood"

    def test_rows_of_a_step_are_each_their_own(self) -> None:
        """Masks of several matchers are written to their rows, whatever stood there, and no further."""
        backend = self._open()
        made = [compile_() for _, compile_ in self._matchers(backend)]
        size = mask_bytes(ByteVocabulary.size)
        masks = bytearray(b"\xff" * size * (len(made) + 1))
        backend.fill_masks([(matcher, len(made) - 1 - row) for row, matcher in enumerate(made)], memoryview(masks))
        for row, matcher in enumerate(made):
            place = len(made) - 1 - row
            told = {token for token in range(ByteVocabulary.size) if masks[place * size + token // 8] >> token % 8 & 1}
            assert told == allowed(backend, matcher), f"row {place} is not its matcher's mask"
        assert masks[-size:] == b"\xff" * size, "it writes a row that no matcher has"

    def test_threads_compile_at_once(self) -> None:
        """Several threads compile at the same time, and get what each asked for."""
        backend = self._open()
        pairs = self._matchers(backend) * 4

        def compiled(pair: tuple[GrammarSource, Callable[[], GrammarMatcher]]) -> set[int]:
            return allowed(backend, backend.compile(pair[0]))

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(compiled, pairs))
        alone = [allowed(backend, compile_()) for _, compile_ in pairs]
        assert found == alone, "compiled at once, grammars mix"

    def test_broken_grammar_is_refused(self) -> None:
        """A regex that does not end and a schema of nothing are `RequestError`s, and the backend goes on."""
        backend = self._open()
        for source in (GrammarSource("regex", "(a"), GrammarSource("json_schema", '{"type": "nothing"}')):
            with pytest.raises(RequestError):
                backend.compile(source)
        assert self._matchers(backend), "after a broken grammar it compiles none"

    def _open(self) -> GrammarBackend:
        return self.make().open(ByteVocabulary())

    def _matchers(self, backend: GrammarBackend) -> list[tuple[GrammarSource, Callable[[], GrammarMatcher]]]:
        """Return what makes a matcher of each grammar of the suite that the backend takes."""
        made: list[tuple[GrammarSource, Callable[[], GrammarMatcher]]] = []
        for source in _SOURCES:
            try:
                matcher = backend.compile(source)
            except RequestError:
                continue
            made.append((source, matcher.copy))
        return made


_TEXTS: dict[str, tuple[str, ...]] = {
    "choice": CHOICES[::-1],
    "regex": ("ab-1", "cccc-2026"),
    "json_schema": ('{"city": "Rome", "days": 7}', '{"city": "Oslo", "days": 0}'),
}


def _is_accepted(matcher: GrammarMatcher, token: int) -> bool:
    try:
        matcher.accept(token)
    except Exception:  # noqa: BLE001 - whatever it raises ends one answer
        return False
    return True


def _matches(source: GrammarSource, text: str) -> bool:
    match source.kind:
        case "choice":
            return text in CHOICES
        case "regex":
            return re.fullmatch(REGEX, text) is not None
        case _:
            return fault_of(json.loads(text), SCHEMA, "answer") is None
