"""Granite 3: a list of objects after one tag."""

from support.dialect_texts import Case
from support.dialect_texts.families import listed, thought

CASES = [
    *listed("<|tool_call|>"),
    *thought("<think>", "</think>"),
    Case("an answer in tags", "<think>hm</think><response>yes</response>", "yes", "hm"),
]
