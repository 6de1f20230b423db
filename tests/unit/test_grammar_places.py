"""Places in grammars: forks never move another; one that fails fails alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.grammars import allowed, compiled
from support.tiny_model import vocabulary

from pyagent.core.grammars import GrammarBackend, GrammarMatcher
from pyagent.core.messages import JsonObject
from pyagent.infrastructure.engine.grammar import Grammar, GrammarCompiler
from pyagent.infrastructure.engine.grammar.guidance import GuidanceBackend
from pyagent.infrastructure.engine.logits.vocabulary import ModelVocabulary
from pyagent.infrastructure.engine.step_masks import fill
from pyagent.infrastructure.engine.tokens import ModelTokenizer

NUM_TOKENS = len(vocabulary()[0])
SCHEMAS: list[JsonObject] = [
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": ["x", "xy", 1]}}, "required": ["b"]},
    {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^(ab|a|b)+$"}]}},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
]


MOVES = st.lists(st.tuples(st.sampled_from(["accept", "accept", "accept", "fork", "drop"]), st.integers(0, 10**6)))


@settings(max_examples=30, deadline=None)
@given(schema=st.sampled_from(SCHEMAS), moves=MOVES)
def test_places_are_those_of_their_own_tokens(
    compiler: GrammarCompiler, schema: JsonObject, moves: list[tuple[str, int]]
) -> None:
    """However accepted and forked, each place allows what a new grammar allows after its tokens."""
    places: list[tuple[Grammar, list[int]]] = [(compiled(compiler, schema), [])]
    for move, number in moves:
        grammar, tokens = places[number % len(places)]
        if move == "accept" and not grammar.is_finished:
            token = (found := allowed(grammar))[number % len(found)]
            grammar.accept(token)
            tokens.append(token)
        elif move == "fork" and len(places) < 4:
            places.append((grammar.fork(), tokens.copy()))
        elif move == "drop" and len(places) > 1:
            places.remove((grammar, tokens))
    for grammar, tokens in places:
        fresh = compiled(compiler, schema)
        for token in tokens:
            fresh.accept(token)
        assert grammar.is_finished == fresh.is_finished
        assert grammar.is_finished or grammar.mask() == fresh.mask()


def test_masks_on_many_threads_are_those_of_one(compiler: GrammarCompiler, tokenizer: ModelTokenizer) -> None:
    """With eight cores the masks of all rows are computed at once, and are equal to those computed one by one."""
    grammars = [compiled(compiler, schema) for schema in SCHEMAS * 5]
    for number, grammar in enumerate(grammars):
        grammar.accept((found := allowed(grammar))[number % len(found)])
    memory = bytearray(len(grammars) * grammars[0].row_bytes)
    rows = [(grammar.matcher, place) for place, grammar in enumerate(grammars)]
    GuidanceBackend(ModelVocabulary(tokenizer), 8).fill_masks(rows, memoryview(memory))
    assert bytes(memory) == b"".join(grammar.mask() for grammar in grammars)


class Failing:
    """A backend whose matchers fail from the second mask on, in the way of `error`."""

    def __init__(self, inner: GrammarBackend, failing: GrammarMatcher, error: BaseException) -> None:
        self._inner, self._failing, self._error = inner, failing, error

    def compile(self, source: object) -> GrammarMatcher:
        raise NotImplementedError

    def fill_masks(self, rows: Sequence[tuple[GrammarMatcher, int]], masks: memoryview) -> None:
        self._inner.fill_masks(rows, masks)
        for matcher, row in rows:
            if matcher is self._failing:
                masks[row * len(masks) // 3 :] = bytes(len(masks) - row * len(masks) // 3)
                raise self._error


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(3)])
def test_grammar_that_raises_fails_alone(compiler: GrammarCompiler, error: BaseException) -> None:
    """When one of a step's grammars raises, having written over the others' masks, those are right all the same."""
    grammars = [compiled(compiler, schema) for schema in SCHEMAS]
    want = [grammar.mask() for grammar in grammars]
    backend = Failing(grammars[0].backend, grammars[1].matcher, error)
    asked = [(Grammar(one.matcher, backend, "failing", one.row_bytes), place) for place, one in enumerate(grammars)]
    memory = bytearray(3 * len(want[0]))
    assert dict(fill(asked, memoryview(memory))) == {1: error}
    rows = [bytes(memory[place * len(want[0]) : (place + 1) * len(want[0])]) for place in range(3)]
    assert (rows[0], rows[2]) == (want[0], want[2])
