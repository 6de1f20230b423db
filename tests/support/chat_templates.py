"""Chat templates in the manner of well-known families, and tokenizers that have their control tokens.

`STYLES` are written anew after what the families' templates do: which of them keep a conversation's text as it was, and
which rewrite it (drop old thoughts, move the system text or the tools, trim answers).
"""

from __future__ import annotations

from collections.abc import Sequence

from support.tiny_model import vocabulary

from pyagent.core.messages import Message, Tool
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import build_tokenizer
from pyagent.infrastructure.engine.tokens.huggingface import HuggingFaceTokenizer
from pyagent.infrastructure.engine.tokens.templates import ChatTemplate

CONTROLS = (
    *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|User|>", "<|Assistant|>"),
)
CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As Qwen3: thoughts before the last question of a user are dropped, and tool results are gathered in a user's turn.
THINKING = (
    "{% if tools %}{{ '<|im_start|>system\n' ~ tools | tojson ~ '<|im_end|>\n' }}{% endif %}"
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% set said = m.content %}{% set thought = '' %}{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "{{ '<|im_start|>assistant\n<think>\n' ~ thought ~ '\n</think>\n\n' ~ said ~ '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>assistant\n' ~ said ~ '<|im_end|>\n' }}{% endif %}{% elif m.role == 'tool' %}"
    "{% if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' ~ m.content ~ '\n</tool_response>' }}"
    "{% if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% else %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
LLAMA3 = (
    "<|begin_of_text|>{% for m in messages %}"
    "{% if tools and loop.index0 == 0 %}{{ 'Tools: ' ~ tools | tojson }}{% endif %}"
    "{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ m.content | trim ~ '<|eot_id|>' }}{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
# As Mistral's: the system text and the tools stand before the last question; roles must alternate.
MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}<s>{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}"
    "{% if loop.last and tools %}{{ '[AVAILABLE_TOOLS]' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{% if loop.last and system %}{{ '[INST]' ~ system ~ '\n\n' ~ m.content ~ '[/INST]' }}"
    "{% else %}{{ '[INST]' ~ m.content ~ '[/INST]' }}{% endif %}"
    "{% else %}{{ m.content ~ '</s>' }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content ~ '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' ~ role ~ '\n' ~ (first if loop.first else '') ~ m.content | trim ~ '<end_of_turn>\n' }}"
    "{% endfor %}{{ '<start_of_turn>model\n' }}"
)
# As DeepSeek R1: the answer begins inside a thought, and old thoughts are dropped.
REASONER = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|Assistant|>' ~ m.content.split('</think>')[-1] ~ '</s>' }}{% elif m.role == 'user' %}"
    "{{ '<|User|>' ~ m.content }}{% else %}{{ m.content }}{% endif %}{% endfor %}{{ '<|Assistant|><think>\n' }}"
)
# Without control tokens between turns.
PLAIN = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}{{ 'assistant: ' }}"
STYLES = {
    "chatml": CHATML,
    "thinking": THINKING,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "reasoner": REASONER,
    "plain": PLAIN,
}


def byte_level_tokenizer(template: str) -> ModelTokenizer:
    """A tokenizer of bytes and a few words with `CONTROLS`, and this template."""
    words, merges = vocabulary()
    tokens = [*CONTROLS, *(word for word in words if word not in {"<|endoftext|>", "<|im_start|>", "<|im_end|>"})]
    entries: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3] * len(CONTROLS) + [1] * (len(tokens) - len(CONTROLS)),
    }
    return _tokenizer(entries, template)


def sentencepiece_tokenizer(template: str) -> ModelTokenizer:
    """Likewise with a SentencePiece vocabulary that puts a space before texts."""
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz.:0", "▁t", "▁th", "▁the", "▁a", "▁i", "▁is", "▁us", "er"]
    tokens = ["<unk>", *CONTROLS, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    entries: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, *[3] * len(CONTROLS), *[6] * 256, *[1] * len(letters)],
        "tokenizer.ggml.scores": [0.0 if token == "▁" else float(len(token)) for token in tokens],
    }
    return _tokenizer(entries, template)


def _tokenizer(entries: dict[str, object], template: str) -> ModelTokenizer:
    built = build_tokenizer(entries, "m")
    texts = {"bos_token": "<s>", "eos_token": "</s>"}
    chat = ChatTemplate(template, texts, "m")
    return ModelTokenizer(HuggingFaceTokenizer(built, "m", end_ids=[1]), template=chat, name="m")


def encode_chat(tokenizer: ModelTokenizer, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
    """A conversation's tokens, rendered whole."""
    return tokenizer.encode_rendered(tokenizer.render_chat(messages, tools))
