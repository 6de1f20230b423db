"""Llama 4: Python calls, perhaps between tags."""

from support.dialect_texts import Case
from support.dialect_texts.families import python_calls

CASES = [
    *python_calls("", ""),
    Case("between tags", "<|python_start|>[now()]<|python_end|>", calls=[("now", {})]),
]
