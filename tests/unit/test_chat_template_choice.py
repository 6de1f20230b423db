"""Which chat template a model gets: its own, its family's, or what the settings say; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.native import NUM_TOKENS
from support.tiny_model import CHAT_TEMPLATE, metadata, write_tiny_model

from pyagent.cli import models
from pyagent.core.chat_templates import TEMPLATES, family_of
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError
from pyagent.core.messages import Message
from pyagent.core.plugins import PluginHost
from pyagent.infrastructure.engine.plugin import options_of
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.engine.tokens.templates import ChatTemplate

CHAT = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yes?"), Message("user", "Bye")]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a chat template, whose tokens are those of ChatML."""
    return write_tiny_model(tmp_path_factory.mktemp("bare") / "bare.gguf", tokenizer__chat_template=None)


def template_of(path: Path, name: str = "m", **overrides: object) -> ChatTemplate | None:
    settings = load_settings(overrides={f"engine.{key}": value for key, value in overrides.items()}).settings
    options = options_of(settings, PluginHost()).of_model(name).tokenizer
    return ModelTokenizer.load(path, vocab_size=NUM_TOKENS, options=options).template


def rendered(name: str) -> str:
    template = ChatTemplate(TEMPLATES[name], {"bos_token": "<s>", "eos_token": "</s>"}, name)
    return template.render([{"role": message.role, "content": message.text} for message in CHAT])


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_built_in_templates_say_each_message_once_in_order(name: str) -> None:
    """Each of them has all texts once, the system's before the questions or in one, and leaves the answer open."""
    text = rendered(name)
    texts = ["Be brief.", "Hi", "Yes?", "Bye"]
    assert [text.count(one) for one in texts] == [1, 1, 1, 1]
    assert text.index("Hi") < text.index("Yes?") < text.index("Bye")
    assert not text.rstrip().endswith("</s>")


def test_built_in_templates_are_those_of_their_families() -> None:
    """Written out, where a mistake would not be seen."""
    assert rendered("chatml") == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered("llama2") == ("<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Yes? </s><s>[INST] Bye [/INST]")
    assert rendered("llama3") == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert rendered("gemma") == (
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYes?<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    )
    assert rendered("gemma4") == (
        "<s><|turn>system\nBe brief.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\nYes?<turn|>\n"
        "<|turn>user\nBye<turn|>\n<|turn>model\n"
    )
    assert rendered("zephyr") == (
        "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nYes?</s>\n<|user|>\nBye</s>\n<|assistant|>\n"
    )
    assert rendered("deepseek") == "<s>Be brief.<｜User｜>Hi<｜Assistant｜>Yes?</s><｜User｜>Bye<｜Assistant｜>"


def test_a_family_is_known_by_all_of_its_tokens() -> None:
    """A vocabulary that has some of a family's tokens is not of it."""
    assert family_of({"<|start_header_id|>", "<|eot_id|>", "<|end_header_id|>"}) == "llama3"
    assert family_of({"[INST]", "[/INST]", "[IMG]"}) == "mistral-v3"
    assert family_of({"<|turn>", "<turn|>", "<|tool_call>"}) == "gemma4"
    assert family_of({"<|im_start|>", "<s>"}) is None


def test_a_model_has_its_own_template_first(tiny_model_path: Path, bare: Path) -> None:
    """A file's own template is used, else that of the family; settings go before both, for one model before all."""
    own, family = template_of(tiny_model_path), template_of(bare)
    assert own is not None
    assert (own.source, own.built_in) == (CHAT_TEMPLATE, "")
    assert family is not None
    assert family.built_in == "chatml"
    chosen = {"chat_template": "llama3", "chat_templates": {"this": "gemma"}}
    assert [getattr(template_of(bare, name, **chosen), "built_in", None) for name in ("m", "this")] == [
        "llama3",
        "gemma",
    ]


def test_a_template_can_be_a_text_or_a_file(bare: Path, tmp_path: Path) -> None:
    """What has Jinja's braces is the template; a path in a file of settings is beside that file."""
    text = "{{ messages[0]['content'] }}"
    template = template_of(bare, chat_template=text)
    assert template is not None
    assert template.source == text
    (tmp_path / "own.jinja").write_text("{{ 'file' }}")
    config = tmp_path / "pyagent.toml"
    config.write_text('[engine]\nchat_template = "./own.jinja"\n[engine.chat_templates]\nm = "./own.jinja"\n')
    engine = load_settings(config).settings.engine
    assert engine.chat_template == engine.chat_templates["m"] == str((tmp_path / "own.jinja").resolve())


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        ({"engine.chat_template": "chatlm"}, "engine.chat_template: 'chatlm' is no template, .* did you mean 'chatml'"),
        ({"engine.chat_templates": {"m": "/no/such"}}, "engine.chat_templates.m: '/no/such' is no template, no file"),
        ({"engine.chat_templates": {"m": 3}}, "expected a text for each model"),
        (
            {"engine.chat_template": "chatlm", "engine.chat_templates": {"chat_template": "auto"}},
            "engine.chat_template: 'chatlm' is no template",
        ),
    ],
)
def test_what_is_no_template_is_refused_at_the_start(overrides: dict[str, object], fault: str) -> None:
    """A wrong name is an error of the setting, with the nearest name, before any model is loaded."""
    with pytest.raises(ConfigError, match=fault):
        options_of(load_settings(overrides=overrides).settings, PluginHost())


def test_models_show_says_which_template_a_model_has(
    bare: Path, tiny_model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pyagent models show` tells a template of the file's own from a built-in one, and from none."""
    types = [1, 1, 1, *metadata()["tokenizer.ggml.token_type"][3:]]  # type: ignore[index]
    changes = {"tokenizer__chat_template": None, "tokenizer__ggml__token_type": types}
    plain = write_tiny_model(tmp_path / "plain.gguf", **changes)
    for path in (tiny_model_path, bare, plain):
        models.show(str(path))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("chat template")]
    assert lines[0].endswith("the model's own")
    assert lines[1].endswith("chatml (built in, by the model's tokens)")
    assert "completions only" in lines[2]


_TOOLS = "{% for tool in tools or [] %}<tool_call>{{ tool['function']['name'] }}</tool_call>{% endfor %}"
_THINKING = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>{% endif %}"


@pytest.mark.parametrize(
    ("more", "dialect", "expected"),
    [
        ("", "auto", ["completion"]),
        (_TOOLS, "auto", ["completion", "tools"]),
        (_TOOLS + _THINKING, "auto", ["completion", "tools", "thinking"]),
        (_TOOLS + _THINKING, "none", ["completion"]),
        ("{{ raise_exception('no') }}", "auto", ["completion"]),
    ],
)
def test_models_show_says_what_a_model_can_be_asked_for(
    more: str, dialect: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tools that its template tells it of, and thinking that its template has, as its settings have it read."""
    path = write_tiny_model(tmp_path / "m.gguf", tokenizer__chat_template=CHAT_TEMPLATE + more)
    config = tmp_path / "pyagent.toml"
    config.write_text(f'[engine]\ndialect = "{dialect}"\n')
    models.show(str(path), config)
    models.show(str(path), config, as_json=True)
    *card, as_json = capsys.readouterr().out.splitlines()
    assert json.loads(as_json)["capabilities"] == expected
    assert f"capabilities  {', '.join(expected)}" in card
