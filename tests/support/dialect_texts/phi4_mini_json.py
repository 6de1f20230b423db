"""Phi 4 mini: a list of objects between tags."""

from support.dialect_texts import Case
from support.dialect_texts.families import listed

CASES = [
    *listed("<|tool_call|>", "<|/tool_call|>"),
    Case("after a word", 'functools[{"name": "now", "arguments": {}}]', calls=[("now", {})]),
    Case("the word in text", "import functools\nfunctools is a module", "import functools\nfunctools is a module"),
]
