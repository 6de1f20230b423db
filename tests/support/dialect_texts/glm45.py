"""GLM: a name, then an element for each key and value."""

from support.dialect_texts import Case

WEATHER = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
CASES = [
    Case("no arguments", "<tool_call>now\n</tool_call>", calls=[("now", {})]),
    Case("no newline", "<tool_call>now</tool_call>", calls=[("now", {})]),
    Case("one argument", f"{WEATHER}</tool_call>", calls=[("get_weather", {"city": "Oslo"})]),
    Case(
        "types, two calls",
        f"{WEATHER}<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>metric</arg_key>\n"
        "<arg_value>true</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        calls=[("get_weather", {"city": "Oslo", "days": 3, "metric": True}), ("now", {})],
    ),
    Case(
        "on one line",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>",
        calls=[("get_weather", {"city": "Oslo"})],
    ),
    Case(
        "text with everything in it",
        "<tool_call>write_note\n<arg_key>text</arg_key>\n"
        '<arg_value>\na "b" </tool_call> <x>\n</arg_value>\n</tool_call>',
        calls=[("write_note", {"text": '\na "b" </tool_call> <x>\n'})],
    ),
    Case(
        "lists and objects",
        "<tool_call>write_note\n<arg_key>text</arg_key>\n<arg_value>1</arg_value>\n<arg_key>tags</arg_key>\n"
        '<arg_value>["a"]</arg_value>\n<arg_key>options</arg_key>\n<arg_value>{"a": {}}</arg_value>\n</tool_call>',
        calls=[("write_note", {"text": "1", "tags": ["a"], "options": {"a": {}}})],
    ),
    Case(
        "reasoning",
        f"<think>hm</think>\n{WEATHER}</tool_call>",
        reasoning="hm",
        calls=[("get_weather", {"city": "Oslo"})],
    ),
    Case("text around", f"a\n{WEATHER}</tool_call>\nb", "a\n\nb", calls=[("get_weather", {"city": "Oslo"})]),
    Case("cut in a value", WEATHER.rpartition("lo")[0], calls=[("get_weather", '{"city": "Os')]),
    Case("cut in a key", WEATHER + "<arg_key>da", calls=[("get_weather", '{"city": "Oslo"')]),
    Case("cut in the name", "<tool_call>get_", "<tool_call>get_"),
    Case("a tag that is spoken of", "Use <tool_call> tags\n now", "Use <tool_call> tags\n now"),
    Case("without tools", f"{WEATHER}</tool_call>", f"{WEATHER}</tool_call>", has_tools=False),
]
