"""Granite 3: a list of objects after one tag."""

from support.dialect_texts import Case
from support.dialect_texts.families import listed, thought

CASES = [
    *listed("<|tool_call|>"),
    *thought("<think>", "</think>"),
    Case("an answer in tags", "<think>hm</think><response>yes</response>", "yes", "hm"),
    Case(
        "tags that are spoken of",
        "<response>\nWrite <response>a</response> for <response>.\n</response>\n",
        "Write <response>a</response> for <response>.",
    ),
    Case("tags in the midst of text", "An XML <response></response>", "An XML <response></response>"),
    Case("an end without a beginning", "yes</response>", "yes</response>"),
    Case(
        "a call after the answer",
        '<response>I look.</response> <|tool_call|>[{"name": "now", "arguments": {}}]',
        "I look.",
        calls=[("now", {})],
    ),
    Case("an answer that is not closed", "<response>yes", "yes"),
]
