"""LFM2: Python calls between tags."""

from support.dialect_texts.families import python_calls, thought

CASES = [*python_calls("<|tool_call_start|>", "<|tool_call_end|>"), *thought("<think>", "</think>")]
