"""Seed OSS: an element for each parameter, tags of its own."""

from support.dialect_texts import Case
from support.dialect_texts.families import elements, thought

CASES = [
    *(
        case
        for case in elements(
            "<seed:tool_call>",
            "<function={}>",
            "<parameter={}>",
            "</parameter>",
            "</function>",
            "</seed:tool_call>",
            newline="",
        )
        if case.says not in {"reasoning", "text with everything in it"}
    ),
    *thought("<seed:think>", "</seed:think>"),
    Case(
        "text of several lines",
        "<seed:tool_call>\n<function=write_note>\n<parameter=text>a\n\n<b></parameter>\n</function>\n</seed:tool_call>",
        calls=[("write_note", {"text": "a\n\n<b>"})],
    ),
]
