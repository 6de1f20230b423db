"""Gemma 4."""

from support.dialect_texts import Case
from support.dialect_texts.families import thought
from support.dialect_texts.gemma import gemma

CASES = [
    *gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    *thought("<|channel>thought\n", "<channel|>"),
    Case("no thoughts", "<|channel>thought\n<channel|>yes", "yes"),
]
