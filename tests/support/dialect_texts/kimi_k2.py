"""Kimi K2: an id that has the name, then JSON."""

from support.dialect_texts.named import headed

CASES = headed(
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>functions.{}:0<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)
