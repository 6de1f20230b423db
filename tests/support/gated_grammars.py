"""A grammar backend whose slow grammars compile when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pyagent.core.grammars import GrammarBackend, GrammarMatcher, GrammarSource, GrammarVocabulary
from pyagent.core.messages import ResponseFormat
from pyagent.infrastructure.engine.grammar.guidance import GuidanceBackend


class Gated:
    """llguidance behind a gate: texts with `slow` in them wait there."""

    name = "gated"

    def __init__(self) -> None:
        self.gate, self.compiled = threading.Event(), list[str]()

    def unavailable_reason(self) -> None:
        return None

    def open(self, vocabulary: GrammarVocabulary) -> GrammarBackend:
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
