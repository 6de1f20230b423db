"""Phi 4 mini: a list of objects between tags."""

from support.dialect_texts.families import listed

CASES = listed("<|tool_call|>", "<|/tool_call|>")
