"""Llama 4: bare JSON, perhaps between tags."""

from support.dialect_texts import Case
from support.dialect_texts.llama3_json import CASES as LLAMA3

CASES = [
    *(case for case in LLAMA3 if case.says != "after a tag"),
    Case("between tags", '<|python_start|>{"name": "now", "parameters": {}}<|python_end|>', calls=[("now", {})]),
]
