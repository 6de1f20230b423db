"""Hermes and Qwen: JSON in `<tool_call>` tags, reasoning in `<think>` tags."""

from support.dialect_texts import Case

CASES = [
    Case(
        "a call alone",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>',
        calls=[("get_weather", {"city": "Oslo", "days": 3})],
    ),
    Case(
        "two calls after text",
        'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        content="Let me look.",
        calls=[("get_weather", {"city": "Oslo"}), ("now", {})],
    ),
    Case(
        "text after a call",
        'Before <tool_call>{"name": "now", "arguments": {}}</tool_call> after',
        content="Before  after",
        calls=[("now", {})],
    ),
    Case(
        "a call after reasoning that speaks of the tag",
        '<think>\nI could use <tool_call>.\n</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        reasoning="I could use <tool_call>.",
        calls=[("now", {})],
    ),
    Case(
        "tags, braces, quotes and bare newlines in an argument",
        '<tool_call>{"name": "write_note", "arguments": {"text": "a \\"b\\" </tool_call> }\n\tc {[", "tags": ["}"]}}'
        "</tool_call>",
        calls=[("write_note", {"text": 'a "b" </tool_call> }\n\tc {[', "tags": ["}"]})],
    ),
    Case(
        "nested objects, arguments before the name",
        '<tool_call>{"arguments": {"text": "x", "options": {"a": {"b": [1, {"c": null}]}}}, "name": "write_note"}'
        "</tool_call>",
        calls=[("write_note", {"text": "x", "options": {"a": {"b": [1, {"c": None}]}}})],
    ),
    Case(
        "arguments written as a string",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>',
        calls=[("get_weather", {"city": "Oslo"})],
    ),
    Case("no arguments", '<tool_call>{"name": "now"}</tool_call>', calls=[("now", {})]),
    Case("null for arguments", '<tool_call>{"name": "now", "arguments": null}</tool_call>', calls=[("now", {})]),
    Case(
        "OpenAI's shape",
        '<tool_call>{"type": "function", "function": {"name": "now", "arguments": {}}}</tool_call>',
        calls=[("now", {})],
    ),
    Case(
        "a list in the tags",
        '<tool_call>[{"name": "now", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "Rome"}}]'
        "</tool_call>",
        calls=[("now", {}), ("get_weather", {"city": "Rome"})],
    ),
    Case(
        "a function that is not offered is passed on",
        '<tool_call>{"name": "fly", "arguments": {"to": "Oslo"}}</tool_call>',
        calls=[("fly", {"to": "Oslo"})],
    ),
    Case(
        "a call cut in its arguments stays as far as it came",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Os',
        calls=[("get_weather", '{"city": "Os')],
    ),
    Case(
        "a call cut in arguments written as a string",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city',
        calls=[("get_weather", '"{\\"city')],
    ),
    Case("a call cut before its name is text", '<tool_call>{"name": "get_we', content='<tool_call>{"name": "get_we'),
    Case(
        "an object without a name is text",
        '<tool_call>{"city": "Oslo"}</tool_call> then',
        content='<tool_call>{"city": "Oslo"}</tool_call> then',
    ),
    Case("a tag that is spoken of is text", "Use <tool_call> tags.", content="Use <tool_call> tags."),
    Case(
        "a brace too many is dropped",
        '<tool_call>{"name": "now", "arguments": {}}}</tool_call>',
        calls=[("now", {})],
    ),
    Case(
        "a missing brace ends at the closing tag",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"</tool_call> after',
        content="after",
        calls=[("get_weather", {"city": "Oslo"})],
    ),
    Case("without tools tags are text", "<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", has_tools=False),
    Case("text without tags is unchanged", "  two\n\nlines \n", content="  two\n\nlines \n"),
    Case("half a tag at the end is text", "a < b <tool_c", content="a < b <tool_c"),
    Case("reasoning that never ends", "<think>\nhm", reasoning="hm"),
    Case("reasoning that the prompt began", "hm\n</think>\n\nyes", "yes", "hm", is_reasoning=True),
    Case("a tag that the prompt began and the model repeats", "<think>\nhm</think>yes", "yes", "hm", is_reasoning=True),
    Case("reasoning without text", "<think>\n\n</think>\n\nyes", content="yes"),
    Case("a tag of reasoning inside of text is text", "see <think> there", content="see <think> there"),
    Case(
        "reasoning between calls",
        '<think>a</think><tool_call>{"name": "now"}</tool_call><think>b</think>c',
        content="c",
        reasoning="a\nb",
        calls=[("now", {})],
    ),
]
