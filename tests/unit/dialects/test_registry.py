"""Which dialect is chosen for a model, and how plugins bring others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.dialect_texts import NOW

from pyagent.core.dialects.formats import DIALECTS, HERMES
from pyagent.core.dialects.registry import dialect_for, dialects
from pyagent.core.plugins import PluginHost
from pyagent.plugin import Dialect, TagDialect, hookimpl

TEMPLATES = {
    "hermes": '{{ \'<tool_call>\\n{"name": "\' }} </tool_call> <think>',
    "qwen3_coder": "<tool_call>\\n<function=x>\\n<parameter=y>\\nz\\n</parameter>",
    "glm45": "<tool_call>{{ name }}\\n<arg_key>k</arg_key>\\n<arg_value>v</arg_value>",
    "seed_oss": "<seed:tool_call>\\n<function=x>\\n<parameter=y>z</parameter> <seed:think>",
    "minimax": '<beginning_of_sentence> MiniMax <tool_calls>\\n{"name": ...}\\n</tool_calls>',
    "minimax_m2": '<minimax:tool_call>\\n<invoke name=\\"x\\">',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' '\\n' + '```json'",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments",
    "deepseek_v32": "{% set dsml_token = '｜DSML｜' %}<{{ dsml_token }}function_calls>",
    "deepseek_v4": "{% set dsml_token = '｜DSML｜' %}'<' + dsml_token + 'tool_calls>'",
    "apriel": '<tool_calls>[{"name": ...}]</tool_calls> Here are my reasoning steps: [BEGIN FINAL RESPONSE]',
    "kimi_k2": "<|tool_calls_section_begin|>{% for call in calls %}<|tool_call_begin|>",
    "mistral": "{{ '[TOOL_CALLS][' }}{\\\"name\\\": ...}",
    "mistral_args": "{{ '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}",
    "granite": "<|tool_call|>{{ calls }} <think> <response>",
    "granite_3_2": "'Here is my thought process:' ... 'Here is my response:' <|tool_call|>",
    "phi4_mini_json": "<|tool|>{{ tools }}<|/tool|><|end|>",
    "llama4_json": '<|header_start|>user<|header_end|> ... {"name": function name, "parameters": ...}',
    "lfm2": "<|tool_list_start|>[{{ tools }}]<|tool_list_end|> <|tool_call_start|>",
    "cohere_command": '<|START_ACTION|>[ {"tool_call_id": ...} ]<|END_ACTION|>',
    "nemotron_json": "<TOOLCALL>[{{ calls }}]</TOOLCALL>",
    "olmo3": "<function_calls>{{ calls }}</function_calls>",
    "hunyuan_a13b": "<tool_calls>[{{ calls }}]</tool_calls> <answer>",
    "functiongemma": "<start_function_call>call:' ~ name ~ '{' <escape>",
    "gemma4": "{{ '<|tool_call>call:' + name }} <|\"|> <tool_call|>",
    "llama4_pythonic": "<|header_start|>user<|header_end|> ... [func_name1(params_name1=params_value1)]",
    "pythonic": "<|start_header_id|> ... [func_name1(params_name1=params_value1)]",
    "llama3_json": '<|start_header_id|> ... {"name": function name, "parameters": dictionary}',
    "openai": "<|start|>assistant<|channel|>analysis<|message|>",
}


@pytest.mark.parametrize("name", [dialect.name for dialect in DIALECTS if dialect.name != "json"])
def test_dialect_is_found_by_its_template(name: str) -> None:
    """What a template writes around calls shows its dialect."""
    assert dialect_for(TEMPLATES[name]).name == name


def test_unknown_template_gets_hermes() -> None:
    """A template that shows no dialect gets Hermes', the one of most models and of the emulation."""
    assert dialect_for("{{ messages }}") is HERMES


def test_prompt_that_ends_in_reasoning_is_known() -> None:
    """The parser of a prompt whose template opened reasoning begins inside of it."""
    assert HERMES.is_open("<|im_start|>assistant\n<think>\n")
    assert not HERMES.is_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert dialects()["openai"].is_open("<|start|>assistant<|channel|>analysis<|message|>")


OURS = replace(HERMES, name="hermes", clues=("<ours>",))


class Plugin:
    def __init__(self, brought: Sequence[Dialect]) -> None:
        self.brought = brought

    @hookimpl
    def pyagent_register_dialects(self) -> Sequence[Dialect]:
        return self.brought


def test_plugin_brings_a_dialect() -> None:
    """A plugin's dialects are tried first, and may take the names of built-in ones."""
    host = PluginHost()
    host.register(Plugin([OURS]), "ours")
    brought = host.dialects().values()
    assert dialects(brought)["hermes"] is OURS
    assert dialect_for("<ours> <tool_call>", brought) is OURS
    assert dialect_for("<tool_call>", brought).name == "hermes"
    parser = dialect_for("<ours>", brought).parser([NOW])
    assert parser.push('<tool_call>{"name": "now"}</tool_call>').tool_calls[0].name == "now"


class Half:
    name = "half"
    markers = frozenset({"<x>"})
    reasoning = None
    spans_reasoning = False

    def matches(self, template: str) -> bool:
        return False

    def is_open(self, prompt: str) -> bool:
        return False

    def parser(self, tools: object, *, is_reasoning: bool = False) -> None: ...


class Vague(Half):
    def grammar(self, tools: object) -> str:
        return ""

    def matches(self, template: str) -> str:  # type: ignore[override]
        return "perhaps"


class Failing(Vague):
    def matches(self, template: str) -> bool:  # type: ignore[override]
        raise ValueError("no template")


@pytest.mark.parametrize(
    ("dialect", "why"),
    [
        (Half(), "with `grammar`"),
        (Vague(), "`matches` is not"),
        (Failing(), "ValueError: no template"),
        (replace(HERMES, markers="<tool_call>"), "expected a set of tags"),  # type: ignore[arg-type]
        (replace(HERMES, reasoning="<think>"), "`reasoning` is '<think>', expected a `Reasoning`"),  # type: ignore[arg-type]
        (replace(HERMES, name="two words"), "a `name` without spaces"),
    ],
)
def test_bad_dialect_is_refused_by_name(dialect: object, why: str) -> None:
    """A plugin whose dialect cannot work is quarantined with the reason, and the built-in ones serve."""
    host = PluginHost()
    host.register(Plugin([dialect]), "bad")  # type: ignore[list-item]
    assert dialects(host.dialects().values()).keys() == dialects().keys()
    assert why in host.plugins()[0].reason


def test_reference_page_names_every_dialect() -> None:
    """The page of dialects has a row for each, with its models."""
    page = (Path(__file__).parents[3] / "docs/reference/dialects.md").read_text()
    for dialect in DIALECTS:
        assert f"| `{dialect.name}` | {dialect.models} |" in page  # type: ignore[attr-defined]
    assert isinstance(HERMES, TagDialect)


class Broken(TagDialect):
    def matches(self, template: str) -> bool:
        raise ValueError("no such template")


def test_dialect_that_fails_to_match_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """A plugin's fault does not keep a model from loading: its dialect is named in a warning, and the next is asked."""
    broken = Broken(name="broken", models="", calls=HERMES.calls)
    assert dialect_for("<tool_call>", [broken]) is HERMES
    assert "the dialect broken is passed over" in caplog.text
