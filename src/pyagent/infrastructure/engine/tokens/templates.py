"""Chat templates: a conversation to the text a model was trained on.

Templates come with model files and are hostile input. They run in `TemplateSandbox`, which bounds what they make and
how long they take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property

import jinja2
from jinja2.exceptions import SecurityError

from pyagent.core.errors import ModelError, RequestError
from pyagent.infrastructure.engine.tokens.template_sandbox import (
    MAX_TEXT_CHARS,
    TemplateLimitError,
    TemplateSandbox,
    spending,
)

MAX_TEMPLATE_CHARS = 256 * 1024
_MANY_VALUES = 1000
_TOOL_NAME = "pyagent_probe"
_THOUGHT_NAMES = ("reasoning_content", "reasoning", "thinking", "thought")
_MEMBER = re.compile(r"\.(\w+)|\[['\"](\w+)['\"]\]")
_SWITCHES = ("enable_thinking", "thinking", "reasoning_effort")


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, texts: Mapping[str, str], name: str, *, built_in: str = "") -> None:
        """`texts` are the model's `bos_token` and `eos_token`; `built_in` is the name of one that is not the model's.

        Raises `ModelError` when it cannot be compiled.
        """
        self.source = source
        self.texts = texts
        self.built_in = built_in
        self._name = name
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ModelError(
                f"{name}: a chat template of {len(source)} characters; the limit is {MAX_TEMPLATE_CHARS}", model=name
            )
        try:
            self._template = TemplateSandbox().from_string(source)
        except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
            raise ModelError(f"{name}: the chat template is not valid: {error}", model=name) from error
        self._known = {**self._template.globals, **texts, "add_generation_prompt": True}

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[object] = (),
        template_kwargs: Mapping[str, object] | None = None,
        *,
        begins_answer: bool = True,
    ) -> str:
        """The conversation as text, up to where the model's answer begins; `template_kwargs` are its other variables.

        Without `begins_answer` up to its last message's end.

        Raises `RequestError` with the template's own words when it refuses the conversation, `ModelError` when it
        breaks its bounds.
        """
        own: dict[str, object] = {**self._known, "messages": messages, "tools": list(tools) or None}
        own["add_generation_prompt"] = begins_answer
        more = template_kwargs or {}
        if taken := sorted(own.keys() & more.keys()):
            raise RequestError(f"chat_template_kwargs cannot set {taken[0]}", param="chat_template_kwargs")
        variables = {**more, **own}
        try:
            with spending():
                return self._render(variables)
        except (TemplateLimitError, SecurityError) as error:
            if isinstance(error, TemplateLimitError) and _is_large(messages, tools):
                text = f"the conversation is too long for the model's chat template: {error}"
                raise RequestError(text, param="messages", code="context_length_exceeded") from error
            raise ModelError(f"{self._name}: the chat template was stopped: {error}", model=self._name) from error
        except (RecursionError, MemoryError) as error:
            text = f"{self._name}: the chat template was stopped: it needs too much memory"
            raise ModelError(text, model=self._name) from error
        except Exception as error:
            text = f"the model's chat template refuses this conversation: {error}"
            raise RequestError(text, param="messages") from error

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the template tells the model of its tools."""
        asked = [{"role": "user", "content": "a"}]
        function: dict[str, object] = {"name": _TOOL_NAME, "description": "", "parameters": {"type": "object"}}
        tool: dict[str, object] = {"type": "function", "function": function}
        try:
            return _TOOL_NAME in self.render(asked, [tool])
        except (RequestError, ModelError):
            return False

    @cached_property
    def thought_name(self) -> str:
        """What it calls the field of a message with what led to it: gpt-oss and LFM 2.5 say `thinking`, others else."""
        found = {name for pair in _MEMBER.findall(self.source) for name in pair}
        return next((name for name in _THOUGHT_NAMES if name in found), _THOUGHT_NAMES[0])

    @cached_property
    def joins_thoughts(self) -> bool:
        """Whether a message with calls has content or a thought, not both: gpt-oss' tells either as a thought."""
        thought = {self.thought_name: "b"}
        return self._takes_call(thought) and not self._takes_call(thought | {"content": "a"})

    def _takes_call(self, fields: Mapping[str, str]) -> bool:
        call: dict[str, object] = {"id": "a12345678", "function": {"name": _TOOL_NAME, "arguments": {}}}
        said: dict[str, object] = {"role": "assistant", "content": "", "tool_calls": [call], **fields}
        try:
            self.render([{"role": "user", "content": "a"}, said])
        except (RequestError, ModelError):
            return False
        return True

    @cached_property
    def switches(self) -> frozenset[str]:
        """The variables it has for whether, and how much, the model thinks."""
        return frozenset(name for name in _SWITCHES if name in self.source)

    def _render(self, variables: dict[str, object]) -> str:
        pieces: list[str] = []
        length = 0
        context = self._template.new_context(variables, shared=True)
        for piece in self._template.root_render_func(context):
            length += len(piece)
            if length > MAX_TEXT_CHARS:
                raise TemplateLimitError(f"it writes more than {MAX_TEXT_CHARS} characters")
            pieces.append(piece)
        return "".join(pieces)


def _is_large(messages: Sequence[Mapping[str, object]], tools: Sequence[object]) -> bool:
    """Whether a conversation alone can take a template to its bounds, which else is the template's fault."""
    num_chars = sum(len(value) for message in messages for value in message.values() if isinstance(value, str))
    return len(messages) + len(tools) > _MANY_VALUES or num_chars > MAX_TEXT_CHARS // 16
