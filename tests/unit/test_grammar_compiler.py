"""Compiling grammars: in several threads, by the first backend that can, remembered for each tenant."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.tiny_model import vocabulary

from pyagent.core.grammars import GrammarBackend, GrammarMatcher, GrammarSource, Vocabulary
from pyagent.core.messages import ResponseFormat
from pyagent.infrastructure.engine.grammar import GrammarCompiler
from pyagent.infrastructure.engine.grammar.guidance import GuidanceBackend
from pyagent.infrastructure.engine.tokens import ModelTokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_model_path: Path) -> ModelTokenizer:
    return ModelTokenizer.load(tiny_model_path, vocab_size=len(vocabulary()[0]))


class Gated:
    """llguidance behind a gate: texts with `slow` in them wait there."""

    name = "gated"

    def __init__(self) -> None:
        self.gate, self.compiled = threading.Event(), list[str]()

    def unavailable_reason(self) -> None:
        return None

    def open(self, vocabulary: Vocabulary) -> GrammarBackend:
        self._inner = GuidanceBackend(vocabulary, 1)
        return self

    def compile(self, source: GrammarSource) -> GrammarMatcher:
        self.compiled.append(source.text)
        if "slow" in source.text:
            assert self.gate.wait(60)
        return self._inner.compile(source)

    def fill_masks(self, rows: Sequence[tuple[GrammarMatcher, int]], masks: memoryview) -> None:
        self._inner.fill_masks(rows, masks)


def choice(*texts: str) -> ResponseFormat:
    return ResponseFormat(type="choice", choice=list(texts))


def test_slow_grammar_delays_only_those_who_want_it(tokenizer: ModelTokenizer) -> None:
    """While one grammar compiles, another is compiled and given; equal ones of a tenant are compiled once."""
    backend = Gated()
    compiler = GrammarCompiler(tokenizer, factories=[backend])
    with ThreadPoolExecutor(3) as threads:
        slow = [threads.submit(compiler.compile, choice("slow"), "anna") for _ in range(2)]
        assert not compiler.compile(choice("quick"), "anna").is_finished
        assert not any(one.done() for one in slow)
        backend.gate.set()
        first, second = (one.result(60) for one in slow)
    first.accept(tokenizer.encode_text("s")[0])
    assert second.mask() != first.mask()
    assert sorted(backend.compiled) == ['["quick"]', '["slow"]']


def test_tenants_do_not_share_what_is_compiled(tokenizer: ModelTokenizer) -> None:
    """What one tenant has compiled is compiled again for another, so that no time tells of it."""
    backend = Gated()
    compiler = GrammarCompiler(tokenizer, factories=[backend])
    for tenant in ("anna", "bert", "anna"):
        compiler.compile(choice("a"), tenant)
    assert backend.compiled == ['["a"]'] * 2
