"""Qwen 3 Coder: an element for each parameter."""

from support.dialect_texts import Case
from support.dialect_texts.families import elements

CASES = [
    *elements("<tool_call>", "<function={}>", "<parameter={}>", "</parameter>", "</function>", "</tool_call>"),
    Case(
        "two calls",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n"
        "<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
        calls=[("now", {}), ("get_weather", {"city": "Oslo"})],
    ),
    Case(
        "without the outer tag",
        "Yes.\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
        "Yes.",
        calls=[("get_weather", {"city": "Oslo"})],
    ),
    Case(
        "values that are not closed",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n<parameter=days>\n3\n</function>\n</tool_call>",
        calls=[("get_weather", {"city": "Oslo", "days": 3})],
    ),
    Case(
        "a call that is not closed but by the outer tag",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</tool_call> so",
        "so",
        calls=[("get_weather", {"city": "Oslo"})],
    ),
    Case(
        "text between values",
        "<tool_call>\n<function=get_weather>\nhm\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
        "hm",
        calls=[("get_weather", {"city": "Oslo"})],
    ),
    Case(
        "lines between values",
        "<tool_call>\n<function=get_weather>\n a\n \nb\n<parameter=city>\nOslo\n</parameter>\n\n</function>\n"
        "</tool_call>",
        "a\n \nb",
        calls=[("get_weather", {"city": "Oslo"})],
    ),
    Case("no function", "<tool_call>\n{}\n</tool_call>", "<tool_call>\n{}\n</tool_call>"),
    Case("no name", "<tool_call>\n<function=>\n</tool_call>", "<tool_call>\n<function=>\n</tool_call>"),
    Case("a tag that is spoken of", "Use <function=x> or <tool_call> here.", "Use <function=x> or <tool_call> here."),
]
