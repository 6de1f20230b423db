"""FunctionGemma."""

from support.dialect_texts.gemma import gemma

CASES = gemma("<start_function_call>", "<end_function_call>", "<escape>")
