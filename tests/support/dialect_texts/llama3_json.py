"""Calls as bare JSON."""

from support.dialect_texts import Case
from support.dialect_texts.families import bare

CASES = [
    *bare("parameters"),
    Case("after a tag", '<|python_tag|>{"name": "now", "parameters": {}}<|eom_id|>', calls=[("now", {})]),
    Case(
        "parted by semicolons", '{"name": "now", "parameters": {}}; {"name": "now"}', calls=[("now", {}), ("now", {})]
    ),
    Case("a semicolon without a call", '{"name": "now"}; so', "; so", calls=[("now", {})]),
]
