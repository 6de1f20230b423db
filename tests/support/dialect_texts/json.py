"""Calls as bare JSON."""

from support.dialect_texts.families import bare

CASES = bare("arguments")
