"""Hunyuan: a list of objects between tags, answers in tags."""

from support.dialect_texts import Case
from support.dialect_texts.families import listed, thought

CASES = [
    *listed("<tool_calls>", "</tool_calls>"),
    *thought("<think>", "</think>"),
    Case("an answer in tags", "<think>\nhm\n</think>\n<answer>\nyes\n</answer>", "yes", "hm"),
]
