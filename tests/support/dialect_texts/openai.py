"""Harmony: messages in channels."""

from support.dialect_texts import Case

ANALYSIS = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
CASES = [
    Case("reasoning and an answer", f"{ANALYSIS}<|channel|>final<|message|>yes<|return|>", "yes", "hm"),
    Case(
        "a call",
        f"{ANALYSIS}<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Oslo"}<|call|>',
        reasoning="hm",
        calls=[("get_weather", {"city": "Oslo"})],
    ),
    Case(
        "a recipient before the channel",
        f"{ANALYSIS} to=functions.now<|channel|>commentary json<|message|>{{}}<|call|>",
        reasoning="hm",
        calls=[("now", {})],
    ),
    Case(
        "a recipient at the beginning",
        " to=functions.now<|channel|>commentary<|message|>{}",
        calls=[("now", {})],
    ),
    Case(
        "a call in the channel of analysis",
        "<|channel|>analysis to=functions.now code<|message|>{}<|call|>",
        calls=[("now", {})],
    ),
    Case(
        "a preamble",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.now"
        "<|message|>{}<|call|>",
        "I look.",
        calls=[("now", {})],
    ),
    Case("two thoughts", f"{ANALYSIS}<|channel|>analysis<|message|>so<|end|>", reasoning="hm\nso"),
    Case(
        "two answers", "<|channel|>commentary<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b", "a\nb"
    ),
    Case(
        "a tool of the model's own is reasoning",
        "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
        reasoning="print(1)",
    ),
    Case("an answer without a channel", "yes, to=1", "yes, to=1"),
    Case("an answer whose channel the prompt began", "yes<|return|>", "yes"),
    Case("cut in reasoning", "<|channel|>analysis<|message|>h", reasoning="h"),
    Case("cut in a header", "<|channel|>ana"),
    Case("cut in a call", '<|channel|>commentary to=functions.now<|message|>{"a', calls=[("now", '{"a')]),
    Case(
        "text after the arguments",
        "<|channel|>commentary to=functions.now<|message|>{} so<|call|>",
        "so",
        calls=[("now", {})],
    ),
    Case("not offered", "<|channel|>commentary to=functions.fly<|message|>{}<|call|>", calls=[("fly", {})]),
    Case(
        "without tools", "<|channel|>commentary to=functions.now<|message|>{}<|call|>", reasoning="{}", has_tools=False
    ),
]
