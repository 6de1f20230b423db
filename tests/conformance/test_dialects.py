"""The built-in dialects do what every dialect must, for a call as each writes it."""

from __future__ import annotations

from support.suites import add_suites

from pyagent.core.dialects.registry import dialects
from pyagent.testing import DialectConformance

JSON = '{"city": "Rome"}'
CALL = f'{{"name": "look_up", "arguments": {JSON}}}'
BEGIN = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
INVOKE = '<minimax:tool_call>\n<invoke name="look_up">\n'
ANSWERS: dict[str, str] = {
    "hermes": f"<think>hm</think>Yes. <tool_call>\n{CALL}\n</tool_call>",
    "mistral": f"Yes. [TOOL_CALLS][{CALL}]",
    "llama3_json": f'{{"name": "look_up", "parameters": {JSON}}}',
    "pythonic": '[look_up(city="Rome")]',
    "qwen3_coder": "<tool_call>\n<function=look_up>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
    "deepseek_v31": f"{BEGIN}look_up<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "glm45": "<tool_call>look_up\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>",
    "minimax_m2": f'{INVOKE}<parameter name="city">Rome</parameter>\n</invoke>\n</minimax:tool_call>',
    "granite": f"<|tool_call|>[{CALL}]",
    "gemma4": '<|tool_call>call:look_up{city:<|"|>Rome<|"|>}<tool_call|>',
}
"""One of each way of writing calls: the other dialects differ from these in their tags."""

add_suites(
    DialectConformance,
    {name: (lambda name=name: dialects()[name]) for name in ANSWERS},
    answers={name: (answer,) for name, answer in ANSWERS.items()},
)
