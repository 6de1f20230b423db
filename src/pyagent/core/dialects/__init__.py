"""Dialects: how model families write reasoning and tool calls, read as the text streams and enforced as a grammar.

A `Dialect` (dialect.py) is one description that serves three times: its parser splits an answer's text into content,
reasoning and tool calls; its grammar holds a model to its calls; its clues find it by the model's chat template
(registry.py). formats.py has the built-in ones. Hops of a piece of text: `OutputParser.push` -> a mode (text.py,
json_calls.py, ...) reads it from the `Source` -> the `Output` gathers content, reasoning and pieces of calls.

Pure: knows no tokenizer, no socket and no grammar library. Time is linear in the text, however it is split.
"""
