"""DeepSeek V3.2: invocations whose parameters say whether they are strings."""

from support.dialect_texts import Case
from support.dialect_texts.families import elements

BEGIN, END = "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"
CASES = [
    *elements(
        BEGIN,
        '<｜DSML｜invoke name="{}">',
        '<｜DSML｜parameter name="{}">',
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",
        END,
        newline="",
        flags=True,
    ),
    Case(
        "two calls that end reasoning",
        f'hm\n\n{BEGIN}\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n<｜DSML｜invoke name="get_weather">\n'
        f'<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n</｜DSML｜invoke>\n{END}',
        reasoning="hm",
        calls=[("now", {}), ("get_weather", {"city": "Oslo"})],
        is_reasoning=True,
    ),
]
