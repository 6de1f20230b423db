"""Python calls in a list."""

from support.dialect_texts.families import python_calls

CASES = python_calls("", "")
