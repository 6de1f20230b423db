"""Chat templates of well-known families, for model files that have none, and the tokens by which a family is known."""

from __future__ import annotations

from collections.abc import Collection

_TURNS = (
    "{%- if messages[0]['role'] in ['system', 'developer'] %}{% set system = messages[0]['content'] %}"
    "{% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}{% endif -%}"
)


def _after(answer: str) -> str:
    """Return the end of a template, which writes what an answer begins with."""
    return "{%- if add_generation_prompt %}{{ '" + answer.replace("\n", "\\n") + "' }}{% endif -%}"


def _framed(begin: str, end: str, answer: str) -> str:
    """Return the template of each message between two texts, of which the first one has the role's name for `%s`."""
    before, after = (part.replace("\n", "\\n") for part in begin.split("%s"))
    turn = f"{{{{ '{before}' + message['role'] + '{after}' + message['content'] + '{end}' }}}}".replace("\n", "\\n")
    return f"{{%- for message in messages %}}{turn}{{% endfor -%}}" + _after(answer)


def _instructed(begin: str, end: str, answer: str, *, system: str = "", inside: str = "") -> str:
    """Return the template of questions between instruction tags.

    A system prompt is written by `system`, or `inside` the first or last question.
    """
    within = "{%- if system and loop." + inside + " %}{{ system + '\\n\\n' }}{% endif %}" if inside else ""
    return (
        f"{_TURNS}{{{{ bos_token }}}}{system}"
        "{%- for message in turns %}{%- if message['role'] == 'assistant' %}"
        f"{{{{ '{answer}' + message['content'] + eos_token }}}}"
        f"{{%- else %}}{{{{ '{begin}' }}}}{within}"
        f"{{{{- message['content'] + '{end}' }}}}{{% endif %}}{{% endfor -%}}"
    )


_LLAMA2 = (
    _TURNS + "{%- for message in turns %}{%- if message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + ' ' + eos_token }}{%- else %}{{ bos_token + '[INST] ' }}"
    "{%- if system and loop.first %}{{ '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' }}{% endif %}"
    "{{- message['content'] + ' [/INST]' }}{% endif %}{% endfor -%}"
)
_GEMMA = (
    _TURNS + "{{ bos_token }}{%- for message in turns %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') + '\\n' }}"
    "{%- if system and loop.first %}{{ system + '\\n\\n' }}{% endif %}"
    "{{- message['content'] + '<end_of_turn>\\n' }}{% endfor -%}" + _after("<start_of_turn>model\n")
)
_GEMMA4 = (
    "{{ bos_token }}{%- for message in messages %}"
    "{{ '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' }}"
    "{{- message['content'] + '<turn|>\\n' }}{% endfor -%}" + _after("<|turn>model\n")
)
_DEEPSEEK = (
    _TURNS + "{{ bos_token + system }}{%- for message in turns %}{%- if message['role'] == 'assistant' %}"
    "{{ '<｜Assistant｜>' + message['content'] + eos_token }}{%- else %}"
    "{{ '<｜User｜>' + message['content'] }}{% endif %}{% endfor -%}" + _after("<｜Assistant｜>")
)
_VICUNA = (
    _TURNS + "{%- if system %}{{ system + '\\n\\n' }}{% endif %}{%- for message in turns %}"
    "{%- if message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token + '\\n' }}{%- else %}"
    "{{ 'USER: ' + message['content'] + '\\nASSISTANT:' }}{% endif %}{% endfor -%}"
)

TEMPLATES = {
    "chatml": _framed("<|im_start|>%s\n", "<|im_end|>\n", "<|im_start|>assistant\n"),
    "llama2": _LLAMA2,
    "llama3": "{{- bos_token }}"
    + _framed(
        "<|start_header_id|>%s<|end_header_id|>\n\n",
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "mistral-v1": _instructed("[INST] ", " [/INST]", " ", inside="first"),
    "mistral-v3": _instructed("[INST]", "[/INST]", "", inside="last"),
    "mistral-v7": _instructed(
        "[INST]",
        "[/INST]",
        "",
        system="{%- if system %}{{ '[SYSTEM_PROMPT]' + system + '[/SYSTEM_PROMPT]' }}{% endif %}",
    ),
    "gemma": _GEMMA,
    "gemma4": _GEMMA4,
    "zephyr": _framed("<|%s|>\n", "' + eos_token + '\n", "<|assistant|>\n"),
    "phi3": _framed("<|%s|>\n", "<|end|>\n", "<|assistant|>\n"),
    "granite": _framed(
        "<|start_of_role|>%s<|end_of_role|>",
        "' + eos_token + '\n",
        "<|start_of_role|>assistant<|end_of_role|>",
    ),
    "deepseek": _DEEPSEEK,
    "vicuna": _VICUNA,
    "plain": "{{ messages | map(attribute='content') | join('\n\n') }}",
}
"""By the names that llama.cpp has for them, if any. None is told of tools: those are described in words.

`plain` is for encoder-decoders: what they are asked is the text of all messages, one after the other. No space stands
after a control token of Mistral's: SentencePiece puts one there itself, and tekken has none.
"""

_CLUES: tuple[tuple[str, frozenset[str]], ...] = (
    ("llama3", frozenset({"<|start_header_id|>", "<|eot_id|>"})),
    ("chatml", frozenset({"<|im_start|>", "<|im_end|>"})),
    ("gemma", frozenset({"<start_of_turn>", "<end_of_turn>"})),
    ("gemma4", frozenset({"<|turn>", "<turn|>"})),
    ("mistral-v7", frozenset({"[INST]", "[/INST]", "[SYSTEM_PROMPT]"})),
    ("mistral-v3", frozenset({"[INST]", "[/INST]"})),
    ("deepseek", frozenset({"<｜User｜>", "<｜Assistant｜>"})),
    ("granite", frozenset({"<|start_of_role|>", "<|end_of_role|>"})),
    ("phi3", frozenset({"<|user|>", "<|assistant|>", "<|end|>"})),
)


def family_of(tokens: Collection[str]) -> str | None:
    """Return the template of the family whose tokens a vocabulary has; None where it has no family's."""
    return next((name for name, clues in _CLUES if clues <= set(tokens)), None)
