"""Command: a list of objects between tags, answers and thoughts in tags."""

from support.dialect_texts import Case
from support.dialect_texts.families import listed, thought

CASES = [
    *listed("<|START_ACTION|>", "<|END_ACTION|>", name="tool_name", arguments="parameters"),
    *thought("<|START_THINKING|>", "<|END_THINKING|>"),
    Case(
        "an id before the name",
        '<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "now", '
        '"parameters": {}}\n]<|END_ACTION|>',
        reasoning="I look.",
        calls=[("now", {})],
    ),
    Case("an answer in tags", "<|START_RESPONSE|>yes<|END_RESPONSE|>", "yes"),
    Case(
        "a call that ends reasoning",
        '<|START_THINKING|>hm<|START_ACTION|>[{"tool_name": "now", "parameters": {}}]<|END_ACTION|>',
        reasoning="hm",
        calls=[("now", {})],
    ),
]
