"""Chat templates for a comparison in which two engines tell a model the same: of a file without one, and with tools.

A template that has no tools tells llama.cpp's server none, and it makes no calls then, also where they are required.
PyAgent tells the model of them in words. For llama.cpp those words are put into the template.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import msgspec

from pyagent import _rust
from pyagent.core.emulation.dialect import CLOSE, OPEN, instruction
from pyagent.core.messages import FunctionDefinition, Tool

GEMMA3 = """{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}{% else -%}
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' -}}
{{ messages[0].content + '\\n\\n' if loop.index0 == 1 and messages[0].role == 'system' else '' -}}
{{ message.content | trim + '<end_of_turn>\\n' }}{% endif %}{% endfor -%}
{{ '<start_of_turn>model\\n' if add_generation_prompt else '' }}"""
_KEY = "tokenizer.chat_template"
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32


def template_of(model: Path) -> str | None:
    """The chat template in a model file."""
    found = _rust.read_model_header(model)["metadata"].get(_KEY)
    return found if isinstance(found, str) else None


def with_template(model: Path, template: str, folder: Path) -> Path:
    """A copy of a GGUF file with a chat template."""
    copy = folder / model.name
    with model.open("rb") as source, copy.open("wb") as target:
        header = _Header(source.read(64 << 20))
        target.write(header.with_text(_KEY, template))
        source.seek(header.data_start)
        shutil.copyfileobj(source, target)
    return copy


class _Header:
    """A GGUF file's beginning: counts, metadata, descriptions of tensors."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.version, self.num_tensors, self.num_values = struct.unpack_from("<IQQ", data, 4)
        self.place = 24
        for _ in range(self.num_values):
            self._skip_text()
            self._skip_value(*self._read("<I"))
        self.values_end = self.place
        for _ in range(self.num_tensors):
            self._skip_text()
            (num_dims,) = self._read("<I")
            self.place += 8 * num_dims + 12
        self.data_start = -(-self.place // _ALIGNMENT) * _ALIGNMENT

    def with_text(self, key: str, text: str) -> bytes:
        """The beginning with one more text, up to where the tensors' data begins."""
        counts = struct.pack("<4sIQQ", b"GGUF", self.version, self.num_tensors, self.num_values + 1)
        more = _text(key) + struct.pack("<I", _STRING) + _text(text)
        whole = counts + self.data[24 : self.values_end] + more + self.data[self.values_end : self.place]
        return whole.ljust(-(-len(whole) // _ALIGNMENT) * _ALIGNMENT, b"\0")

    def _read(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self.data, self.place)
        self.place += struct.calcsize(form)
        return found

    def _skip_text(self) -> None:
        (length,) = self._read("<Q")
        self.place += length

    def _skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self._skip_text()
        elif kind == _ARRAY:
            inner, count = self._read("<IQ")
            if inner in _SIZES:
                self.place += _SIZES[inner] * count
            else:
                for _ in range(count):
                    self._skip_value(inner)
        else:
            self.place += _SIZES[kind]


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def telling_tools(template: str) -> str:
    """A model's own template that first turns tools, calls and results into the words PyAgent says them in."""
    probe = Tool(FunctionDefinition("probe"))
    described = json.dumps(msgspec.to_builtins(probe.function), ensure_ascii=False)
    before, _, after = instruction([probe]).partition(described)
    call = f'\'{OPEN}{{"name": "\' ~ call.function.name ~ \'", "arguments": \' ~ (call.function.arguments | tojson)'
    return (
        "{%- set told = namespace(messages=[], text='') -%}{%- if tools -%}"
        "{%- for tool in tools -%}{%- set told.text = told.text ~ (tool.function | tojson) -%}"
        "{%- if not loop.last -%}{%- set told.text = told.text ~ '\\n' -%}{%- endif -%}{%- endfor -%}"
        f"{{%- set text = {_quoted(before)} ~ told.text ~ {_quoted(after)} -%}}"
        "{%- set told.messages = [{'role': 'system', 'content': text}] -%}{%- endif -%}"
        "{%- for message in messages -%}{%- set told.text = message.content or '' -%}"
        f"{{%- for call in message.tool_calls or [] -%}}{{%- set told.text = told.text ~ {call} ~ '}}{CLOSE}' -%}}"
        "{%- endfor -%}{%- set role = message.role -%}"
        "{%- if role == 'tool' -%}{%- set role = 'user' -%}"
        "{%- set told.text = '<tool_response>' ~ told.text ~ '</tool_response>' -%}{%- endif -%}"
        "{%- set told.messages = told.messages + [{'role': role, 'content': told.text}] -%}{%- endfor -%}"
        "{%- set messages = told.messages -%}" + template
    )


def _quoted(text: str) -> str:
    """A text as Jinja has it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"
