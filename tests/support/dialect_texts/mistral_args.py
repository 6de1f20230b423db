"""Mistral: a list of objects, or names with their arguments."""

from support.dialect_texts import Case
from support.dialect_texts.families import listed, thought

CASES = [
    *listed("[TOOL_CALLS]"),
    *thought("[THINK]", "[/THINK]"),
    Case(
        "a name and arguments",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}',
        calls=[("get_weather", {"city": "Oslo"})],
    ),
    Case(
        "two of them",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]now[ARGS]{}',
        calls=[("get_weather", {"city": "Oslo"}), ("now", {})],
    ),
    Case("with an id", "Yes.[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{}", "Yes.", calls=[("now", {})]),
    Case("without a tag for arguments", "[TOOL_CALLS]now{}", calls=[("now", {})]),
    Case(
        "tags and braces in a string",
        '[TOOL_CALLS]write_note[ARGS]{"text": "[TOOL_CALLS]x[ARGS]{} \\"}"}',
        calls=[("write_note", {"text": '[TOOL_CALLS]x[ARGS]{} "}'})],
    ),
    Case("a header cut", "[TOOL_CALLS]get_weather[ARG", "[TOOL_CALLS]get_weather[ARG"),
    Case("no header", "[TOOL_CALLS]two words {}", "[TOOL_CALLS]two words {}"),
    Case("arguments cut", '[TOOL_CALLS]now[ARGS]{"a": [1, {', calls=[("now", '{"a": [1, {')]),
    Case("a call that ends reasoning", "[THINK]hm[TOOL_CALLS]now[ARGS]{}", reasoning="hm", calls=[("now", {})]),
]
