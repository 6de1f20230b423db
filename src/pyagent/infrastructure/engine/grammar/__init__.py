"""Structured output: what an answer must match, compiled to masks of the tokens that may come next.

What was asked for is text already (`core/structured_output/sources.py`); `compiler.py` compiles and remembers it,
`guidance.py` is the built-in backend, and `grammar.py` is one answer's place in its grammar. Knows a tokenizer; no
model, no request of the loop.
"""

from __future__ import annotations

from pyagent.core.structured_output.errors import CANNOT_ENFORCE, GrammarError, told_briefly
from pyagent.infrastructure.engine.grammar.compiler import GrammarCompiler
from pyagent.infrastructure.engine.grammar.grammar import Grammar

__all__ = ["CANNOT_ENFORCE", "Grammar", "GrammarCompiler", "GrammarError", "told_briefly"]
