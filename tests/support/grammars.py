"""Grammars over the tiny model's vocabulary: compiled, and what they allow next."""

from __future__ import annotations

from support.tiny_model import vocabulary

from pyagent.core.messages import JsonObject, JsonSchemaFormat, ResponseFormat
from pyagent.infrastructure.engine.grammar import Grammar, GrammarCompiler

_NUM_TOKENS = len(vocabulary()[0])


def schema_format(schema: JsonObject) -> ResponseFormat:
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=schema))


def compiled(compiler: GrammarCompiler, schema: JsonObject) -> Grammar:
    return compiler.begin(schema_format(schema)).result()


def allowed(grammar: Grammar) -> list[int]:
    """The tokens that may come next."""
    mask = grammar.mask()
    return [token for token in range(_NUM_TOKENS) if mask[token // 8] >> token % 8 & 1]
