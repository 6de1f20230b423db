"""Apriel: reasoning between sentences, then a list of objects between tags."""

from support.dialect_texts import Case
from support.dialect_texts.families import listed, thought

BEGIN, END = "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"
CASES = [
    *listed("<tool_calls>", "</tool_calls>"),
    *thought(BEGIN, END),
    Case("an end of the answer", f"{BEGIN}\nhm\n{END}\nyes\n[END FINAL RESPONSE]", "yes", "hm"),
    Case(
        "a call that ends reasoning",
        'hm\n<tool_calls>[{"name": "now", "arguments": {}}]</tool_calls>',
        reasoning="hm",
        calls=[("now", {})],
        is_reasoning=True,
    ),
]
