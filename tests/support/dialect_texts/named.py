"""Headers with names, then JSON."""

from support.dialect_texts import Case


def headed(begin: str, head: str, tail: str, end: str) -> list[Case]:
    """Calls by their headers, each with its tags; `head` has `{}` for the name."""

    def call(name: str, arguments: str) -> str:
        return f"{head.format(name)}{arguments}{tail}"

    weather = call("get_weather", '{"city": "Oslo"}')
    return [
        Case("one call", f"{begin}{weather}{end}", calls=[("get_weather", {"city": "Oslo"})]),
        Case(
            "two calls",
            f"{begin}{weather}\n{call('now', '{}')}{end}",
            calls=[("get_weather", {"city": "Oslo"}), ("now", {})],
        ),
        Case("text before", f"So.\n{begin}{weather}{end}", "So.", calls=[("get_weather", {"city": "Oslo"})]),
        Case("text after", f"{begin}{weather}{end}so", "so", calls=[("get_weather", {"city": "Oslo"})]),
        Case("without the outer tags", f"{weather}", calls=[("get_weather", {"city": "Oslo"})]),
        Case(
            "tags in a string",
            begin + call("write_note", '{"text": "<｜tool ``` } \\\\ \\" <|tool_call_end|>"}') + end,
            calls=[("write_note", {"text": '<｜tool ``` } \\ " <|tool_call_end|>'})],
        ),
        Case("nested", begin + call("now", '{"a": {"b": [{}]}}') + end, calls=[("now", {"a": {"b": [{}]}})]),
        Case(
            "a call that ends reasoning",
            f"hm{begin}{weather}{end}",
            "",
            "hm",
            [("get_weather", {"city": "Oslo"})],
            True,
        ),
        Case("reasoning", f"<think>hm</think>{begin}{weather}{end}", "", "hm", [("get_weather", {"city": "Oslo"})]),
        Case("cut", f"{begin}{weather}".rpartition("lo")[0], calls=[("get_weather", '{"city": "Os')]),
        Case("cut in the header", f"a {head.format('x')[:-2]}", f"a {head.format('x')[:-2]}"),
        Case("not offered", f"{begin}{call('fly', '{}')}{end}", calls=[("fly", {})]),
        Case("only text", "``` < | function {", "``` < | function {"),
        Case("without tools", f"{begin}{weather}{end}", f"{begin}{weather}{end}", has_tools=False),
    ]
