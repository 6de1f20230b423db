"""Olmo 3: a Python call on each line between tags."""

from support.dialect_texts.families import python_calls

CASES = python_calls("<function_calls>", "</function_calls>", brackets="", separator="\n")
