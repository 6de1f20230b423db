"""Chat templates rendered as transformers' `apply_chat_template` renders them: tools, calls, results and thoughts."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import msgspec
import pytest
from support.calling_model import TEMPLATE
from support.chat_templates import STYLES, byte_level_tokenizer

from pyagent.core.errors import RequestError
from pyagent.core.messages import FunctionCall, FunctionDefinition, Message, Tool, ToolCall
from pyagent.infrastructure.engine.tokens.markers import BREAK

pytestmark = pytest.mark.oracle

# What published templates make use of: macros, namespaces, blocks on lines of their own, loop controls, types, JSON.
EVERYTHING = """
{%- macro told(call, number=0) -%}
    {{- '<call n="' ~ number ~ '">' -}}
    {%- for key, value in call.arguments | items %}
        {{- key }}={{ value | string if value is not string else value | tojson }};
    {%- endfor -%}
    </call>
{%- endmacro -%}
{%- set ns = namespace(last=-1, system='') %}
{%- if messages[0]['role'] == 'system' %}
    {%- set ns.system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages[::-1] if message.role == 'user' %}
    {%- set ns.last = messages | length - loop.index %}
    {%- break %}
{%- endfor %}
<system>
{{ ns.system | default('none', true) }}
{% if tools is not none and tools | length > 0 %}
  {% for tool in tools %}
{{ tool | tojson(indent=2) }}
    {% for name, kind in tool.function.parameters.properties.items() %}
- {{ name }}: {{ kind.type | upper }}{{ ' (' ~ kind.description ~ ')' if kind.description is defined }}
    {% endfor %}
  {% endfor %}
{% endif %}
</system>
{% for message in messages %}
    {%- if message.content is none and not message.tool_calls %}{% continue %}{% endif %}
<{{ message.role }}>
    {%- if message.reasoning_content is defined and message.reasoning_content and loop.index0 > ns.last %}
<think>{{ message.reasoning_content.strip().split('\\n') | join(' / ') }}</think>
    {%- endif %}
{{- message.content | replace('<', '&lt;') if message.content is string else message.content | tojson }}
    {%- for call in message.tool_calls or [] %}
        {%- set call = call.function if call.function is defined else call %}
        {{- call.name ~ '(' ~ told(call, number=loop.index) ~ ')' }}
    {%- endfor %}
    {%- set is_last = loop.last or messages[loop.index0 + 1].role != 'tool' %}
    {%- if message.role == 'tool' and is_last %}{{ eos_token }}{% endif %}
</{{ message.role }}>
{% endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}
{%- if enable_thinking is false %}{{ '<think></think>' }}{% endif %}
"""
TEMPLATES = {**STYLES, "calling": TEMPLATE, "everything": EVERYTHING}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": 'A "town" <é>'}, "tags": {"type": "array", "items": {}}},
    "required": ["city"],
}
TOOLS = [Tool(FunctionDefinition("get_weather", "Look it <up> & 'tell'.", SCHEMA)), Tool(FunctionDefinition("now"))]
CALLS = [
    ToolCall(id="a12345678", function=FunctionCall("get_weather", '{"city": "Oslo é", "tags": ["a", 1.5, null]}')),
    ToolCall(id="b12345678", function=FunctionCall("now", "{}")),
]
CONVERSATIONS = {
    "a question": [Message("user", "hi")],
    "several turns": [
        *(Message("system", " Be <b>brief</b>.\n"), Message("user", "hi")),
        *(Message("assistant", "Hello é."), Message("user", "so\n")),
    ],
    "thoughts": [Message("user", "hi"), Message("assistant", "Yes.", reasoning_content="a\nb"), Message("user", "so")],
    "calls": [
        *(Message("user", "weather?"), Message("assistant", "I look.", tool_calls=CALLS, reasoning_content="hm")),
        *(Message("tool", '{"t": 1}', tool_call_id="a12345678"), Message("tool", "12:00", tool_call_id="b12345678")),
    ],
}


def plain(message: Message) -> dict[str, Any]:
    """A message as users of transformers write it: the arguments of calls are objects."""
    fields = msgspec.to_builtins(message)
    for call in fields.get("tool_calls") or []:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return fields | {"content": message.text}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("says", CONVERSATIONS)
@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}], ids=str)
def test_template_is_rendered_as_transformers_does(name: str, says: str, kwargs: dict[str, Any]) -> None:
    """The same text, and what one refuses the other refuses."""
    transformers = pytest.importorskip("transformers.utils.chat_template_utils")
    tokenizer, messages = byte_level_tokenizer(TEMPLATES[name]), CONVERSATIONS[says]
    tools = TOOLS if says == "calls" else []
    try:
        ((expected, *_), *_) = transformers.render_jinja_template(
            [[plain(message) for message in messages]],
            tools=[msgspec.to_builtins(tool) for tool in tools] or None,
            chat_template=TEMPLATES[name],
            add_generation_prompt=True,
            bos_token="<s>",
            eos_token="</s>",
            **kwargs,
        )
    except jinja2.TemplateError as error:
        refusal = str(error)
        with pytest.raises(RequestError) as caught:
            tokenizer.render_chat(messages, tools, kwargs)
        assert refusal in str(caught.value)
        return
    assert tokenizer.render_chat(messages, tools, kwargs).replace(BREAK, "") == expected
