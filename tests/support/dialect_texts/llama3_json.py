"""Calls as bare JSON."""

from support.dialect_texts import Case
from support.dialect_texts.families import listed

CASES = [
    *listed("", arguments="parameters", bare=True),
    Case(
        "an object alone",
        '{"name": "get_weather", "parameters": {"city": "Oslo"}}',
        calls=[("get_weather", {"city": "Oslo"})],
    ),
    Case("an answer in JSON", '{"city": "Oslo", "name": "now"}', '{"city": "Oslo", "name": "now"}'),
    Case("a function that is not offered", '{"name": "fly", "parameters": {}}', '{"name": "fly", "parameters": {}}'),
    Case("in the midst of a line", 'so {"name": "now"}', 'so {"name": "now"}'),
    Case("on a line", 'so:\n{"name": "now"}\nand', "so:\nand", calls=[("now", {})]),
    Case("one on each line", '{"name": "now"}\n{"name": "now"}', calls=[("now", {}), ("now", {})]),
    Case("OpenAI's shape", '{"type": "function", "function": {"name": "now", "parameters": {}}}', calls=[("now", {})]),
    Case("code", "{\n  a\n}\n", "{\n  a\n}\n"),
    Case("reasoning first", '<think>hm</think>\n{"name": "now"}', reasoning="hm", calls=[("now", {})]),
]

CASES += [
    Case("after a tag", '<|python_tag|>{"name": "now", "parameters": {}}<|eom_id|>', calls=[("now", {})]),
    Case(
        "parted by semicolons", '{"name": "now", "parameters": {}}; {"name": "now"}', calls=[("now", {}), ("now", {})]
    ),
    Case("a semicolon without a call", '{"name": "now"}; so', "; so", calls=[("now", {})]),
]
