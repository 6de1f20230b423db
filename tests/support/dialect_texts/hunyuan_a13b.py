"""Hunyuan: a list of objects between tags, answers in tags."""

from support.dialect_texts import Case
from support.dialect_texts.families import listed, thought

CASES = [
    *listed("<tool_calls>", "</tool_calls>"),
    *thought("<think>", "</think>"),
    Case("tags that are spoken of", "<answer>Say <answer>x</answer>!</answer>", "Say <answer>x</answer>!"),
    Case("tags in the midst of text", "So: <answer>yes</answer>", "So: <answer>yes</answer>"),
    Case("an answer in tags", "<think>\nhm\n</think>\n<answer>\nyes\n</answer>", "yes", "hm"),
]
