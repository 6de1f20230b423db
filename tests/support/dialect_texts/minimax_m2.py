"""MiniMax M2: invocations with an element for each parameter."""

from support.dialect_texts import Case
from support.dialect_texts.families import elements

CASES = [
    *(
        case
        for case in elements(
            "<minimax:tool_call>",
            '<invoke name="{}">',
            '<parameter name="{}">',
            "</parameter>",
            "</invoke>",
            "</minimax:tool_call>",
            newline="",
        )
        if case.says != "text with everything in it"
    ),
    Case(
        "two calls",
        '<minimax:tool_call>\n<invoke name="now">\n</invoke>\n<invoke name="get_weather">\n'
        '<parameter name="city">Oslo</parameter>\n</invoke>\n</minimax:tool_call>',
        calls=[("now", {}), ("get_weather", {"city": "Oslo"})],
    ),
]
