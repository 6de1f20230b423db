"""Calls as bare JSON."""

from support.dialect_texts import Case
from support.dialect_texts.families import listed

CASES = [
    *listed("", arguments="arguments", bare=True),
    Case(
        "an object alone",
        '{"name": "get_weather", "arguments": {"city": "Oslo"}}',
        calls=[("get_weather", {"city": "Oslo"})],
    ),
    Case("an answer in JSON", '{"city": "Oslo", "name": "now"}', '{"city": "Oslo", "name": "now"}'),
    Case("a function that is not offered", '{"name": "fly", "arguments": {}}', '{"name": "fly", "arguments": {}}'),
    Case("in the midst of a line", 'so {"name": "now"}', 'so {"name": "now"}'),
    Case("on a line", 'so:\n{"name": "now"}\nand', "so:\nand", calls=[("now", {})]),
    Case("one on each line", '{"name": "now"}\n{"name": "now"}', calls=[("now", {}), ("now", {})]),
    Case("OpenAI's shape", '{"type": "function", "function": {"name": "now", "arguments": {}}}', calls=[("now", {})]),
    Case("code", "{\n  a\n}\n", "{\n  a\n}\n"),
    Case("reasoning first", '<think>hm</think>\n{"name": "now"}', reasoning="hm", calls=[("now", {})]),
]
