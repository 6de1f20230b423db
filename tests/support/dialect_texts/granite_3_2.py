"""Granite 3.2: reasoning between sentences."""

from support.dialect_texts.families import listed, thought

CASES = [*listed("<|tool_call|>"), *thought("Here is my thought process:", "Here is my response:")]
