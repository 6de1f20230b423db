"""MiniMax M1: an object on each line between tags."""

from support.dialect_texts import Case
from support.dialect_texts.families import thought

NOW = '{"name": "now", "arguments": {}}'
CASES = [
    *thought("<think>", "</think>"),
    Case("one call", f"<tool_calls>\n{NOW}\n</tool_calls>", calls=[("now", {})]),
    Case("two calls", f"<tool_calls>\n{NOW}\n{NOW}\n</tool_calls>", calls=[("now", {}), ("now", {})]),
    Case("text around", f"a\n<tool_calls>\n{NOW}\n</tool_calls>\nb", "a\n\n\nb", calls=[("now", {})]),
    Case(
        "nested values",
        '<tool_calls>\n{"name": "write_note", "arguments": {"text": "}", "options": {"a": {"b": []}}}}\n</tool_calls>',
        calls=[("write_note", {"text": "}", "options": {"a": {"b": []}}})],
    ),
    Case("cut", '<tool_calls>\n{"name": "now", "arguments": {', calls=[("now", "{")]),
    Case("no call", "<tool_calls>\n{}\n</tool_calls>", "{}"),
    Case("a list", f"<tool_calls>[{NOW}]</tool_calls>", calls=[("now", {})]),
    Case(
        "without tools", f"<tool_calls>\n{NOW}\n</tool_calls>", f"<tool_calls>\n{NOW}\n</tool_calls>", has_tools=False
    ),
]
